"""Accuracy over k: how prototypes are synthesised, and of how many images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.reporting.figures.drawing import (
    LABEL_GAP,
    LABEL_SIZE,
    LINES,
    MARKERS,
    PALETTE,
    PAPER,
    accuracy_range,
    framed,
    percent_axes,
    spread_apart,
    style,
    text_width,
    titles,
)


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
