"""What all figures share: colours, type, the look of a method, where labels go, and how files are written.

Figures are built without pyplot, so nothing global changes and any number may be drawn side by side.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Rectangle
from matplotlib.textpath import TextPath

from ease.errors import unknown
from ease.storage.files import write_all

# Okabe and Ito's colours, told apart with any colour vision; black is left to text, yellow fades on paper.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
CEILING_MARKERS = ("*", "h", "d")
SIZES = {"^": 1.15, "v": 1.15, "P": 1.25, "X": 1.25, "*": 1.7, "p": 1.1, "D": 0.9}  # to look equally large
LINES = ("-", "--", ":", "-.")

KINDS = ("exemplar-free", "exemplar-based", "ceiling")

# The report swaps these for its own, so that one drawing serves light and dark pages.
INK, MUTED, GRID, PAPER = "#1b1f27", "#5c6470", "#e3e6ea", "#fffffe"
HEAT, LOSS = "#0b5c8f", "#a8431b"

LABEL_SIZE, LABEL_GAP, LABEL_LENGTH = 9.5, 0.215, 44  # points, inches, characters
LEFT, EDGE = 0.65, 0.14  # inches: left of the plot, left of the titles

STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    # Names are not formulas: a dataset called "a$b" must not be typeset.
    "text.parse_math": False,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.axisbelow": True,
    "figure.facecolor": PAPER,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    # A constant salt and glyphs drawn as outlines: the same records give the same bytes, whatever fonts
    # the reader has.
    "svg.hashsalt": "ease",
    "svg.fonttype": "path",
}
# What each format would stamp with a date or a version.
STAMPS: dict[str, dict[str, Any]] = {
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


@dataclass(frozen=True)
class MethodStyle:
    """How a method is drawn: colour, line and marker repeat at different paces, so that 24 stay distinct."""

    colour: str
    line: str
    marker: str
    hollow: bool
    main: bool

    def line_style(self, size: float = 1.0) -> dict[str, Any]:
        """For `Axes.plot`; `size` scales the weight of line and marker."""
        return {
            "color": self.colour,
            "linestyle": self.line,
            "linewidth": (2.6 if self.main else 1.8) * size,
            "marker": self.marker,
            "markersize": (7 if self.main else 6) * size * SIZES.get(self.marker, 1),
            "markerfacecolor": PAPER if self.hollow else self.colour,
            "markeredgecolor": self.colour if self.hollow else PAPER,
            "markeredgewidth": (1.4 if self.hollow else 0.9) * size,
            "zorder": 5 if self.main else 3,
        }


def method_styles(kinds: Sequence[str], main: Sequence[bool]) -> list[MethodStyle]:
    """One look for each of several methods, given what each may look at.

    Main ones take the first looks (solid lines), wherever they stand. Hollow markers keep exemplars. A ceiling is no
    competitor and stays grey.
    """
    competitors = sorted((i for i, kind in enumerate(kinds) if kind != "ceiling"), key=lambda i: not main[i])
    ceilings = [i for i, kind in enumerate(kinds) if kind == "ceiling"]
    found: dict[int, MethodStyle] = {}
    for number, i in enumerate(competitors):
        colour, marker = PALETTE[number % len(PALETTE)], MARKERS[number % len(MARKERS)]
        line = LINES[number // len(PALETTE) % len(LINES)]
        found[i] = MethodStyle(colour, line, marker, kinds[i] == "exemplar-based", main[i])
    for number, i in enumerate(ceilings):
        line, marker = LINES[(1 + number) % len(LINES)], CEILING_MARKERS[number % len(CEILING_MARKERS)]
        found[i] = MethodStyle(MUTED, line, marker, False, False)
    return [found[i] for i in range(len(kinds))]


def svg(fig: Figure, transparent: bool = False) -> bytes:
    """The figure as an SVG document, equal bytes for equal figures."""
    return _render(fig, "svg", transparent)


def save(fig: Figure, path_stem: str | Path, formats: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write `path_stem`.svg, .png and so on; returns what was written."""
    stem = Path(path_stem)
    for name in formats:
        if name not in STAMPS:
            raise unknown("picture format", name, STAMPS)
    # Not with_suffix: a stem such as "alpha-0.1" has a dot of its own.
    return write_all(stem.parent, {f"{stem.name}.{name}": _render(fig, name) for name in formats})


