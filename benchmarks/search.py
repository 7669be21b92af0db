"""Chooses a preset's settings without looking at test images.

Every method gets the same budget of candidates. A candidate learns the stream's first two tasks from two thirds of
their training images and is scored on the third that was held out. This is done for several orders of the classes; the
mean accuracy over stages and orders decides (see `chosen`). Results are kept after every candidate, so a stopped
search continues.

    python benchmarks/search.py --out docs/results/small-search
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ease.backbone.zoo import load_backbone
from ease.engine.engine import Engine
from ease.engine.files import make_folder, write_atomic, write_json
from ease.methods.registry import find_method
from ease.streams import Dataset
from ease.streams.datasets import load_dataset
from ease.streams.protocol import class_order, make_stream
from ease.streams.transforms import Transforms
from ease.studies.evaluate import Evaluator
from ease.studies.metrics import score_stage

TASKS = 2
EVERY = 3
"""Each third training image of a class is held out."""


def grid(**values: list[Any]) -> list[dict[str, Any]]:
    """All combinations."""
    return [dict(zip(values, each, strict=True)) for each in itertools.product(*values.values())]


# Twelve candidates for each method that trains. Epochs and batch size are what a demo of six minutes can afford.
_COMMON: dict[str, list[Any]] = {"epochs": [4], "batch_size": [16]}
CANDIDATES: dict[str, list[dict[str, Any]]] = {
    "ease": [
        *grid(**_COMMON, sigma=[10.0, 20.0], lr=[0.05, 0.1, 0.2, 0.4]),
        *grid(**_COMMON, sigma=[10.0, 20.0], lr=[0.1, 0.2], ptm=[True]),
    ],
    "finetune": grid(**_COMMON, schedule=["constant", "cosine"], lr=[0.001, 0.002, 0.003, 0.005, 0.01, 0.03]),
    "simplecil": [{}],
}


def held_out(data: Dataset, protocol: str, seed: int) -> Dataset:
    """The classes of the first two tasks, their training images split in two. The test set is not touched."""
    stream = make_stream(data, protocol, seed)
    order = class_order(len(data.class_names), seed)[: stream.tasks[TASKS - 1].classes.stop]
    train = data.train.of_classes(order, relabel=order.index)
    rank = np.concatenate([np.arange(np.sum(train.labels == c)) for c in range(len(order))])
    chosen = rank % EVERY == EVERY - 1
    return replace(
        data,
        class_names=tuple(data.class_names[c] for c in order),
        train=train.take(np.flatnonzero(~chosen)),
        test=train.take(np.flatnonzero(chosen)),
        keep_order=True,
    )


def score(
    method: str, settings: dict[str, Any], args: argparse.Namespace, data: Dataset, seed: int
) -> dict[str, float]:
    """Mean held-out accuracy over the stages, and what it took."""
    backbone = load_backbone(args.backbone, weights=args.weights, input_size=args.input_size)
    learner_type = find_method(method)
    engine = Engine(backbone, Transforms(backbone.pixels, data.augmentation), seed=seed)
    learner = learner_type(engine, learner_type.Settings.model_validate(settings))
    evaluator, accuracy, start = Evaluator(), [], time.perf_counter()
    stream = make_stream(data, args.protocol)
    for task in stream.tasks:
        learner.learn(task)
        seen = stream.tasks[: task.index + 1]
        logits = evaluator.logits(learner, [t.test for t in seen])
        labels = np.concatenate([t.test.labels for t in seen])
        accuracy.append(score_stage(logits.numpy(), labels, learner.task_sizes).accuracy)
    return {
        "average": float(np.mean(accuracy)),
        "last": accuracy[-1],
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--protocol", default="B0 Inc6")
    parser.add_argument("--backbone", default="ease-vit")
    parser.add_argument("--weights")
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--limit-per-class", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1994])
    parser.add_argument("--methods", nargs="+", default=list(CANDIDATES))
    parser.add_argument("--out", type=Path, required=True, help="writes OUT.json and OUT.md")
    args = parser.parse_args()
    whole = load_dataset(args.dataset, args.data_root, args.limit_per_class)
    file = args.out.with_suffix(".json")
    make_folder(file.parent)
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    for seed, method in itertools.product(args.seeds, args.methods):
        data = held_out(whole, args.protocol, seed)
        for settings in CANDIDATES[method]:
            key = {"method": method, "seed": seed, "settings": settings}
            if any(key.items() <= row.items() for row in found):
                continue
            row = {**key, **score(method, settings, args, data, seed)}
            print(row, flush=True)
            found.append(row)
            write_json(file, found)
    write_atomic(args.out.with_suffix(".md"), markdown(found, args, data).encode())


def markdown(found: list[dict[str, Any]], args: argparse.Namespace, data: Dataset) -> str:
    """The search as a page."""
    lines = [
        f"# How the settings for {args.dataset} {args.protocol} were chosen",
        "",
        "`python benchmarks/search.py --out docs/results/small-search`",
        "",
        f"Backbone `{args.backbone}`. First {TASKS} tasks of the class orders of seeds {args.seeds}: {len(data.train)} "
        f"training images, scored on {len(data.test)} images held out of the training data. Scoring looks at no test "
        "image; how this rule came about is told in demo/README.md. The mean over stages and orders decides; "
        "among candidates within one standard error of the best the "
        "smallest rate is taken (bold), since a rate at the edge may fail in a task the search has not seen.",
        "",
        "| method | settings | mean % | last % | by seed |",
        "|---|---|---:|---:|---|",
    ]
    for method in args.methods:
        rows = []
        for settings in CANDIDATES[method]:
            runs = [r for r in found if r["method"] == method and r["settings"] == settings]
            mean, last = (float(np.mean([r[key] for r in runs])) for key in ("average", "last"))
            rows.append(Row(settings, mean, last, [r["average"] for r in runs]))
        winner = chosen(rows, len(data.test) * len(args.seeds))
        for row in rows:
            text = ", ".join(f"{key} {value}" for key, value in row.settings.items()) or "-"
            text = f"**{text}**" if row is winner else text
            seeds = " / ".join(f"{value:.2f}" for value in row.each)
            lines.append(f"| {method} | {text} | {row.mean:.2f} | {row.last:.2f} | {seeds} |")
    return "\n".join(lines) + "\n"


class Row(NamedTuple):
    """One candidate's figures over all orders."""

    settings: dict[str, Any]
    mean: float
    last: float
    each: list[float]


def chosen(rows: list[Row], images: int) -> Row:
    """The one-standard-error rule: of those as good as the best, within what so few images can tell, the calmest."""
    best = max(rows, key=lambda row: row.mean)
    error = 100 * np.sqrt(best.mean / 100 * (1 - best.mean / 100) / images)
    near = [row for row in rows if row.mean >= best.mean - error]
    return min(near, key=lambda row: (row.settings.get("lr", 0), -row.mean))


if __name__ == "__main__":
    main()
