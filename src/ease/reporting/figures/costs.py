"""What each method spent, by phase."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from ease.experiments.record import ForwardPasses, RunRecord, RunSeconds
from ease.reporting.figures.curves import common_title, series_labels
from ease.reporting.figures.drawing import (
    EDGE,
    INK,
    LABEL_SIZE,
    MUTED,
    PALETTE,
    PAPER,
    framed,
    style,
    text_width,
    titles,
)
from ease.reporting.series import Series, group
from ease.reporting.tables import count_text, seconds_text

PHASES = {"train": "Training", "prototypes": "Prototypes", "evaluation": "Evaluation"}
# Colours alone merge in print.
HATCHES = ("", "////", "....")


def running_time(records: Sequence[RunRecord], title: str | None = None, width: float = 4.8) -> Figure:
    """How long each method took, by phase, the quickest first; seeds are averaged."""
    grouped = group(records)
    spent = [_by_phase(series, lambda record: record.seconds) for series in grouped]
    longest = max(map(sum, spent))
    units = ((3600, "hours"), (60, "minutes"))
    unit, name = next((pair for pair in units if longest >= 3 * pair[0]), (1, "seconds"))
    amounts = [[seconds / unit for seconds in phases] for phases in spent]
    return _bars(grouped, amounts, f"Running time, {name}", seconds_text, title, width)


def passes_by_phase(records: Sequence[RunRecord], title: str | None = None, width: float = 4.8) -> Figure:
    """How many images each method sent through the backbone, once per subspace, by phase, the fewest first."""
    grouped = group(records)
    amounts = [_by_phase(series, lambda record: record.forward_passes) for series in grouped]
    return _bars(grouped, amounts, "Forward passes (images × subspaces)", count_text, title, width)


def _by_phase(series: Series, part: Callable[[RunRecord], RunSeconds | ForwardPasses]) -> list[float]:
    """The amount of each phase, averaged over the seeds."""
    parts = [part(record) for record in series.records]
    return [float(np.mean([getattr(each, phase) or 0 for each in parts])) for phase in PHASES]


def _bars(
    grouped: list[Series],
    amounts: list[list[float]],
    what: str,
    show: Callable[[float], str],
    title: str | None,
    width: float,
) -> Figure:
    order = sorted(range(len(grouped)), key=lambda index: sum(amounts[index]))
    labels = series_labels(grouped)
    longest = max(map(sum, amounts)) or 1.0
    with style():
        left = text_width(labels, LABEL_SIZE, "bold") + 0.35
        height = max(0.9, 0.31 * len(grouped))
        fig, axes = framed(width, height, right=0.75, bottom=0.65, titled=title != "", left=left)
        for place, index in enumerate(order):
            start = 0.0
            for number, amount in enumerate(amounts[index]):
                axes.barh(
                    place,
                    amount,
                    left=start,
                    height=0.66,
                    color=PALETTE[number],
                    hatch=HATCHES[number],
                    edgecolor=PAPER,
                    linewidth=0.8,
                )
                start += amount
            axes.annotate(
                show(start),
                (start, place),
                xytext=(4, 0),
                textcoords="offset points",
                va="center_baseline",
                fontsize=LABEL_SIZE,
                annotation_clip=False,
            )
        axes.set(ylim=(len(grouped) - 0.45, -0.55), xlim=(0, longest * 1.02), xlabel=what)
        axes.xaxis.set_major_formatter(lambda value, _: count_text(value))
        axes.set_yticks(range(len(grouped)), labels=[labels[index] for index in order])
        for tick, index in zip(axes.get_yticklabels(), order, strict=True):
            tick.set(color=INK, fontsize=LABEL_SIZE)
            tick.set_fontweight("bold" if grouped[index].method == "ease" else "normal")
        axes.locator_params(axis="x", nbins=max(3, round(1.4 * width)))
        axes.grid(axis="x")
        axes.tick_params(length=0, pad=6)
        axes.spines[:].set_visible(False)
        titles(fig, common_title(grouped) if title is None else title, "")
        _phase_key(fig, below=0.56 if title != "" else 0.24)
    return fig


def _phase_key(fig: Figure, below: float) -> None:
    """The phases' colours, where other figures have their subtitle."""
    width, height = fig.get_size_inches()
    x, y = EDGE, height - below
    for number, name in enumerate(PHASES.values()):
        patch = Rectangle((x / width, (y - 0.06) / height), 0.2 / width, 0.12 / height)
        patch.set(facecolor=PALETTE[number], hatch=HATCHES[number], edgecolor=PAPER, linewidth=0.8)
        fig.add_artist(patch)
        fig.text((x + 0.27) / width, y / height, name, fontsize=LABEL_SIZE, color=MUTED, va="center")
        x += 0.27 + text_width([name], LABEL_SIZE) + 0.25