def spread_apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Move positions as little as possible (least squares) until neighbours are `gap` apart, in bounds."""
    order = np.argsort(wanted, kind="stable")
    # With i gaps taken off the i-th, "at least a gap apart" becomes "not decreasing": pool the violators.
    blocks: list[tuple[float, int]] = []
    for rank, index in enumerate(order):
        blocks.append((wanted[index] - rank * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2:]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    room = max(low, high - (len(order) - 1) * gap)
    flat = [min(max(mean, low), room) for mean, count in blocks for _ in range(count)]
    placed = [0.0] * len(order)
    for rank, index in enumerate(order):
        placed[index] = flat[rank] + rank * gap
    return placed


def heat_cells(
    axes: Any, cells: np.ndarray, span: tuple[float, float], edge: float = 1.5, colour: str | None = None
) -> PolyCollection:
    """A square for every known cell of [rows, columns], the first row on top; NaN stays blank."""
    rows, columns = cells.shape
    known = [(row, column) for row, column in np.ndindex(cells.shape) if not np.isnan(cells[row, column])]
    # Drawn squares, not an image: they stay sharp at any size and carry no embedded bitmap.
    squares = PolyCollection(
        [[(c, r), (c + 1, r), (c + 1, r + 1), (c, r + 1)] for r, c in known],
        array=[cells[place] for place in known],
        # One hue from nearly gone to full: it fades into the page, be that light or dark.
        cmap=ListedColormap([to_rgba(colour or HEAT, alpha) for alpha in np.linspace(0.07, 1, 40)]),
        edgecolors=PAPER,
        linewidth=edge,
    )
    squares.set_clim(*span)
    axes.add_collection(squares)
    axes.set(xlim=(0, columns), ylim=(rows, 0))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return squares


def write_cells(
    axes: Any, cells: np.ndarray, squares: Any, digits: int, size: float, best: str | None = None
) -> None:
    """The number in every cell; those that read `best` are bold and framed."""
    for (row, column), value in np.ndenumerate(cells):
        if math.isnan(value):
            continue
        *_, alpha = squares.to_rgba(value)
        text = f"{value:.{digits}f}"
        axes.text(
            column + 0.5,
            row + 0.5,
            text,
            ha="center",
            va="center_baseline",
            fontsize=size,
            fontweight="bold" if text == best else "normal",
            # Where white on the cell and ink on the cell have the same contrast.
            color="#ffffff" if alpha > 0.75 else INK,
        )
        if text == best:
            frame = Rectangle((column + 0.04, row + 0.04), 0.92, 0.92)
            frame.set(fill=False, edgecolor=INK, linewidth=1.8)
            axes.add_patch(frame)


def heat_scale(fig: Figure, axes: Any, squares: Any) -> None:
    """The colours' scale right of the cells, where there is no room for numbers."""
    box = axes.get_position()
    bar = fig.colorbar(squares, cax=fig.add_axes((box.x1 + 0.03, box.y0, 0.022, box.height)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9)


def framed(
    width: float, height: float, right: float, bottom: float, titled: bool, left: float = LEFT
) -> tuple[Figure, Any]:
    """A figure around axes of a fixed size in inches, with room for ticks, titles and what `right` needs."""
    top = 0.88 if titled else 0.58
    full_width, full_height = left + width + right, bottom + height + top
    fig = Figure(figsize=(full_width, full_height))
    box = (left / full_width, bottom / full_height, width / full_width, height / full_height)
    return fig, fig.add_axes(box)


LONGEST_TITLE = 400
"""Letters of a title that are looked at: no figure has room for as many."""


def titles(fig: Figure, title: str, subtitle: str) -> None:
    width, height = fig.get_size_inches()
    left, second = EDGE / width, 0.56 if title else 0.24
    room = width - 2 * EDGE
    title = title[:LONGEST_TITLE]  # measuring draws every letter
    while title and (needed := text_width([title], 13, "bold")) > room:
        title = f"{title[: int(len(title) * room / needed) - 1]}…"
    fig.text(left, 1 - 0.30 / height, title, fontsize=13, fontweight="bold", va="center")
    fig.text(left, 1 - second / height, subtitle, fontsize=9.5, color=MUTED, va="center")


def text_width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """The longest text in inches."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=size)
    return (
        max(TextPath((0, 0), text, prop=font).get_extents().width if text.strip() else 0.0 for text in texts)
        / 72
    )


def accuracy_range(values: Sequence[float]) -> tuple[float, float]:
    """The ends of an axis around these accuracies."""
    span = max(max(values) - min(values), 4.0)
    return max(0.0, min(values) - 0.12 * span), min(100.0, max(values) + 0.12 * span)


def percent_axes(axes: Any) -> None:
    """Level grid lines in percent and no frame."""
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.grid(axis="y")
    axes.tick_params(length=0, pad=6)
    axes.spines[["left", "right", "top"]].set_visible(False)


def thinned(values: Sequence[int], most: int) -> list[int]:
    """At most `most` ticks at equal steps, always with the last."""
    step = math.ceil(len(values) / most)
    return list(values)[::-1][::step][::-1]


def _render(fig: Figure, format: str, transparent: bool = False) -> bytes:
    out = io.BytesIO()
    with style():
        fig.savefig(out, format=format, dpi=200, metadata=STAMPS[format], transparent=transparent)
    return out.getvalue()


@contextmanager
def style() -> Iterator[None]:
    # From the defaults, not from a matplotlibrc that happens to lie around.
    with matplotlib.rc_context():
        matplotlib.rcParams.update({**matplotlib.rcParamsDefault, "backend": matplotlib.rcParams["backend"]})
        matplotlib.rcParams.update(STYLE)
        yield
