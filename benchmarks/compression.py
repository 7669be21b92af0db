"""What a learned model loses when it is made smaller: bytes, passes and accuracy of each way, in one table.

Trains EASE on glyphs B0 Inc6 with preset `few-images` on the embedded ViT once (about four minutes), or takes finished
runs of `ease run`, which stay as they are, of a method that can be compacted: `ease` or `strata`. Every way that the
method has is applied to the model after its last task and scored on its test images.
Features are kept in the output folder, so that a command that was interrupted goes on where it was. With several runs
the figures are means; the change of accuracy is in points.

`drop` keeps the oldest subspaces; the row below it keeps the first and the newest.

    python benchmarks/compression.py --out runs/compression
    python benchmarks/compression.py --run runs/demo/ease --out runs/compression
    python benchmarks/compression.py --run runs/strata --out runs/compression-strata
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ease.app.compact import Compaction, Size, compacted, size_of
from ease.config import RunConfig, resolve, validated
from ease.experiments.inputs import make_tasks
from ease.experiments.metrics import score_stage
from ease.experiments.predictor import Predictor
from ease.experiments.run import start_run
from ease.experiments.run_folder import RunFolder
from ease.heads.prototypes import PTM
from ease.methods import Compactable, Learner, open_model
from ease.methods.ease import Ease
from ease.methods.ease.compaction import keeping
from ease.progress import Bars
from ease.storage.contents import read_json, write_json
from ease.storage.files import write_atomic
from ease.streams import Stream
from ease.training.features import FeatureStore
from ease.tuning import Adapter

Way = Callable[[Any], Learner]


def asked(*wish: Any) -> Way:
    """What `ease compact` does for these options."""
    return lambda learner: compacted(learner, Compaction(*wish))


def ways(learner: Learner) -> Iterator[tuple[str, Way]]:
    """Each row of the table by its title."""
    yield "fp32 (as trained)", lambda learner: learner
    yield "fp16", asked("fp16")
    yield "int8", asked("int8")
    if any(isinstance(subspace.tuning, Adapter) for subspace in learner.subspaces()):
        for energy in (0.99, 0.95, 0.9):
            yield f"energy {energy}", asked(None, energy)
        yield "int8, energy 0.95", asked("int8", 0.95)
    if isinstance(learner, Ease):
        yield from fewer_passes(learner.passes_per_image())


def fewer_passes(passes: int) -> Iterator[tuple[str, Way]]:
    """Rows of a method that can lose subspaces."""
    for most in dict.fromkeys(max(1, passes // part) for part in (2, 4)):
        yield f"drop to {most}", asked(None, None, most)
        yield f"  newest {most}", lambda learner, most=most: newest(learner, most)
        yield f"drop to {most}, int8", asked("int8", None, most)


def learned(learner: Ease) -> list[int]:
    """The subspaces that a training made."""
    return [column for column in learner.columns() if column != PTM]


def newest(learner: Ease, most: int) -> Ease:
    """The first, where every class has a real prototype, and the last ones."""
    first, *others = learned(learner)
    return keeping(learner, [first, *others[len(others) - (most - 1) :]])


def measure(run: Path, store: FeatureStore, limit_test: int | None) -> dict[str, Size]:
    """What each way makes of a run's last model."""
    config = validated(RunConfig, read_json(RunFolder(run).config)["config"], str(run))
    config = config.model_copy(update={"limit_test": limit_test or config.limit_test})
    stream, _ = make_tasks(config)
    learner, _ = open_model(RunFolder(run).model, config.weights, batch_size=config.eval_batch_size)
    if not isinstance(learner, Compactable):
        raise SystemExit(
            f"{run} is a run of {learner.name}, which cannot be compacted: give one of ease or strata"
        )
    found = {}
    for name, way in ways(learner):
        other = way(learner)
        found[name] = size_of(other, accuracy=accuracy(Predictor(other, store), stream))
        print(f"{run}: {name}: {found[name].accuracy:.2f} %", flush=True)
    return found


def accuracy(predictor: Predictor, stream: Stream) -> float:
    """Percent of all test images."""
    logits = predictor.logits([task.test for task in stream.tasks])
    labels = np.concatenate([task.test.labels for task in stream.tasks])
    return score_stage(logits.numpy(), labels, predictor.learner.task_sizes).accuracy


def table(runs: list[dict[str, Size]]) -> str:
    """Means over the runs, as Markdown."""
    plain = np.mean([next(iter(run.values())).accuracy for run in runs])
    kinds = ["subspace", "prototype"]
    kinds += ["statistics"] * any(size.statistics_bytes for run in runs for size in run.values())
    titles = {"subspace": "subspaces", "prototype": "prototypes"}
    names = " | ".join(f"{titles.get(kind, kind)}, kB" for kind in kinds)
    lines = [
        f"| | {names} | passes per image | accuracy, % | change |",
        f"|---|{'---:|' * (len(kinds) + 3)}",
    ]
    for name in runs[0]:
        sizes = [run[name] for run in runs]
        kilobytes = [np.mean([getattr(s, f"{kind}_bytes") for s in sizes]) / 1000 for kind in kinds]
        rate = np.mean([size.accuracy for size in sizes])
        title = f"&nbsp;&nbsp;{name.strip()}" if name.startswith(" ") else name
        figures = " | ".join(f"{value:.0f}" for value in [*kilobytes, np.mean([s.passes for s in sizes])])
        lines.append(f"| {title} | {figures} | {rate:.2f} | {rate - plain:+.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, nargs="+", help="finished runs of one method on one protocol")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the table and its figures as JSON"
    )
    parser.add_argument("--limit-test", type=int, help="test images per class, where fewer are wanted")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = options.run or [trained(Path(scratch) / "run")]
        store = FeatureStore(options.out / "features")
        runs = [measure(folder, store, options.limit_test) for folder in folders]
    write_atomic(options.out / "compression.md", table(runs).encode())
    rows = [{name: asdict(size) for name, size in run.items()} for run in runs]
    write_json(
        options.out / "compression.json",
        {"runs": [str(folder) for folder in options.run or []], "rows": rows},
    )
    print("\n" + table(runs))


def trained(folder: Path) -> Path:
    """A run to measure on."""
    wish = {"dataset": "glyphs", "protocol": "B0 Inc6", "method": "ease"}
    config, notes = resolve(wish, preset="few-images")
    start_run(config, folder, notes, Bars())
    return folder


if __name__ == "__main__":
    main()
