"""What a prediction loses when it may only take k of the subspaces: accuracy against cost.

Learns a stream once (or takes a finished run), then scores every stage's model at every budget from the same test
features; the milliseconds are those of `logits` with the last model, which really leaves passes out.

    python benchmarks/anytime.py --protocol "B0 Inc3" --out runs/anytime/glyphs
    python benchmarks/anytime.py --dataset cifar100 --protocol "B0 Inc5" --limit-per-class 10 \
        --backbone deit_tiny_patch16_224 --weights FILE --input-size 128 --data-root DIR --run runs/anytime-cifar \
        --out runs/anytime/cifar
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from ease.config import RunConfig, resolve, validated
from ease.experiments.inputs import make_tasks
from ease.experiments.metrics import score_stage
from ease.experiments.predictor import Predictor
from ease.experiments.run import resume_run, start_run
from ease.experiments.run_folder import RunFolder
from ease.methods import open_model, restore_learner
from ease.methods.ease import Ease
from ease.progress import Bars
from ease.reporting.figures import save
from ease.storage.contents import read_json, write_json
from ease.storage.files import make_folder, write_atomic
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet
from ease.training.features import FeatureStore

BUDGETS = (1, 2, 3, 4, 5, 7, 10, 15)
REPEATS = 7
TIMED = 16
"""Images of the batch that is timed."""


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("dataset", "protocol", "backbone", "weights", "data-root"):
        parser.add_argument(f"--{name}")
    for name in ("input-size", "limit-per-class", "limit-test", "seed"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--preset", default="few-images")
    parser.add_argument("--set", dest="sets", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--run", type=Path, default=Path("runs/anytime"), help="the run; made if it is not there"
    )
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


def learned(args: argparse.Namespace) -> dict[str, Any]:
    """The record of the run whose models are scored."""
    if RunFolder(args.run).config.exists():
        return resume_run(args.run, Bars()).as_json()
    names = ("dataset", "protocol", "backbone", "weights", "data_root", "input_size", "limit_per_class")
    given = {name: getattr(args, name) for name in (*names, "limit_test", "seed")}
    config, notes = resolve({**given, "method": "ease"}, preset=args.preset, sets=args.sets)
    return start_run(config, args.run, notes, Bars()).as_json()


def accuracies(args: argparse.Namespace) -> tuple[dict[int, list[float]], Ease, ImageSet]:
    """Accuracy of every stage by budget; the last stage's learner and its test images."""
    config = validated(RunConfig, read_json(RunFolder(args.run).config)["config"], str(args.run))
    stream, _ = make_tasks(config)
    directory = ModelDirectory(RunFolder(args.run).model)
    learner, _ = open_model(directory.path, config.weights)
    store, found = FeatureStore(), {}
    for stage in range(1, len(stream) + 1):
        learner, _ = restore_learner(directory, learner.engine, number=stage)
        assert isinstance(learner, Ease)
        tests = [task.test for task in stream.tasks[:stage]]
        labels = np.concatenate([test.labels for test in tests])
        for budget in [*(b for b in BUDGETS if b < len(stream)), len(stream)]:
            logits = Predictor(learner, store, min(budget, stage)).logits(tests)
            scored = score_stage(logits.numpy(), labels, learner.task_sizes).accuracy
            found.setdefault(budget, []).append(scored)
    assert isinstance(learner, Ease)
    return found, learner, stream.tasks[-1].test


def milliseconds(learner: Ease, images: ImageSet, budgets: list[int], batch: int) -> dict[int, float]:
    """Median milliseconds per image by budget, taken in turns."""
    pixels = learner.engine.pixels(images.take(np.arange(batch) % len(images)))
    times: dict[int, list[float]] = {budget: [] for budget in budgets}
    for _ in range(REPEATS + 1):
        for budget, taken in times.items():
            learner.within(budget)
            start = time.perf_counter()
            learner.logits(pixels)
            taken.append(1e3 * (time.perf_counter() - start) / batch)
    return {budget: statistics.median(taken[1:]) for budget, taken in times.items()}  # the first is a warm-up


def markdown(rows: list[dict[str, Any]], record: dict[str, Any]) -> str:
    """The curve as a table."""
    title = f"{record['dataset']}, {record['protocol']}, {record['backbone']}, seed {record['seed']}"
    lines = [
        f"{title}: {record['test_images'][-1]} test images, {torch.get_num_threads()} threads",
        "",
        f"| passes | Ā | A_B | Ā lost | ms per image (batch 1) | ms per image (batch {TIMED}) |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    full = rows[-1]
    for row in rows:
        lines.append(
            f"| {row['budget']} | {row['average']:.2f} | {row['last']:.2f} | {full['average'] - row['average']:.2f} "
            f"| {row['alone']:.1f} | {row['together']:.1f} |"
        )
    return "\n".join(lines) + "\n"


def curve(rows: list[dict[str, Any]], record: dict[str, Any]) -> Figure:
    """Accuracy against passes."""
    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    passes = [row["budget"] for row in rows]
    for key, label, style in (
        ("average", "mean over stages (Ā)", "o-"),
        ("last", "after the last task", "s--"),
    ):
        axes.plot(passes, [row[key] for row in rows], style, label=label, markersize=4)
        axes.axhline(rows[-1][key], color="0.8", linewidth=0.8, zorder=0)
    axes.set_xscale("log")
    axes.set_xticks(passes, [str(p) for p in passes])
    axes.minorticks_off()
    axes.set_xlabel("passes per image")
    axes.set_ylabel("accuracy (%)")
    axes.set_title(f"{record['dataset']} {record['protocol']}", fontsize="medium")
    axes.legend(frameon=False)
    return figure


def main() -> None:
    args = options()
    record = learned(args)
    found, learner, images = accuracies(args)
    budgets = list(found)
    alone = milliseconds(learner, images, budgets, 1)
    together = milliseconds(learner, images, budgets, TIMED)
    rows = [
        {
            "budget": budget,
            "average": float(np.mean(found[budget])),
            "last": found[budget][-1],
            "alone": alone[budget],
            "together": together[budget],
        }
        for budget in budgets
    ]
    make_folder(args.out)
    config = {
        k: v for k, v in record["config"].items() if k not in ("data_root", "weights")
    }  # of this machine
    write_json(args.out / "anytime.json", {"rows": rows, "stages": found, "config": config})
    text = markdown(rows, record)
    write_atomic(args.out / "table.md", text.encode())
    save(curve(rows, record), args.out / "anytime")
    print(text)


if __name__ == "__main__":
    main()
