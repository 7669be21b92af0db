"""How much the PTM should count beside EASE's own subspaces: held-out accuracy by weight, from one training.

Trains with a preset's settings on a part of the training images, as benchmarks/search.py does, and scores the rest
without the PTM and with it at several weights (`beta`). No test image is looked at.

    python -m benchmarks.ptm_weight --tasks 10 --turns 9 --held 6 7 8 --seed 1993
    python -m benchmarks.ptm_weight --dataset cifar100 --data-root DIR --protocol "B0 Inc20" \
      --backbone deit_tiny_patch16_224 --weights FILE --input-size 128 --limit-per-class 40 --tasks 5 --turns 2 --held 1
"""

from __future__ import annotations

import argparse
from dataclasses import fields

import numpy as np
import torch
from torch import Tensor

from benchmarks.search import Place, add_place
from ease.backbone.zoo import load_backbone
from ease.config import resolve
from ease.experiments.metrics import score_stage
from ease.heads.prototypes import PTM
from ease.methods.ease import Ease, EaseSettings
from ease.streams import Task
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

WEIGHTS = (0.1, 0.25, 0.5, 1.0, 2.0)


class Weighed:
    """One learner, read with the PTM at any weight; features are computed once for all of them."""

    def __init__(self, engine: Engine, settings: EaseSettings) -> None:
        self.learner = Ease(engine, settings)
        self._features: dict[tuple[int, int], Tensor] = {}

    def accuracy(self, seen: tuple[Task, ...], beta: float | None) -> float:
        """Percent of these tasks' held-out images; None leaves the PTM out."""
        learner, settings = self.learner, self.learner.settings
        learner.settings = settings.model_copy(update={"ptm": beta is not None, "beta": beta or 0.0})
        learner._classifier = None
        try:
            features = torch.cat([self._of(task) for task in seen], dim=1)
            labels = np.concatenate([task.test.labels for task in seen])
            return score_stage(learner.head(features).numpy(), labels, learner.task_sizes).accuracy
        finally:
            learner.settings, learner._classifier = settings, None

    def _of(self, task: Task) -> Tensor:
        columns = self.learner.columns()
        new = [c for c in columns if (task.index, c) not in self._features]
        if new:
            tunings = [None if c == PTM else self.learner.tunings[c - 1] for c in new]
            found = self.learner.engine.features(task.test, tunings, "evaluation")
            self._features |= {(task.index, c): one for c, one in zip(new, found, strict=True)}
        return torch.stack([self._features[task.index, c] for c in columns])


def weighed(place: Place, settings: EaseSettings, seed: int) -> dict[float | None, float]:
    """Mean held-out accuracy over the stages, by weight of the PTM."""
    backbone = load_backbone(place.backbone, weights=place.weights, input_size=place.input_size)
    data = place.data(seed)
    stream = make_stream(data, place.protocol)
    learner = Weighed(Engine(backbone, Transforms(backbone.pixels, data.augmentation), seed=seed), settings)
    stages: dict[float | None, list[float]] = {}
    for task in stream.tasks:
        learner.learner.learn(task)
        for beta in (None, *WEIGHTS):
            seen = stream.tasks[: task.index + 1]
            stages.setdefault(beta, []).append(learner.accuracy(seen, beta))
    return {beta: float(np.mean(values)) for beta, values in stages.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_place(parser)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="other settings")
    parser.add_argument("--seed", type=int, default=1993)
    args = parser.parse_args()
    place = Place(**{field.name: getattr(args, field.name) for field in fields(Place)})
    config, _ = resolve({"method": "ease"}, preset=args.preset, sets=[*args.set, "ptm=true"])
    found = weighed(place, EaseSettings.model_validate(config.settings), args.seed)
    for beta, accuracy in found.items():
        print(f"{'without the PTM' if beta is None else f'beta {beta}'}: {accuracy:.2f} %")


if __name__ == "__main__":
    main()
