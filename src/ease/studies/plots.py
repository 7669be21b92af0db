"""Pictures of records: the accuracy curve of a study and the stage-by-task map of a run.

Figures are built without pyplot, so nothing global changes and any number may be drawn side by side.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from ease.engine.files import make_folder, write_atomic
from ease.errors import unknown
from ease.studies.series import Place, Record, Series, group, place_of

# Okabe and Ito's colours, told apart with any colour vision; black is left to text, yellow fades on paper.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "p")
LINES = ("-", "--", ":", "-.")

# The report swaps these for its own, so that one drawing serves light and dark pages.
INK, MUTED, GRID, PAPER = "#1b1f27", "#5c6470", "#e3e6ea", "#fffffe"
HEAT = "#0b5c8f"

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


def accuracy_curves(records: Sequence[Record], title: str | None = None, width: float = 5.5) -> Figure:
    """Top-1 over the number of classes seen, one curve per method; several seeds become a mean and a band.

    `title` "" leaves the title to the page around it; `width` is that of the plot itself in inches.
    """
    grouped = group(records)
    labels = _labels(grouped)
    with _style():
        # The names stand one above the other at the right: many make the figure taller, long ones wider.
        height = max(3.1, LABEL_GAP * len(grouped))
        subtitle = _subtitle(grouped)
        names = _width(labels, LABEL_SIZE, "bold") + 0.95
        words = _width([subtitle], LABEL_SIZE) + 2 * EDGE - LEFT - width
        fig, axes = _framed(width, height, right=max(names, words), bottom=0.65, titled=title != "")
        _curve_axes(axes, grouped, ticks=max(3, round(2 * width)))
        for number, series in enumerate(grouped):
            _draw_curve(axes, series, number, main=series.method == "ease")
        _end_labels(axes, grouped, labels, height)
        _titles(fig, _title(grouped) if title is None else title, subtitle)
    return fig


def task_heatmap(record: Record, lowest: float | None = None, title: str | None = None) -> Figure:
    """Accuracy on each task (columns) after each stage (rows); `lowest` is where the colours begin."""
    series = group([record])[0]
    count = len(record["per_task"])
    cells = np.full((count, count), np.nan)
    for stage, row in enumerate(record["per_task"]):
        # None, a task without test images, becomes NaN and stays blank.
        cells[stage, : len(row)] = np.array(row, dtype=float)
    floor = heat_floor([record]) if lowest is None else lowest

    with _style():
        numbers = count <= 12
        fig, axes = _framed(3.3, 3.3, right=0.2 if numbers else 0.85, bottom=0.6, titled=title != "")
        # Drawn squares, not an image: they stay sharp at any size and carry no embedded bitmap.
        known = [(stage, task) for stage, task in np.ndindex(cells.shape) if not np.isnan(cells[stage, task])]
        squares = PolyCollection(
            [[(t, s), (t + 1, s), (t + 1, s + 1), (t, s + 1)] for s, t in known],
            array=[cells[place] for place in known],
            cmap=_fading(),
            edgecolors=PAPER,
            linewidth=min(1.5, 15 / count),
        )
        squares.set_clim(floor, 100)
        axes.add_collection(squares)
        axes.set(xlim=(0, count), ylim=(count, 0), xlabel="Task", ylabel="After stage")
        ticks = _thinned(range(1, count + 1), 12)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([tick - 0.5 for tick in ticks], labels=[str(tick) for tick in ticks])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if numbers:
            _write_cells(axes, cells, squares)
        else:
            _heat_scale(fig, axes, squares)
        _titles(fig, series.label if title is None else title, "Accuracy (%) on each task after each stage")
    return fig


def heat_floor(records: Sequence[Record]) -> float:
    """Where the colours of several maps begin if they are to be compared: the lowest cell, rounded down."""
    known = [cell for record in records for row in record["per_task"] for cell in row if cell is not None]
    return min(90.0, 10.0 * math.floor(min(known, default=0.0) / 10))


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
    paths = [stem.with_name(f"{stem.name}.{name}") for name in formats]
    for name, path in zip(formats, paths, strict=True):
        make_folder(path.parent)
        write_atomic(path, _render(fig, name))
    return paths


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


def _curve_axes(axes: Any, grouped: list[Series], ticks: int) -> None:
    low = min(float(_band(series)[0].min()) for series in grouped)
    high = max(float(_band(series)[1].max()) for series in grouped)
    bottom = max(0, 10 * math.floor((low - 2) / 10))
    top = min(100, max(bottom + 10, 10 * math.ceil((high + 1) / 10)))
    seen = sorted({count for series in grouped for count in series.classes_seen})
    margin = 0.03 * (seen[-1] - seen[0]) or 1
    axes.set(xlim=(seen[0] - margin, seen[-1] + margin), ylim=(bottom, top))
    axes.set_xticks(_thinned(seen, ticks))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.set_xlabel("Classes seen")
    axes.grid(axis="y")
    axes.tick_params(length=0, pad=6)
    axes.spines[["left", "right", "top"]].set_visible(False)


def _draw_curve(axes: Any, series: Series, number: int, main: bool) -> None:
    seen, mean = series.classes_seen, series.curves().mean(axis=0)
    colour = PALETTE[number % len(PALETTE)]
    front = 5 if main else 3
    if len(series.records) > 1:
        axes.fill_between(seen, *_band(series), color=colour, alpha=0.16, linewidth=0, zorder=2)
    axes.plot(
        seen,
        mean,
        color=colour,
        # Colours repeat after the palette; the line style then tells the rounds apart.
        linestyle=LINES[number // len(PALETTE) % len(LINES)],
        linewidth=2.6 if main else 1.8,
        marker=MARKERS[number % len(MARKERS)],
        markersize=(7 if main else 6) if len(seen) <= 25 else 0,
        markeredgecolor=PAPER,
        markeredgewidth=0.9,
        # A point at 100 % sits on the edge of the plot and must not be cut in half.
        clip_on=False,
        zorder=front,
        label=series.label,
    )


def _end_labels(axes: Any, grouped: list[Series], labels: list[str], height: float) -> None:
    """The last value and the name beside each curve's end, moved apart where they would overlap."""
    bottom, top = axes.get_ylim()
    left, right = axes.get_xlim()
    wide = right - left
    ends = [float(series.curves().mean(axis=0)[-1]) for series in grouped]
    placed = spread_apart(ends, LABEL_GAP * (top - bottom) / height, bottom, top)
    # Values and names in two columns, whatever the weight of the type.
    columns = (3, 42 if max(ends) >= 99.95 else 35)
    for number, (series, label) in enumerate(zip(grouped, labels, strict=True)):
        end, at = ends[number], placed[number]
        start, elbow = series.classes_seen[-1] + 0.012 * wide, right + 0.025 * wide
        axes.plot(
            # Level up to the edge, so that the leader of a short stream is not taken for a curve.
            [start, max(start, right - 0.005 * wide), elbow],
            [end, end, at],
            color=PALETTE[number % len(PALETTE)],
            linewidth=1,
            alpha=0.75,
            clip_on=False,
            zorder=1,
        )
        for text, offset in zip((f"{end:.1f}", label), columns, strict=True):
            axes.annotate(
                text,
                (elbow, at),
                xytext=(offset, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=LABEL_SIZE,
                fontweight="bold" if series.method == "ease" else "normal",
                annotation_clip=False,
            )


def _fading() -> ListedColormap:
    """One hue from nearly gone to full: what is forgotten fades into the page, be that light or dark."""
    return ListedColormap([to_rgba(HEAT, alpha) for alpha in np.linspace(0.07, 1, 40)])


def _write_cells(axes: Any, cells: np.ndarray, squares: Any) -> None:
    digits = 1 if len(cells) <= 6 else 0
    for (stage, task), value in np.ndenumerate(cells):
        if math.isnan(value):
            continue
        *_, alpha = squares.to_rgba(value)
        axes.text(
            task + 0.5,
            stage + 0.5,
            f"{value:.{digits}f}",
            ha="center",
            va="center_baseline",
            fontsize=min(10.0, 90 / len(cells)),
            # Where white on the cell and ink on the cell have the same contrast.
            color="#ffffff" if alpha > 0.75 else INK,
        )


def _heat_scale(fig: Figure, axes: Any, squares: Any) -> None:
    box = axes.get_position()
    bar = fig.colorbar(squares, cax=fig.add_axes((box.x1 + 0.03, box.y0, 0.022, box.height)))
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9)


