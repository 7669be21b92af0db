"""Curves of several streams side by side, with one legend: the paper's main figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.experiments.record import RunRecord
from ease.reporting.figures.curves import curve_axes, draw_curve, series_styles
from ease.reporting.figures.drawing import (
    EDGE,
    INK,
    KINDS,
    LABEL_SIZE,
    MUTED,
    PAPER,
    MethodStyle,
    style,
    text_width,
)
from ease.reporting.series import Series, group

# Inches: around the panels, between them, and in the legend.
LEFT, RIGHT, TOP, ACROSS, DOWN, TICKS = 0.78, 0.12, 0.42, 0.64, 0.68, 0.56
LINE, HANDLE, BREAK = 0.235, 0.46, 0.09
GAP_ROOM = 0.5
SIZES = {1: (5.2, 3.4), 2: (3.7, 2.7)}
USUAL = (3.0, 2.2)


def curve_panels(panels: Sequence[tuple[str, Sequence[RunRecord]]]) -> Figure:
    """Accuracy over the classes seen, one panel per (title, records), a method looking the same in all.

    The bracket at the end of a panel says by how many points the best is above the runner-up after the last
    stage; ceilings do not compete.
    """
    if not panels:
        raise EaseError("there is no panel to draw: give at least one title with its records")
    grouped = [(title, group(records)) for title, records in panels]
    first: dict[str, Series] = {}
    for _, members in grouped:
        for series in members:
            first.setdefault(series.label, series)
    found = dict(zip(first, series_styles(list(first.values())), strict=True))

    columns = len(panels) if len(panels) <= 3 else 2 if len(panels) == 4 else 3
    rows = math.ceil(len(panels) / columns)
    width, height = SIZES.get(columns, USUAL)
    with style():
        full_width = LEFT + columns * width + (columns - 1) * ACROSS + RIGHT
        legend = _legend_lines(first, full_width - 2 * EDGE)
        legend_height = _legend_height(legend)
        full_height = TOP + rows * height + (rows - 1) * DOWN + TICKS + legend_height
        fig = Figure(figsize=(full_width, full_height))
        for number, (title, members) in enumerate(grouped):
            row, column = divmod(number, columns)
            left, top = LEFT + column * (width + ACROSS), TOP + row * (height + DOWN)
            axes = fig.add_axes(
                (
                    left / full_width,
                    1 - (top + height) / full_height,
                    width / full_width,
                    height / full_height,
                )
            )
            curve_axes(axes, members, ticks=round(1.9 * width))
            for series in members:
                draw_curve(axes, series, found[series.label], size=0.72 if columns > 1 else 0.9)
            _mark_gap(axes, members, width)
            axes.set_title(title, fontsize=10.5, fontweight="bold", color=INK, loc="left", pad=9)
            # Under the lowest panel of a column, which in an uneven grid is not always in the last row.
            if number + columns < len(panels):
                axes.set_xlabel("")
            if column == 0:
                axes.set_ylabel("Accuracy")
        _draw_legend(fig, legend, found, legend_height)
    return fig


def end_gap(members: Sequence[Series]) -> tuple[float, float] | None:
    """Last accuracies of the runner-up and the best; None where fewer than two compete to the end."""
    reached = max(series.classes_seen[-1] for series in members)
    competing = (s for s in members if s.kind != "ceiling" and s.classes_seen[-1] == reached)
    ends = sorted(float(series.curves()[:, -1].mean()) for series in competing)
    return (ends[-2], ends[-1]) if len(ends) > 1 else None


def _mark_gap(axes: Any, members: Sequence[Series], width: float) -> None:
    ends = end_gap(members)
    left, right = axes.get_xlim()
    inch = (right - left) / (width - GAP_ROOM)
    # Room for the bracket inside the panel, so that it cannot run into the neighbour.
    axes.set_xlim(left, right + GAP_ROOM * inch)
    if ends is None:
        return
    low, high = ends
    points = high - low
    at, tip = right + 0.10 * inch, right + 0.04 * inch
    axes.plot([tip, at, at, tip], [low, low, high, high], color=INK, linewidth=1, clip_on=False, zorder=6)
    axes.annotate(
        f"+{points:.1f}" if points >= 0.1 or points == 0 else f"+{points:.2f}",
        (at, (low + high) / 2),
        xytext=(3, 0),
        textcoords="offset points",
        va="center_baseline",
        fontsize=9,
        fontweight="bold",
        annotation_clip=False,
        zorder=6,
        bbox={"boxstyle": "square,pad=0.1", "facecolor": PAPER, "edgecolor": "none"},
    )


def _legend_lines(first: Mapping[str, Series], room: float) -> list[tuple[str, list[list[str]]]]:
    """Each kind with its names, broken into lines of equally wide columns."""
    kinds = {kind: [name for name, series in first.items() if series.kind == kind] for kind in KINDS}
    kinds = {kind: names for kind, names in kinds.items() if names}
    heads = text_width([_head(kind) for kind in kinds], LABEL_SIZE) + 0.25 if len(kinds) > 1 else 0.0
    each = HANDLE + text_width(list(first), LABEL_SIZE, "bold") + 0.28
    columns = max(1, int((room - heads) / each))
    return [
        (kind, [names[start : start + columns] for start in range(0, len(names), columns)])
        for kind, names in kinds.items()
    ]


def _legend_height(legend: list[tuple[str, list[list[str]]]]) -> float:
    lines = sum(len(names) for _, names in legend)
    return 0.22 + lines * LINE + (len(legend) - 1) * BREAK


def _draw_legend(
    fig: Figure, legend: list[tuple[str, list[list[str]]]], found: Mapping[str, MethodStyle], height: float
) -> None:
    full_width, full_height = fig.get_size_inches()
    # Axes whose units are inches, from the top left.
    axes: Any = fig.add_axes((EDGE / full_width, 0, 1 - 2 * EDGE / full_width, height / full_height))
    axes.set(xlim=(0, full_width - 2 * EDGE), ylim=(height, 0))
    axes.axis("off")
    heads = text_width([_head(kind) for kind, _ in legend], LABEL_SIZE) + 0.25 if len(legend) > 1 else 0.0
    each = HANDLE + text_width(list(found), LABEL_SIZE, "bold") + 0.28
    y = LINE / 2
    for kind, lines in legend:
        if heads:
            axes.text(0, y, _head(kind), color=MUTED, va="center_baseline", fontsize=LABEL_SIZE)
        for names in lines:
            for column, name in enumerate(names):
                x, look = heads + column * each, found[name]
                drawn = look.line_style(0.85)
                axes.plot([x, x + HANDLE - 0.1], [y, y], clip_on=False, **{**drawn, "marker": ""})
                axes.plot([x + (HANDLE - 0.1) / 2], [y], clip_on=False, **drawn)
                axes.text(
                    x + HANDLE,
                    y,
                    name,
                    va="center_baseline",
                    fontsize=LABEL_SIZE,
                    fontweight="bold" if look.main else "normal",
                )
            y += LINE
        y += BREAK


def _head(kind: str) -> str:
    return kind.capitalize()
