"""Grids of figures as heat: two settings against one another, methods against tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.experiments.metrics import task_forgetting
from ease.experiments.record import RunRecord
from ease.reporting.figures.curves import common_title, series_labels
from ease.reporting.figures.drawing import (
    EDGE,
    INK,
    LABEL_SIZE,
    LEFT,
    LOSS,
    framed,
    heat_cells,
    style,
    text_width,
    thinned,
    titles,
    write_cells,
)
from ease.reporting.series import group


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
    if np.isnan(cells).all():
        raise EaseError("the grid holds no value: run the study first")
    low, high = float(np.nanmin(cells)), float(np.nanmax(cells))
    best = f"{high:.2f}" if f"{high:.2f}" != f"{low:.2f}" else None
    names = [str(name) for name in rows]

    with style():
        wide, tall = 0.72 * len(columns), 0.52 * len(rows)
        subtitle = "Best framed" if best else ""
        left = max(LEFT, text_width(names, 10) + 0.5)
        needed = max(text_width([title], 13, "bold"), text_width([subtitle], LABEL_SIZE))
        right = max(0.2, needed + 2 * EDGE - left - wide)
        fig, axes = framed(wide, tall, right=right, bottom=0.65, titled=bool(title), left=left)
        # From somewhat below the lowest, so that small differences do not look like collapse.
        span = (low - 0.35 * max(high - low, 1.0), max(high, low + 1.0))
        squares = heat_cells(axes, cells, span)
        axes.set(xlabel=column_label, ylabel=row_label)
        axes.set_xticks(np.arange(len(columns)) + 0.5, labels=[str(name) for name in columns])
        axes.set_yticks(np.arange(len(rows)) + 0.5, labels=names)
        write_cells(axes, cells, squares, digits=2, size=9.5, best=best)
        titles(fig, title, subtitle)
    return fig


def forgetting_by_task(records: Sequence[RunRecord], title: str | None = None) -> Figure:
    """How many points each task (column) has fallen from its best, a row per method; seeds are averaged."""
    grouped = group(records)
    labels = series_labels(grouped)
    lost = [task_forgetting(series.mean_per_task()) for series in grouped]
    count = max(map(len, lost))
    if not count:
        raise EaseError("nothing can be forgotten in a single task: give runs with several")
    cells = np.full((len(lost), count), np.nan)
    for row, values in enumerate(lost):
        cells[row, : len(values)] = np.array(values, dtype=float)
    # None, a task without test images, has become NaN.
    worst = float(np.nanmax(cells)) if not np.isnan(cells).all() else 0.0

    with style():
        each = max(0.3, min(0.56, 5.6 / count))
        wide, tall = each * count, 0.3 * len(grouped)
        left = text_width(labels, LABEL_SIZE, "bold") + 0.35
        subtitle = "Points each task has fallen from its best to the last stage"
        right = max(0.2, text_width([subtitle], LABEL_SIZE) + 2 * EDGE - left - wide)
        fig, axes = framed(wide, tall, right=right, bottom=0.6, titled=title != "", left=left)
        squares = heat_cells(axes, cells, (0, max(worst, 10.0)), colour=LOSS)
        axes.set_xlabel("Task")
        ticks = thinned(range(1, count + 1), 20)
        axes.set_xticks([tick - 0.5 for tick in ticks], labels=[str(tick) for tick in ticks])
        axes.set_yticks(np.arange(len(grouped)) + 0.5, labels=labels)
        for tick, series in zip(axes.get_yticklabels(), grouped, strict=True):
            tick.set(color=INK, fontsize=LABEL_SIZE)
            tick.set_fontweight("bold" if series.method == "ease" else "normal")
        # Adding 0 turns -0 into 0.
        write_cells(axes, np.round(cells) + 0.0, squares, digits=0, size=9)
        titles(fig, common_title(grouped) if title is None else title, subtitle)
    return fig