def _framed(width: float, height: float, right: float, bottom: float, titled: bool) -> tuple[Figure, Any]:
    """A figure around axes of a fixed size in inches, with room for ticks, titles and what `right` needs."""
    left, top = LEFT, 0.88 if titled else 0.58
    full_width, full_height = left + width + right, bottom + height + top
    fig = Figure(figsize=(full_width, full_height))
    box = (left / full_width, bottom / full_height, width / full_width, height / full_height)
    return fig, fig.add_axes(box)


def _titles(fig: Figure, title: str, subtitle: str) -> None:
    width, height = fig.get_size_inches()
    left, second = EDGE / width, 0.56 if title else 0.24
    room = width - 2 * EDGE
    while title and (needed := _width([title], 13, "bold")) > room:
        title = f"{title[: int(len(title) * room / needed) - 1]}…"
    fig.text(left, 1 - 0.30 / height, title, fontsize=13, fontweight="bold", va="center")
    fig.text(left, 1 - second / height, subtitle, fontsize=9.5, color=MUTED, va="center")


def _width(texts: Sequence[str], size: float, weight: str = "normal") -> float:
    """The longest text in inches."""
    font = FontProperties(family="DejaVu Sans", weight=weight, size=size)
    return max(TextPath((0, 0), text, prop=font).get_extents().width for text in texts) / 72


