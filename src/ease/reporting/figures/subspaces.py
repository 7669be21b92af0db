"""Images and prototypes as two subspaces see them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.reporting.figures.drawing import EDGE, GRID, INK, LABEL_SIZE, MUTED, PALETTE, style, text_width

# Light and dark turns of the palette: ten classes are the usual number, and neighbours should differ most.
CLASS_COLOURS = (*PALETTE, "#004c78", "#8a3d00", "#005c43", "#7d3c61", "#7a5400", "#9a9a9a")


@dataclass(frozen=True)
class SubspaceView:
    """Images and prototypes in one subspace, laid out in the plane (by t-SNE, say).

    `points` [N, 2] with `labels` [N], `prototypes` [C, 2] with `prototype_labels` [C]; a label is a position in
    `classes`. With `class_tasks`, one task number per class, images of later tasks are triangles.
    """

    points: np.ndarray
    labels: Sequence[int]
    prototypes: np.ndarray
    prototype_labels: Sequence[int]
    title: str
    classes: Sequence[str]
    class_tasks: Sequence[int] | None = None


def two_subspaces(panels: Sequence[SubspaceView]) -> Figure:
    """The paper's figure: images as dots, of later tasks as triangles, coloured by class; prototypes as stars."""
    if not panels:
        raise EaseError("there is no subspace to draw: give at least one view")
    for view in panels:
        _check_view(view)
    names = list(dict.fromkeys(str(name) for view in panels for name in view.classes))
    marks = {str(name): _mark(view, label) for view in panels for label, name in enumerate(view.classes)}
    side, across, top = 3.1, 0.3, 0.5
    with style():
        wide = 2 * EDGE + len(panels) * side + (len(panels) - 1) * across
        each = text_width(names, LABEL_SIZE) + 0.42
        columns = max(1, min(len(names), int((wide - 2 * EDGE) / each)))
        lines = math.ceil(len(names) / columns) + 1
        bottom = 0.22 + 0.235 * lines
        tall = top + side + bottom
        fig = Figure(figsize=(wide, tall))
        for number, view in enumerate(panels):
            left = EDGE + number * (side + across)
            axes: Any = fig.add_axes((left / wide, bottom / tall, side / wide, side / tall))
            _draw_view(axes, view, names)
        legend: Any = fig.add_axes((EDGE / wide, 0, 1 - 2 * EDGE / wide, (bottom - 0.12) / tall))
        legend.set(xlim=(0, wide - 2 * EDGE), ylim=(bottom - 0.12, 0))
        legend.axis("off")
        for number, name in enumerate(names):
            row, column = divmod(number, columns)
            x, y = column * each + 0.08, 0.12 + 0.235 * row
            legend.plot([x], [y], marks[name], color=_class_colour(number), markersize=6.5, clip_on=False)
            legend.text(x + 0.14, y, name, va="center_baseline", fontsize=LABEL_SIZE)
        several = any(view.class_tasks and len(set(view.class_tasks)) > 1 for view in panels)
        words = "dots: images of the first task, triangles: of later ones" if several else "dots: images"
        legend.text(
            0,
            0.12 + 0.235 * (lines - 1),
            f"{words}, stars: prototypes",
            va="center_baseline",
            fontsize=LABEL_SIZE,
            color=MUTED,
        )
    return fig


def _draw_view(axes: Any, view: SubspaceView, names: list[str]) -> None:
    points, labels = np.asarray(view.points, dtype=float), np.asarray(view.labels, dtype=int)
    size = 26 if len(points) <= 300 else 14
    for label, name in enumerate(view.classes):
        mine = points[labels == label]
        colour = _class_colour(names.index(str(name)))
        mark = _mark(view, label)
        axes.scatter(
            mine[:, 0],
            mine[:, 1],
            s=size * (1.2 if mark == "^" else 1),  # a triangle fills less than a dot
            marker=mark,
            color=colour,
            linewidths=0,
            alpha=0.85,
            label=str(name),
        )
    prototypes = np.asarray(view.prototypes, dtype=float).reshape(-1, 2)
    colours = [_class_colour(names.index(str(view.classes[label]))) for label in view.prototype_labels]
    # Edged in ink: they must be found among hundreds of dots of their own colour.
    axes.scatter(*prototypes.T, s=150, marker="*", c=colours, edgecolors=INK, linewidths=1.2, zorder=5)
    axes.margins(0.07)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(GRID)
    axes.set_title(view.title, fontsize=10.5, fontweight="bold", color=INK, loc="left", pad=8)


def _mark(view: SubspaceView, label: int) -> str:
    """Dots for the first task, triangles for later ones."""
    tasks = view.class_tasks or [0] * len(view.classes)
    return "^" if tasks[label] > min(tasks) else "o"


def _class_colour(number: int) -> str:
    return CLASS_COLOURS[number % len(CLASS_COLOURS)]


def _check_view(view: SubspaceView) -> None:
    points, prototypes = np.asarray(view.points), np.asarray(view.prototypes)
    for what, places, labels in (
        ("images", points, view.labels),
        ("prototypes", prototypes, view.prototype_labels),
    ):
        if places.size and (places.ndim != 2 or places.shape[1] != 2):
            raise EaseError(f"'{view.title}': {what} must be points of the plane, not {places.shape}")
        if len(places) != len(labels):
            raise EaseError(f"'{view.title}': {len(places)} {what} have {len(labels)} labels")
        if len(labels) and not 0 <= min(labels) <= max(labels) < len(view.classes):
            raise EaseError(
                f"'{view.title}': a label of the {what} names none of {len(view.classes)} classes"
            )
    if view.class_tasks is not None and len(view.class_tasks) != len(view.classes):
        raise EaseError(f"'{view.title}': {len(view.classes)} classes have {len(view.class_tasks)} tasks")
