"""What a method costs against what it achieves, every point with its name beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ease.errors import EaseError, unknown
from ease.experiments.record import RunRecord
from ease.reporting.figures.curves import common_title, series_labels, series_styles
from ease.reporting.figures.drawing import (
    LABEL_SIZE,
    MUTED,
    MethodStyle,
    accuracy_range,
    framed,
    percent_axes,
    style,
    text_width,
    titles,
)
from ease.reporting.series import group
from ease.reporting.tables import count_text


@dataclass(frozen=True)
class Cost:
    """Something that a run costs: how an axis names it, and how it is read from a record."""

    axis: str
    read: Callable[[RunRecord], float | None]


COSTS = {
    "stored": Cost("Parameters stored", lambda r: r.parameters.stored),
    "trained": Cost("Parameters trained", lambda r: r.parameters.trained_in_all),
    "learning": Cost("CPU seconds of learning, all tasks", lambda r: r.seconds.learning_cpu),
}


CROWDED = 12
"""More points than this get a larger figure."""


def accuracy_against_cost(
    records: Sequence[RunRecord], cost: str = "stored", title: str | None = None
) -> Figure:
    """A_B over what a method costs; the seeds of a method are averaged.

    Hollow markers keep exemplars. A method that costs nothing stands at the left edge, marked 0.

    Args:
        records: of one benchmark.
        cost: one of `COSTS`.
        title: above the figure; by default what all records have in common, and none if empty.
    """
    if cost not in COSTS:
        raise unknown("cost", cost, COSTS)
    grouped, asked = group(records), COSTS[cost]
    labels, found = series_labels(grouped), series_styles(grouped)
    measured = [series.values(asked.read) for series in grouped]
    if not all(measured):
        raise EaseError(f"a record does not say its {asked.axis.lower()}: run it again with this version")
    amounts = [float(np.mean(values)) for values in measured]
    ends = [float(series.curves()[:, -1].mean()) for series in grouped]

    width, height = (5.8, 3.8) if len(grouped) <= CROWDED else (8.4, 5.2)
    with style():
        fig, axes = framed(width, height, right=0.3, bottom=0.65, titled=title != "")
        low, high = accuracy_range(ends)
        x, (left, right), none = _log_places(amounts)
        axes.set(xlim=(left, right), ylim=(low, high), xlabel=f"{asked.axis} (log scale)")
        percent_axes(axes)
        first = left if none is None else none + 0.1 * (right - left)
        ticks = [(at, count_text(round(10**at, 6))) for at in _log_ticks(left, right) if at > first]
        if none is not None:
            ticks.insert(0, (none, "0"))
        axes.set_xticks([at for at, _ in ticks], labels=[text for _, text in ticks])
        for at, end, look in zip(x, ends, found, strict=True):
            _scatter_point(axes, at, end, look)
        # Labels are placed in inches, where their sizes are known.
        points = [
            (width * (a - left) / (right - left), height * (e - low) / (high - low))
            for a, e in zip(x, ends, strict=True)
        ]
        weights = ["bold" if look.main else "normal" for look in found]
        sizes = [text_width([label], LABEL_SIZE, w) for label, w in zip(labels, weights, strict=True)]
        centres = place_labels(points, sizes, LABEL_SIZE / 72, (width, height))
        for label, weight, point, centre, size in zip(labels, weights, points, centres, sizes, strict=True):
            _point_label(axes, label, weight, point, centre, size, (width, height))
        hollow = any(series.kind == "exemplar-based" for series in grouped)
        words = "Top-1 accuracy after the last stage" + ("; hollow: keeps exemplars" if hollow else "")
        titles(fig, common_title(grouped) if title is None else title, words)
    return fig


def _log_places(amounts: Sequence[float]) -> tuple[list[float], tuple[float, float], float | None]:
    """Where amounts stand on a log axis, its ends, and where nothing at all (0) stands, if anything does."""
    logs = [math.log10(amount) if amount > 0 else None for amount in amounts]
    known = [value for value in logs if value is not None] or [0.0]
    span = max(max(known) - min(known), 0.6)
    left, right = min(known) - 0.09 * span, max(known) + 0.09 * span
    if None not in logs:
        return [value for value in logs if value is not None], (left, right), None
    none = left - max(0.09 * span, 0.36)  # far enough for two ticks side by side
    return [none if value is None else value for value in logs], (none - 0.07 * span, right), none


def _log_ticks(left: float, right: float) -> list[float]:
    """Whole decades, and 2 and 5 times them where there are less than three of those between the ends."""
    decades = range(math.floor(left), math.floor(right) + 1)
    for factors in ((1,), (1, 2, 5)):
        found = [d + math.log10(factor) for d in decades for factor in factors]
        ticks = [at for at in found if left <= at <= right]
        if len(ticks) >= 3:
            break
    return ticks


def _scatter_point(axes: Any, x: float, y: float, look: MethodStyle) -> None:
    drawn = look.line_style(1.35)
    axes.plot([x], [y], clip_on=False, **{**drawn, "linestyle": ""})


def _point_label(
    axes: Any,
    label: str,
    weight: str,
    point: tuple[float, float],
    centre: tuple[float, float],
    size: float,
    box: tuple[float, float],
) -> None:
    def share(spot: tuple[float, float]) -> tuple[float, float]:
        return spot[0] / box[0], spot[1] / box[1]

    # A leader only where the label had to move away, from the marker to the nearest edge of the text.
    edge = (min(max(point[0], centre[0] - size / 2), centre[0] + size / 2), centre[1])
    if math.dist(point, edge) > 0.24:
        tip = (edge[0], centre[1] + math.copysign(0.08, point[1] - centre[1]))
        axes.plot(
            *zip(share(point), share(tip), strict=True),
            transform=axes.transAxes,
            color=MUTED,
            linewidth=0.7,
            zorder=1,
            clip_on=False,
        )
    axes.text(
        *share(centre),
        label,
        transform=axes.transAxes,
        ha="center",
        va="center_baseline",
        fontsize=LABEL_SIZE,
        fontweight=weight,
        zorder=6,
    )


Spot = tuple[float, float]
CLEAR = 0.085  # inches: half a marker


def place_labels(
    points: Sequence[Spot], widths: Sequence[float], height: float, box: Spot
) -> list[tuple[float, float]]:
    """Where the labels of points go (their centres, in the points' units) so that nothing overlaps.

    Each takes the first free spot on growing rings around its point, the most crowded points first. A spot is
    free if it is inside the box (from 0, 0) and no other label or point lies there. Near spots that no leader
    crosses come first. Where nothing is free the label stays beside its point.
    """
    crowd = [sum(math.dist(a, b) < 4 * height for b in points) for a in points]
    placed: dict[int, Spot] = {}

    def free(index: int, centre: Spot, uncrossed: bool) -> bool:
        (x, y), half = centre, widths[index] / 2
        if not (half <= x <= box[0] - half and height / 2 <= y <= box[1] - height / 2):
            return False
        if any(abs(x - px) < half + CLEAR and abs(y - py) < height / 2 + CLEAR for px, py in points):
            return False
        return all(
            (abs(x - ox) >= half + widths[other] / 2 + 0.04 or abs(y - oy) >= height * 1.15)
            and not (
                uncrossed
                and (
                    _runs_through(points[index], centre, (ox, oy), widths[other], height)
                    or _runs_through(points[other], (ox, oy), centre, widths[index], height)
                )
            )
            for other, (ox, oy) in placed.items()
        )

    for index in sorted(range(len(points)), key=lambda i: -crowd[i]):
        (x, y), half = points[index], widths[index] / 2
        beside = (min(x + CLEAR + half, box[0] - half), y)
        tries = (
            spot
            for rings, uncrossed in ((12, True), (40, False))
            for spot in _spots(x, y, half, height / 2, rings)
            if free(index, spot, uncrossed)
        )
        placed[index] = next(tries, beside)
    return [placed[index] for index in range(len(points))]


def _spots(x: float, y: float, half: float, up: float, rings: int) -> Iterator[Spot]:
    """Centres for a label around a point: beside it, above and below, at the corners, then further away."""
    for ring in range(rings):
        reach = CLEAR + 0.025 + 0.07 * ring
        for across, along in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)):
            slant = 0.6 if across and along else 1.0
            yield x + across * (half + reach * slant), y + along * (up + reach * slant)
        # Steeper and flatter ones, for which there is room only further out.
        for across, slope in ((1, 0.5), (1, -0.5), (-1, 0.5), (-1, -0.5)) if ring > 3 else ():
            yield x + across * (half + reach), y + slope * (up + reach)


def _runs_through(point: Spot, label: Spot, other: Spot, width: float, height: float) -> bool:
    """Whether the way from a point to its label leads through another label."""
    return any(
        abs(point[0] + share * (label[0] - point[0]) - other[0]) < width / 2
        and abs(point[1] + share * (label[1] - point[1]) - other[1]) < height / 2
        for share in (number / 24 for number in range(25))
    )
