"""How often the watch over a served model cries wolf, and how soon it notices a change: simulated traffic.

    python benchmarks/drift.py --out docs/images/drift.png

Every run begins with a new reference window; then requests follow, and the windows are compared after each block, as
in the server. Traffic: one photo per request, or bursts of up to 30 photos of one class (a person who empties a
camera). The table says in how many runs there was any alarm.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ease.app.drift import AnswerSummary, DriftWatch

Traffic = Callable[[np.random.Generator, float, float], AnswerSummary]
CLASSES = 10


def single(random: np.random.Generator, unknown: float, confidence: float) -> AnswerSummary:
    """One photo: unknown, or one of ten classes."""
    return _answer(random, [int(random.integers(CLASSES))], unknown, confidence, one_fate=False)


def bursts(random: np.random.Generator, unknown: float, confidence: float) -> AnswerSummary:
    """1 to 30 photos of one class; half of the unknown photos come in bursts that are unknown as a whole."""
    photos = [int(random.integers(CLASSES))] * int(random.integers(1, 31))
    if random.random() < unknown / 2:
        return _answer(random, photos, 1.0, confidence, one_fate=True)
    return _answer(random, photos, unknown / 2 / (1 - unknown / 2), confidence, one_fate=False)


def _answer(
    random: np.random.Generator, photos: list[int], unknown: float, confidence: float, one_fate: bool
) -> AnswerSummary:
    strange = np.full(len(photos), one_fate) | (random.random(len(photos)) < unknown)
    sure = np.where(strange, 0.4, random.beta(8 * confidence, 8 * (1 - confidence), len(photos)))
    classes: dict[int, int] = {}
    for each, away in zip(photos, strange, strict=True):
        if not away:
            classes[each] = classes.get(each, 0) + 1
    return AnswerSummary(len(photos), len(photos), int(strange.sum()), float(sure.sum()), classes)


def photos_until_alarm(
    traffic: Traffic, seed: int, photos: int, before: tuple[float, float], after: tuple[float, float]
) -> int | None:
    """Photos after the reference window and one window of unchanged traffic until there is an alarm; None if none."""
    random = np.random.default_rng(seed)
    watch = DriftWatch()
    while watch.recent is None:
        watch.add(traffic(random, *before), "2026-11-18")
    if watch.since and before == after:
        return 0
    seen = 0
    while seen < photos:
        answer = traffic(random, *after)
        watch.add(answer, "2026-11-18")
        seen += answer.images
        if watch.since:
            return seen
    return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=400)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    usual = (0.06, 0.85)
    print("| traffic | change | alarms | photos until it (median) |\n|---|---|---:|---:|")
    curves = {}
    for name, traffic, photos in (("one photo per request", single, 5000), ("bursts", bursts, 30000)):
        rows = [("none", usual, photos)]
        rows += [(f"6 % -> {share} % unknown", (share / 100, 0.85), photos) for share in (12, 20, 31)]
        rows += [("confidence 85 % -> 70 %", (0.06, 0.70), photos)]
        for what, after, most in rows:
            found = [photos_until_alarm(traffic, seed, most, usual, after) for seed in range(given.runs)]
            heard = sorted(one for one in found if one is not None)
            median = f"{heard[len(heard) // 2]}" if len(heard) > given.runs / 2 else "-"
            print(f"| {name} | {what} | {100 * len(heard) / given.runs:.1f} % | {median} |", flush=True)
            curves[name, what] = heard
    if given.out:
        draw(curves, given.runs, given.out)


def draw(curves: dict[tuple[str, str], list[int]], runs: int, path: Path) -> None:
    """Share of runs with an alarm against the number of photos since the change."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), sharey=True)
    names = list(dict.fromkeys(name for name, _ in curves))
    for panel, name in zip(panels, names, strict=True):
        for (traffic, what), heard in curves.items():
            if traffic == name:
                label = "no change (false alarms)" if what == "none" else what
                style = "k--" if what == "none" else "-"
                shares = [100 * number / runs for number in (*range(len(heard) + 1), len(heard))]
                panel.step([0, *heard, 10**6], shares, style, where="post", label=label)
        panel.set(title=name, xlabel="photos since the change", xlim=(0, 5000), ylim=(-3, 103))
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("runs with an alarm (%)")
    panels[0].legend(fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
