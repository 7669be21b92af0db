"""Pictures of records: the accuracy curve of a study and the stage-by-task map of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ease.experiments.record import RunRecord
from ease.reporting.figures.drawing import (
    EDGE,
    LABEL_GAP,
    LABEL_LENGTH,
    LABEL_SIZE,
    LEFT,
    MethodStyle,
    framed,
    heat_cells,
    heat_scale,
    method_styles,
    spread_apart,
    style,
    text_width,
    thinned,
    titles,
    write_cells,
)
from ease.reporting.series import BenchmarkKey, Series, benchmark_of, group, remarks

PerTask = Sequence[Sequence[float | None]]
"""Accuracies [stage][task]; None for a task without test images."""


def accuracy_curves(records: Sequence[RunRecord], title: str | None = None, width: float = 5.5) -> Figure:
    """Top-1 over the number of classes seen, one curve per method; several seeds become a mean and a band.

    `title` "" leaves the title to the page around it; `width` is that of the plot itself in inches.
    """
    grouped = group(records)
    labels = series_labels(grouped)
    with style():
        # The names stand one above the other at the right: many make the figure taller, long ones wider.
        height = max(3.1, LABEL_GAP * len(grouped))
        subtitle = _subtitle(grouped)
        names = text_width(labels, LABEL_SIZE, "bold") + 0.95
        words = text_width([subtitle], LABEL_SIZE) + 2 * EDGE - LEFT - width
        fig, axes = framed(width, height, right=max(names, words), bottom=0.65, titled=title != "")
        curve_axes(axes, grouped, ticks=max(3, round(2 * width)))
        found = series_styles(grouped)
        for series, look in zip(grouped, found, strict=True):
            draw_curve(axes, series, look)
        _end_labels(axes, grouped, labels, found, height)
        titles(fig, common_title(grouped) if title is None else title, subtitle)
    return fig


def task_heatmap(per_task: PerTask, title: str, lowest: float | None = None) -> Figure:
    """A map of the accuracy on each task (columns) after each stage (rows).

    Args:
        per_task: accuracies [stage][task], as in `RunRecord.per_task`.
        title: of the figure; "" leaves the title to the page around it.
        lowest: where the colours begin.
    """
    count = len(per_task)
    cells = np.full((count, count), np.nan)
    for stage, row in enumerate(per_task):
        # None, a task without test images, becomes NaN and stays blank.
        cells[stage, : len(row)] = np.array(row, dtype=float)
    floor = heat_floor([per_task]) if lowest is None else lowest

    with style():
        numbers = count <= 12
        fig, axes = framed(3.3, 3.3, right=0.2 if numbers else 0.85, bottom=0.6, titled=title != "")
        squares = heat_cells(axes, cells, (floor, 100), edge=min(1.5, 15 / count))
        axes.set(xlabel="Task", ylabel="After stage")
        ticks = thinned(range(1, count + 1), 12)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([tick - 0.5 for tick in ticks], labels=[str(tick) for tick in ticks])
        if numbers:
            write_cells(axes, cells, squares, digits=1 if count <= 6 else 0, size=min(10.0, 90 / count))
        else:
            heat_scale(fig, axes, squares)
        titles(fig, title, "Accuracy (%) on each task after each stage")
    return fig


def heat_floor(maps: Sequence[PerTask]) -> float:
    """Where the colours of several maps begin if they are to be compared: the lowest cell, rounded down."""
    known = [cell for per_task in maps for row in per_task for cell in row if cell is not None]
    return min(90.0, 10.0 * math.floor(min(known, default=0.0) / 10))


def series_styles(grouped: Sequence[Series]) -> list[MethodStyle]:
    """A style for each series; EASE, the method this package is about, stands out."""
    return method_styles([series.kind for series in grouped], [series.method == "ease" for series in grouped])


def curve_axes(axes: Any, grouped: list[Series], ticks: int) -> None:
    """Axes for accuracy over classes seen that hold all of these series."""
    low = min(float(band(series)[0].min()) for series in grouped)
    high = max(float(band(series)[1].max()) for series in grouped)
    bottom = max(0, 10 * math.floor((low - 2) / 10))
    top = min(100, max(bottom + 10, 10 * math.ceil((high + 1) / 10)))
    seen = sorted({count for series in grouped for count in series.classes_seen})
    margin = 0.03 * (seen[-1] - seen[0]) or 1
    axes.set(xlim=(seen[0] - margin, seen[-1] + margin), ylim=(bottom, top))
    axes.set_xticks(thinned(seen, ticks))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}%")
    axes.set_xlabel("Classes seen")
    axes.grid(axis="y")
    axes.tick_params(length=0, pad=6)
    axes.spines[["left", "right", "top"]].set_visible(False)


def draw_curve(axes: Any, series: Series, look: MethodStyle, size: float = 1.0) -> None:
    """Mean accuracy over the classes seen, with a band where there are several seeds."""
    seen, mean = series.classes_seen, series.curves().mean(axis=0)
    if len(series.records) > 1:
        axes.fill_between(seen, *band(series), color=look.colour, alpha=0.16, linewidth=0, zorder=2)
    # Beyond some stages markers would touch and hide the line.
    crowded = {"markersize": 0} if len(seen) > 25 else {}
    # A point at 100 % sits on the edge of the plot and must not be cut in half.
    axes.plot(seen, mean, clip_on=False, label=series.label, **{**look.line_style(size), **crowded})


def _end_labels(
    axes: Any, grouped: list[Series], labels: list[str], found: list[MethodStyle], height: float
) -> None:
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
            color=found[number].colour,
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


def common_title(grouped: list[Series]) -> str:
    """What all series have in common of dataset, protocol and backbone."""
    parts = [set(values) for values in zip(*_benchmarks(grouped), strict=True)]
    return " · ".join(part.pop() for part in parts if len(part) == 1) or "Accuracy as classes arrive"


def _subtitle(grouped: list[Series]) -> str:
    counts = {len(series.records) for series in grouped}
    text = "Top-1 accuracy over all classes seen so far"
    if counts != {1}:
        number = str(counts.pop()) if len(counts) == 1 else "several"
        text = f"{text}, mean ± s.d. of {number} seeds"
    return ". ".join([text, *(remark[0].removesuffix(".") for remark in remarks(grouped))])


def series_labels(grouped: list[Series]) -> list[str]:
    """A curve's name; its dataset, protocol or backbone is added where those differ in one picture."""
    varied = [len(set(values)) > 1 for values in zip(*_benchmarks(grouped), strict=True)]
    extras = [[part for part, vary in zip(s.benchmark, varied, strict=True) if vary] for s in grouped]
    names = [" · ".join([series.label, *extra]) for series, extra in zip(grouped, extras, strict=True)]
    return [name if len(name) <= LABEL_LENGTH else f"{name[: LABEL_LENGTH - 1]}…" for name in names]


def _benchmarks(grouped: list[Series]) -> list[BenchmarkKey]:
    return [benchmark_of(series.records[0]) for series in grouped]


def band(series: Series) -> tuple[np.ndarray, np.ndarray]:
    """One standard deviation around the mean, within 0 and 100."""
    curves = series.curves()
    mean = curves.mean(axis=0)
    half = curves.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    return np.clip(mean - half, 0, 100), np.clip(mean + half, 0, 100)