def _title(grouped: list[Series]) -> str:
    parts = [set(values) for values in zip(*_places(grouped), strict=True)]
    return " · ".join(part.pop() for part in parts if len(part) == 1) or "Accuracy as classes arrive"


def _subtitle(grouped: list[Series]) -> str:
    counts = {len(series.records) for series in grouped}
    text = "Top-1 accuracy over all classes seen so far"
    if counts == {1}:
        return text
    number = str(counts.pop()) if len(counts) == 1 else "several"
    return f"{text}, mean ± s.d. of {number} seeds"


def _labels(grouped: list[Series]) -> list[str]:
    """A curve's name; its dataset, protocol or backbone is added where those differ in one picture."""
    varied = [len(set(values)) > 1 for values in zip(*_places(grouped), strict=True)]
    extras = [[part for part, vary in zip(s.place, varied, strict=True) if vary] for s in grouped]
    names = [" · ".join([series.label, *extra]) for series, extra in zip(grouped, extras, strict=True)]
    return [name if len(name) <= LABEL_LENGTH else f"{name[: LABEL_LENGTH - 1]}…" for name in names]


def _places(grouped: list[Series]) -> list[Place]:
    return [place_of(series.records[0]) for series in grouped]


def _band(series: Series) -> tuple[np.ndarray, np.ndarray]:
    curves = series.curves()
    mean = curves.mean(axis=0)
    half = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    return np.clip(mean - half, 0, 100), np.clip(mean + half, 0, 100)


def _thinned(values: Sequence[int], most: int) -> list[int]:
    """At most `most` ticks at equal steps, always with the last."""
    step = math.ceil(len(values) / most)
    return list(values)[::-1][::step][::-1]


def _render(fig: Figure, format: str, transparent: bool = False) -> bytes:
    out = io.BytesIO()
    with _style():
        fig.savefig(out, format=format, dpi=200, metadata=STAMPS[format], transparent=transparent)
    return out.getvalue()


@contextmanager
def _style() -> Iterator[None]:
    # From the defaults, not from a matplotlibrc that happens to lie around.
    with matplotlib.rc_context():
        matplotlib.rcParams.update({**matplotlib.rcParamsDefault, "backend": matplotlib.rcParams["backend"]})
        matplotlib.rcParams.update(STYLE)
        yield
