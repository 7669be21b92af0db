"""What each method reaches and what it costs: one table and one plot from the runs of finished studies.

    ease study bench-small --seeds 1993,1994,1995 --jobs 2 --out runs/bench-small
    ease study bench-cifar --jobs 2 --data-root DATA --weights deit_tiny_patch16_224.safetensors --out runs/bench-cifar
    ease study bench-small --set limit_classes=12 --out runs/twelve
    ease study bench-small --set limit_classes=12 --set "protocol=B0 Inc1" --out runs/one-at-a-time
    python -m benchmarks.trade_off --glyphs runs/bench-small --photos runs/bench-cifar \
        --twelve runs/twelve --one-at-a-time runs/one-at-a-time --out docs/how-to/choose-a-method

Costs are those of the runs on glyphs. Seconds are CPU seconds of learning, per task. Passes are those of one prediction
after the last task. Bytes are all that a model stores besides the backbone, four per number, divided by its classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ease.experiments.record import RECORD, RunRecord
from ease.methods import method_title
from ease.reporting.figures import accuracy_against_cost, save
from ease.reporting.series import kind_of
from ease.reporting.tables import seconds_text
from ease.storage.files import make_folder, write_atomic
from ease.storage.model_directory import ModelDirectory

NOTHING = "-"


@dataclass(frozen=True)
class Measured:
    """A run and what its model needs for one prediction."""

    record: RunRecord
    passes: int


def row_name(record: RunRecord) -> str:
    """The method with what tells its rows of a study apart."""
    settings = record.config.settings if record.config is not None else {}
    parts = [method_title(record.method)]
    if "variant" in settings:
        parts.append(str(settings["variant"]))
    if settings.get("adapt") == "first":
        parts.append("adapted")
    if kind_of(record.method) == "exemplar-based" and record.config is not None:
        parts.append(f"{record.config.exemplars} exemplars")
    return ", ".join(parts)


def read_runs(folder: Path | None) -> dict[str, list[Measured]]:
    """The finished runs of a study by the name of their row."""
    found: dict[str, list[Measured]] = {}
    for path in sorted(folder.glob(f"cells/*/{RECORD}")) if folder is not None else ():
        record = RunRecord.read(path)
        manifest = ModelDirectory(path.parent / "model").manifest()
        found.setdefault(row_name(record), []).append(Measured(record, manifest.passes_per_image))
    return found


def mean(runs: Iterable[Measured], read: Callable[[RunRecord], float]) -> float:
    """The mean over seeds."""
    return float(np.mean([read(run.record) for run in runs]))


def accuracies(runs: list[Measured]) -> str:
    """Ā / A_B, with the standard deviation of A_B if there are several seeds."""
    if not runs:
        return NOTHING
    ends = [run.record.last for run in runs]
    spread = f" ±{np.std(ends, ddof=1):.1f}" if len(ends) > 1 else ""
    return f"{mean(runs, lambda r: r.average):.1f} / {np.mean(ends):.1f}{spread}"


def bytes_text(number: float) -> str:
    """Bytes as people write them."""
    for unit in ("B", "kB", "MB"):
        if number < 999.5 or unit == "MB":
            return f"{number:.3g} {unit}"
        number /= 1000
    raise AssertionError


def learning_seconds(record: RunRecord) -> float:
    """CPU seconds of learning one task."""
    if record.seconds.learning_cpu is None:
        raise SystemExit(
            f"the run of {record.method} has no CPU seconds: it was made by an earlier version, run it again"
        )
    return record.seconds.learning_cpu / len(record.task_sizes)


def table(
    glyphs: Mapping[str, list[Measured]],
    photos: Mapping[str, list[Measured]],
    twelve: Mapping[str, list[Measured]],
    singly: Mapping[str, list[Measured]],
) -> str:
    """One row per method as Markdown; the best on glyphs first."""
    lines = [
        "| method | glyphs, Ā / A_B | photos, Ā / A_B | seconds per task | passes | bytes per class "
        "| 12 classes, 6 at a time | 1 at a time |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in sorted(glyphs, key=lambda name: -mean(glyphs[name], lambda r: r.last)):
        runs = glyphs[name]
        stored = mean(runs, lambda r: 4 * r.parameters.stored / sum(r.task_sizes))
        few = [
            f"{mean(part[name], lambda r: r.last):.1f}" if name in part else NOTHING
            for part in (twelve, singly)
        ]
        lines.append(
            f"| {name} | {accuracies(runs)} | {accuracies(photos.get(name, []))} "
            f"| {seconds_text(mean(runs, learning_seconds))} | {runs[0].passes} | {bytes_text(stored)} "
            f"| {few[0]} | {few[1]} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--glyphs", type=Path, required=True, help="folder of the study bench-small")
    parser.add_argument("--photos", type=Path, help="folder of the study bench-cifar")
    parser.add_argument("--twelve", type=Path, help="folder of the study with 12 classes, six at a time")
    parser.add_argument(
        "--one-at-a-time", type=Path, help="folder of the study with 12 classes, one at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="table.md and the plots are written here")
    asked = parser.parse_args()
    glyphs, photos = read_runs(asked.glyphs), read_runs(asked.photos)
    if not glyphs:
        raise SystemExit(f"there is no finished run in {asked.glyphs}: run the study bench-small first")
    text = table(glyphs, photos, read_runs(asked.twelve), read_runs(asked.one_at_a_time))
    print(text)
    make_folder(asked.out)
    write_atomic(asked.out / "table.md", text.encode())
    for part, runs in (("glyphs", glyphs), ("photos", photos)):
        records = [run.record.labelled(name) for name, found in runs.items() for run in found]
        if records:
            save(accuracy_against_cost(records, "learning"), asked.out / part, formats=("png",))


if __name__ == "__main__":
    main()
