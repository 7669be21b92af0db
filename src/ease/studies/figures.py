"""The paper's figures in one place: curves, parameters, robustness, complement, subspaces, time, seeds.

Each function returns a matplotlib figure; `ease.studies.plots.save` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ease.errors import EaseError
from ease.studies.drawing import (
    EDGE,
    INK,
    LABEL_GAP,
    LABEL_SIZE,
    LEFT,
    LINES,
    MARKERS,
    MUTED,
    PALETTE,
    PAPER,
    accuracy_range,
    fading,
    framed,
    percent_axes,
    spread_apart,
    style,
    text_width,
    titles,
)
from ease.studies.panels import curve_panels
from ease.studies.parameters import parameters_against_accuracy
from ease.studies.plots import accuracy_curves, place_title, series_labels
from ease.studies.series import Record, Series, group
from ease.studies.subspaces import SubspaceView, two_subspaces
from ease.studies.tables import seconds_text

__all__ = [
    "SubspaceView",
    "against_k",
    "curve_panels",
    "heat_grid",
    "parameters_against_accuracy",
    "running_time",
    "seeds",
    "two_subspaces",
]

PHASES = {"train": "Training", "prototypes": "Prototypes", "evaluation": "Evaluation"}
HATCHES = ("", "////", "....")


# --- robustness -----------------------------------------------------------------------------------


def heat_grid(
    values: Any,
    row_label: str,
    rows: Sequence[object],
    column_label: str,
    columns: Sequence[object],
    title: str = "",
) -> Figure:
    """A figure for every pair of two settings, the best framed; NaN stays blank."""
    cells = np.asarray(values, dtype=float)
    if cells.shape != (len(rows), len(columns)) or not cells.size:
        raise EaseError(
            f"a grid of {len(rows)} rows and {len(columns)} columns cannot hold values of shape {cells.shape}"
        )
    known = [(r, c) for r, c in np.ndindex(cells.shape) if not np.isnan(cells[r, c])]
    if not known:
        raise EaseError("the grid holds no value: run the study first")
    low, high = (float(edge([cells[place] for place in known])) for edge in (min, max))
    best = f"{high:.2f}"

    with style():
        wide, tall = 0.72 * len(columns), 0.52 * len(rows)
        subtitle = "Best framed"
        needed = max(text_width([title], 13, "bold"), text_width([subtitle], LABEL_SIZE))
        right = max(0.2, needed + 2 * EDGE - LEFT - wide)
        fig, axes = framed(wide, tall, right=right, bottom=0.65, titled=bool(title))
        squares = PolyCollection(
            [[(c, r), (c + 1, r), (c + 1, r + 1), (c, r + 1)] for r, c in known],
            array=[cells[place] for place in known],
            cmap=fading(),
            edgecolors=PAPER,
            linewidth=1.5,
        )
        # From somewhat below the lowest, so that small differences do not look like collapse.
        squares.set_clim(low - 0.35 * max(high - low, 1.0), max(high, low + 1.0))
        axes.add_collection(squares)
        axes.set(xlim=(0, len(columns)), ylim=(len(rows), 0), xlabel=column_label, ylabel=row_label)
        axes.set_xticks(np.arange(len(columns)) + 0.5, labels=[str(name) for name in columns])
        axes.set_yticks(np.arange(len(rows)) + 0.5, labels=[str(name) for name in rows])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        for place in known:
            r, c = place
            text = f"{cells[place]:.2f}"
            first = text == best and best != f"{low:.2f}"
            *_, alpha = squares.to_rgba(cells[place])
            axes.text(
                c + 0.5,
                r + 0.5,
                text,
                ha="center",
                va="center_baseline",
                fontsize=9.5,
                fontweight="bold" if first else "normal",
                color="#ffffff" if alpha > 0.75 else INK,
            )
            if first:
                axes.add_patch(
                    Rectangle((c + 0.04, r + 0.04), 0.92, 0.92, fill=False, edgecolor=INK, linewidth=1.8)
                )
        titles(fig, title, subtitle)
    return fig


# --- complement -----------------------------------------------------------------------------------


def against_k(
    ks: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    constants: Mapping[str, float],
    title: str = "",
) -> Figure:
    """Accuracy over the number k of instances (log axis); what does not depend on k is a level line."""
    _check_ks(ks, curves, constants)
    ends = {**{name: float(values[-1]) for name, values in curves.items()}, **constants}
    everything = [float(v) for values in curves.values() for v in values] + [*constants.values()]
    width, height = 4.6, max(2.9, LABEL_GAP * len(ends))
    with style():
        right = text_width([f"{name}  00.00" for name in ends], LABEL_SIZE, "bold") + 0.45
        fig, axes = framed(width, height, right=right, bottom=0.65, titled=bool(title))
        axes.set_xscale("log")
        low, high = accuracy_range(everything)
        margin = (ks[-1] / ks[0]) ** 0.04 if len(ks) > 1 else 2.0
        axes.set(xlim=(ks[0] / margin, ks[-1] * margin), ylim=(low, high), xlabel="Instances k (log scale)")
        percent_axes(axes)
        axes.set_xticks(list(ks), labels=[str(k) for k in ks])
        axes.set_xticks([], minor=True)
        placed = spread_apart(list(ends.values()), LABEL_GAP * (high - low) / height, low, high)
        for number, ((name, end), at) in enumerate(zip(ends.items(), placed, strict=True)):
            colour = PALETTE[number % len(PALETTE)]
            if name in curves:
                axes.plot(
                    ks,
                    curves[name],
                    color=colour,
                    linewidth=2,
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=6.5,
                    markeredgecolor=PAPER,
                    clip_on=False,
                    label=name,
                    zorder=4,
                )
            else:
                line = LINES[1 + (number - len(curves)) % (len(LINES) - 1)]
                axes.axhline(end, color=colour, linewidth=1.7, linestyle=line, label=name, zorder=3)
            # A short leader in axes units beside the plot.
            axes.plot(
                [1.005, 1.045],
                [end, at],
                transform=axes.get_yaxis_transform(),
                color=colour,
                linewidth=1,
                clip_on=False,
            )
            axes.annotate(
                f"{end:.2f}  {name}",
                (1.045, at),
                xycoords=axes.get_yaxis_transform(),
                xytext=(3, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=LABEL_SIZE,
                annotation_clip=False,
            )
        titles(fig, title, "Accuracy (%); dashed lines do not depend on k")
    return fig


def _check_ks(
    ks: Sequence[int], curves: Mapping[str, Sequence[float]], constants: Mapping[str, float]
) -> None:
    if not ks or not (curves or constants):
        raise EaseError("there is nothing to draw over k: give values of k and at least one curve")
    if ks[0] <= 0 or any(b <= a for a, b in pairwise(ks)):
        raise EaseError(f"k must be positive and growing, not {list(ks)}")
    for name, values in curves.items():
        if len(values) != len(ks):
            raise EaseError(f"the curve '{name}' has {len(values)} values for {len(ks)} of k")
    if both := set(curves) & set(constants):
        raise EaseError(f"'{sorted(both)[0]}' is both a curve and a constant: rename one")


# --- time and seeds -------------------------------------------------------------------------------


def running_time(records: Sequence[Record], title: str | None = None) -> Figure:
    """How long each method took, by phase, the quickest first; seeds are averaged."""
    grouped = group(records)
    spent = [_seconds(series) for series in grouped]
    order = sorted(range(len(grouped)), key=lambda i: sum(spent[i]))
    labels = series_labels(grouped)
    longest = max(map(sum, spent))
    unit, name = next(
        ((u, n) for u, n in ((3600, "hours"), (60, "minutes")) if longest >= 3 * u), (1, "seconds")
    )

    width, bar = 4.8, 0.31
    height = max(0.9, bar * len(grouped))
    with style():
        left = text_width(labels, LABEL_SIZE, "bold") + 0.35
        fig, axes = framed(width, height, right=0.75, bottom=0.65, titled=title != "", left=left)
        for place, index in enumerate(order):
            start = 0.0
            for number, seconds in enumerate(spent[index]):
                axes.barh(
                    place,
                    seconds / unit,
                    left=start / unit,
                    height=0.66,
                    color=PALETTE[number],
                    # Colours alone merge in print.
                    hatch=HATCHES[number],
                    edgecolor=PAPER,
                    linewidth=0.8,
                )
                start += seconds
            axes.annotate(
                seconds_text(start / unit),
                (start / unit, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=LABEL_SIZE,
                annotation_clip=False,
            )
        axes.set(
            ylim=(len(grouped) - 0.45, -0.55), xlim=(0, longest / unit * 1.02), xlabel=f"Running time, {name}"
        )
        axes.set_yticks(range(len(grouped)), labels=[labels[i] for i in order])
        for tick, index in zip(axes.get_yticklabels(), order, strict=True):
            tick.set_color(INK)
            tick.set_fontsize(LABEL_SIZE)
            tick.set_fontweight("bold" if grouped[index].method == "ease" else "normal")
        axes.grid(axis="x")
        axes.tick_params(length=0, pad=6)
        axes.spines[:].set_visible(False)
        titles(fig, place_title(grouped) if title is None else title, "")
        _phase_key(fig, second=0.56 if title != "" else 0.24)
    return fig


def _seconds(series: Series) -> list[float]:
    """Of each phase, the mean over the seeds."""
    return [
        float(np.mean([record["seconds"].get(phase, 0) for record in series.records])) for phase in PHASES
    ]


def _phase_key(fig: Figure, second: float) -> None:
    """The phases' colours in the line of the subtitle."""
    width, height = fig.get_size_inches()
    x, y = EDGE, height - second
    for number, name in enumerate(PHASES.values()):
        fig.add_artist(
            Rectangle(
                (x / width, (y - 0.06) / height),
                0.2 / width,
                0.12 / height,
                facecolor=PALETTE[number],
                hatch=HATCHES[number],
                edgecolor=PAPER,
                linewidth=0.8,
            )
        )
        fig.text((x + 0.27) / width, y / height, name, fontsize=LABEL_SIZE, color=MUTED, va="center")
        x += 0.27 + text_width([name], LABEL_SIZE) + 0.25


def seeds(records: Sequence[Record], title: str | None = None) -> Figure:
    """Mean curves with a band of one standard deviation over the seeds."""
    if all(len(series.records) == 1 for series in group(records)):
        raise EaseError("every method has one seed here: run at least one of them with several")
    return accuracy_curves(records, title)
