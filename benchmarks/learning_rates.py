"""Choose a learning rate for a method on held-out training images.

For each candidate and each class order, the first tasks are learned from two thirds of their training images and
scored on the last third, among all classes of these tasks. No test image is used. Of the rates within one standard
error of the best, the smallest is taken.

    python -m benchmarks.learning_rates slca ssiat
    python -m benchmarks.learning_rates ssiat --rates 0.01,0.05 --set variant=text
    EASE_SHARED=DIR python -m benchmarks.learning_rates ssiat --photos cifar100-200
"""

from __future__ import annotations

import argparse
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ease.backbone.zoo import load_backbone
from ease.config import resolve
from ease.experiments.inputs import make_tasks
from ease.experiments.predictor import Predictor
from ease.methods import find_method
from ease.streams import ImageSet, Task
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

RATES = (0.002, 0.005, 0.02, 0.05, 0.2)
SEEDS = (1993, 1994)
GLYPHS = {"dataset": "glyphs", "protocol": "B0 Inc6", "backbone": "ease-vit"}


def photos(data_root: str) -> dict[str, Any]:
    """The CIFAR-100 subset, unpacked in a folder, with DeiT-tiny, as in the study `bench-cifar`."""
    shared = Path(os.environ["EASE_SHARED"])
    return {
        "dataset": "cifar100",
        "data_root": data_root,
        "protocol": "B0 Inc20",
        "backbone": "deit_tiny_patch16_224",
        "weights": str(next((shared / "weights").glob("*deit*tiny*.safetensors"))),
        "input_size": 128,
        "limit_per_class": 15,
    }


def parts(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Of every class the first two thirds of the images, and the rest."""
    fit, rest = [], []
    for label in np.unique(images.labels):
        mine = np.flatnonzero(images.labels == label)
        cut = math.ceil(2 * len(mine) / 3)
        fit += mine[:cut].tolist()
        rest += mine[cut:].tolist()
    return images.take(sorted(fit)), images.take(sorted(rest))


def held_out_hits(method: str, values: dict[str, Any], sets: list[str], seed: int, tasks: int) -> list[bool]:
    """For each held-out image of the first tasks, whether it was recognised after the last of them."""
    config, _ = resolve({**values, "method": method, "seed": seed}, preset="few-images", sets=sets)
    backbone = load_backbone(config.backbone, weights=config.weights, input_size=config.input_size)
    stream, _ = make_tasks(config)
    transforms = Transforms(backbone.pixels, stream.augmentation)
    engine = Engine(backbone, transforms, seed=seed, batch_size=config.eval_batch_size)
    kind = find_method(method)
    learner, held = kind(engine, kind.Settings.model_validate(config.settings)), []
    for task in stream.tasks[:tasks]:
        fit, rest = parts(task.train)
        learner.learn(_only(task, fit))
        held.append(rest)
    hits: list[bool] = []
    for rest in held:
        hits += (Predictor(learner).logits(rest).argmax(1).numpy() == rest.labels).tolist()
    return hits


def _only(task: Task, images: ImageSet) -> Task:
    """The task with these training images and no test images."""
    return replace(task, train=images, test=images.take([]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("methods", nargs="+")
    parser.add_argument("--rates", default=",".join(map(str, RATES)), help="candidates, separated by commas")
    parser.add_argument("--tasks", type=int, default=2, help="tasks that are learned")
    parser.add_argument("--set", action="append", default=[], dest="sets", help="key=value, for all methods")
    parser.add_argument("--photos", metavar="DIR", help="the CIFAR-100 subset in DIR instead of glyphs")
    asked = parser.parse_args()
    values = photos(asked.photos) if asked.photos else GLYPHS
    print("| method | rate | " + " | ".join(f"order {seed} %" for seed in SEEDS) + " | mean % |")
    print("|---|---:|" + "---:|" * (len(SEEDS) + 1))
    for method in asked.methods:
        found: dict[float, list[bool]] = {}
        for rate in map(float, asked.rates.split(",")):
            sets = [*asked.sets, f"lr={rate}"]
            by_seed = [held_out_hits(method, values, sets, seed, asked.tasks) for seed in SEEDS]
            found[rate] = [hit for hits in by_seed for hit in hits]
            cells = [f"{100 * np.mean(hits):.1f}" for hits in (*by_seed, found[rate])]
            print(f"| {method} | {rate:g} | " + " | ".join(cells) + " |", flush=True)
        best = max(float(np.mean(hits)) for hits in found.values())
        error = math.sqrt(best * (1 - best) / len(next(iter(found.values()))))
        taken = min(rate for rate, hits in found.items() if np.mean(hits) >= best - error)
        print(f"\n{method}: lr={taken:g}\n", flush=True)


if __name__ == "__main__":
    main()
