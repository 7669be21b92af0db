"""The rows of the benchmark as one table: on the terminal, in Markdown, in JSON, and the plot of growth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks.cases import CASES
from ease.errors import EaseError
from ease.reporting.figures.drawing import INK, LABEL_SIZE, MUTED, PALETTE, PAPER, save, style
from ease.storage.contents import read_json, write_json
from ease.storage.files import make_folder, write_atomic

PARTS = ("run", "forward", "step", "latency", "peak", "memory", "precision")
"""What is measured, in the table's order."""

BACKBONES = list(CASES)

HEADERS = ("backbone", "what", "naive", "ours", "ratio", "ceiling", "wanted")


@dataclass(frozen=True)
class Row:
    """One ratio, measured in one run.

    Attributes:
        backbone: by name.
        part: which measurement it belongs to, as in `--rows`.
        what: for people.
        naive: figure of the naive implementation,
        ours: and of ours, in `unit`.
        unit: s, ms, MB or %.
        ratio: how many times better ours is.
        ceiling: the same ratio in multiply-adds; None where it means nothing.
        wanted: the least ratio that counts as reached, if one is asked for.
        more: what else was measured.
        measured: when the benchmark that it comes from began.
    """

    backbone: str
    part: str
    what: str
    naive: float
    ours: float
    unit: str
    ratio: float
    ceiling: float | None = None
    wanted: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    measured: str = ""

    @property
    def cells(self) -> list[str]:
        """As `HEADERS`."""
        missed = " (missed)" if self.wanted is not None and self.ratio < self.wanted else ""
        return [
            self.backbone,
            self.what,
            _figure(self.naive, self.unit),
            _figure(self.ours, self.unit),
            f"{self.ratio:.2f}x",
            "" if self.ceiling is None else f"{self.ceiling:.2f}x",
            "" if self.wanted is None else f"{self.wanted:g}x{missed}",
        ]


def _figure(value: float, unit: str) -> str:
    digits = 0 if unit == "MB" or value >= 100 else 1
    return f"{value:,.{digits}f} {unit}"


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """New rows in place of those of the same parts; other parts keep what an earlier run found."""
    done = {(row.backbone, row.part) for row in new}
    return sorted(
        [*(row for row in old if (row.backbone, row.part) not in done), *new],
        key=lambda row: (BACKBONES.index(row.backbone), PARTS.index(row.part)),
    )


def read_rows(folder: Path, is_quick: bool) -> list[Row]:
    """Those of an earlier benchmark in this folder, if it was of the same kind."""
    path = folder / "speed.json"
    if not path.exists():
        return []
    try:
        stored = read_json(path)
        return [Row(**row) for row in stored["rows"]] if stored["quick"] == is_quick else []
    except (KeyError, TypeError) as error:
        raise EaseError(f"{path} is not of this benchmark: choose another folder with --out") from error


def write(folder: Path, rows: Sequence[Row], about: dict[str, Any], notes: Sequence[str]) -> None:
    """`speed.json`, `speed.md` and, where whole runs were made, `growth.png` and `growth.svg`."""
    make_folder(folder)
    write_json(folder / "speed.json", {**about, "rows": [asdict(row) for row in rows], "notes": list(notes)})
    write_atomic(folder / "speed.md", markdown(rows, notes).encode())
    runs = [row for row in rows if "stages" in row.more]
    if runs:
        save(growth(runs), folder / "growth", ("png", "svg"))


def markdown(rows: Sequence[Row], notes: Sequence[str]) -> str:
    """The table, and below it what it does not say."""
    lines = [f"| {' | '.join(HEADERS)} |", "|---|---|---:|---:|---:|---:|---:|"]
    lines += [f"| {' | '.join(row.cells)} |" for row in rows]
    return "\n".join([*lines, "", *(f"- {note}" for note in notes), ""])


def show(rows: Sequence[Row], notes: Sequence[str], title: str) -> None:
    """On the terminal."""
    table = Table(title=title)
    for number, name in enumerate(HEADERS):
        table.add_column(name, justify="left" if number < 2 else "right", overflow="fold")
    for row in rows:
        table.add_row(*row.cells)
    console = Console(width=None if Console().is_terminal else 140)
    console.print(table)
    for note in notes:
        console.print(f"- {note}", highlight=False, markup=False)


def exponent(seconds: Sequence[float]) -> float:
    """The p of b^p that these stages follow best; the first ones, mostly overhead, are left out."""
    skipped = len(seconds) // 5
    stages = np.arange(1, len(seconds) + 1)[skipped:]
    slope, _ = np.polyfit(np.log(stages), np.log(np.maximum(seconds[skipped:], 1e-9)), 1)
    return float(slope)


def growth(runs: Sequence[Row]) -> Figure:
    """Seconds that each stage's evaluation takes, a panel per backbone."""
    with style():
        fig = Figure(figsize=(1.1 + 4.6 * len(runs), 4.0), layout="constrained")
        for number, (axes, row) in enumerate(zip(_panels(fig, len(runs)), runs, strict=True)):
            _panel(axes, row)
            if number == 0:
                axes.set_ylabel("seconds to evaluate the stage")
        fig.suptitle(
            "Evaluation after each stage: all classes seen so far",
            x=0.012,
            ha="left",
            fontsize=13,
            fontweight="bold",
        )
    return fig


def _panels(fig: Figure, count: int) -> list[Any]:
    return list(np.atleast_1d(fig.subplots(1, count)))


def _panel(axes: Any, row: Row) -> None:
    stages = row.more["stages"]
    highest = max(max(stages["naive"]), max(stages["ours"]))
    for side, colour, marker, line in (
        ("naive", PALETTE[1], "s", "--"),
        ("ours", PALETTE[0], "o", "-"),
    ):
        seconds = stages[side]
        numbers = range(1, len(seconds) + 1)
        axes.plot(
            numbers,
            seconds,
            line,
            color=colour,
            marker=marker,
            markersize=5,
            markeredgecolor=PAPER,
            linewidth=1.8,
            clip_on=False,
        )
        power = f", grows as b^{exponent(seconds):.2f}" if len(seconds) >= 5 else ""
        above = side == "naive" or seconds[-1] < 0.75 * highest
        axes.annotate(
            f"{side}{power}",
            (numbers[-1], seconds[-1]),
            xytext=(-8 if side == "naive" else 0, 10 if above else -16),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=LABEL_SIZE,
            fontweight="bold",
        )
    axes.set(xlim=(0.5, len(stages["naive"]) + 0.5), ylim=(0, 1.15 * highest), xlabel="stage b")
    axes.xaxis.set_major_locator(_whole_numbers())
    axes.set_title(row.backbone, loc="left", fontsize=10, color=INK)
    axes.grid(axis="y")
    axes.tick_params(length=0, pad=6, colors=MUTED)
    axes.spines[["left", "right", "top"]].set_visible(False)


def _whole_numbers() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=10, integer=True)


def best(rows: Sequence[Row]) -> Row:
    """The one with the largest ratio."""
    return max(rows, key=lambda row: row.ratio if math.isfinite(row.ratio) else 0.0)
