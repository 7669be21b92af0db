"""Are confidences right, and are images of unknown classes told? Before and after, near and far.

Half of the classes are learned task by task, as the app does it: a tenth of each class is held out. The others stay
unknown; they are near, because they are of the same kind. Images of another dataset are far. Three rows each:

    first     the calibration of the first versions: the held-out tenth, averaged over tasks (`first_calibration.py`)
    held out  the calibration of today, from the held-out tenth alone, as for methods that can tell no more
    left out  the same from all images: each learned one as if it had been left out (`ease.heads.left_out`)

    python -m benchmarks.unknowns
    python -m benchmarks.unknowns --dataset folder --data-root photos --protocol "B0 Inc7" --limit 25 --far glyphs
    python -m benchmarks.unknowns --methods strata --on train    # how the score for unknowns was chosen
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.first_calibration import FirstCalibration
from ease.app.calibration import Calibration, auroc, expected_calibration_error, hold_out
from ease.backbone import Backbone
from ease.backbone.zoo import EMBEDDED, load_backbone
from ease.config import resolve
from ease.methods import Learner, find_method
from ease.streams import ImageSet, Stream, Task
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

JUDGED = 18
"""Images per class that are judged in the end."""
FAR = 300
"""Images of another dataset."""
COLUMNS = ("right", "confidence", "ECE", "accepted", "near", "AUROC", "far", "AUROC")
Calibrated = FirstCalibration | Calibration


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="glyphs")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--protocol", default="B0 Inc6")
    parser.add_argument("--backbone", default=EMBEDDED)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--input-size", type=int)
    parser.add_argument("--far", default="digits", help="dataset whose images are far")
    parser.add_argument("--far-root", type=Path)
    parser.add_argument("--limit", type=int, default=20, help="images per class to learn from and hold out")
    parser.add_argument("--methods", nargs="+", default=["ease", "strata"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1993, 1, 2])
    parser.add_argument(
        "--on", choices=("test", "train"), default="test", help="train: images neither learned nor held out"
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    backbone = load_backbone(asked.backbone, weights=asked.weights, input_size=asked.input_size)
    rows: dict[str, list[list[float]]] = defaultdict(list)
    scores: dict[str, list[list[float]]] = defaultdict(list)
    for seed in asked.seeds:
        stream = make_stream(load_dataset(asked.dataset, asked.data_root), asked.protocol, seed)
        for method in asked.methods:
            judged = Judged(asked, backbone, stream, method, seed)
            for name, calibration in judged.calibrations.items():
                rows[f"{method:8s} {name}"].append(judged.row(calibration))
            for name, score in SCORES.items():
                scores[f"{method:8s} {name}"].append(judged.told(score))
    print(f"{asked.dataset}, {asked.backbone}, {asked.on} images, {len(asked.seeds)} seeds; percent, AUROC\n")
    print(f"{'':18s}" + "".join(f"{name:>12s}" for name in COLUMNS))
    for name, found in rows.items():
        print(f"{name:18s}" + "".join(_written(mean) for mean in np.mean(found, axis=0)))
    if asked.on == "train":
        print(f"\n{'AUROC of':38s}{'near':>8s}{'far':>8s}")
        for name, found in scores.items():
            near, far = np.mean(found, axis=0)
            print(f"{name:38s}{near:8.3f}{far:8.3f}")


def _written(number: float) -> str:
    return f"{number:12.3f}"


class Judged:
    """One model that has learned half of the classes, what it was calibrated to, and its logits of other images.

    Attributes:
        calibrations: by name; see the top of this file.
        known: logits [N, C] of images of its classes.
        labels: [N], their classes.
        near: logits of images of the classes it does not know.
        far: logits of images of another dataset.
    """

    def __init__(
        self, asked: argparse.Namespace, backbone: Backbone, stream: Stream, method: str, seed: int
    ) -> None:
        engine = Engine(backbone, Transforms(backbone.pixels, stream.augmentation), seed=seed)
        self._learner = _new(method, engine, asked.backbone)
        half = sum(len(task.classes) for task in stream.tasks) // 2
        known = [task for task in stream.tasks if task.classes.stop <= half]
        unknown = [t for t in stream.tasks if t.classes.start >= known[-1].classes.stop]
        self.calibrations: dict[str, Calibrated] = {}
        for task in known:
            self._learn(task, asked.limit)

        def shown(tasks: Iterable[Task]) -> list[ImageSet]:
            if asked.on == "test":
                return [task.test.limit(JUDGED) for task in tasks]
            return [_left_over(task, asked.limit) for task in tasks]

        ours = shown(known)
        self.known = torch.cat([self._logits(images) for images in ours])
        self.labels = torch.cat([torch.from_numpy(images.labels) for images in ours])
        self.near = torch.cat([self._logits(images) for images in shown(unknown)])
        others = load_dataset(asked.far, asked.far_root)
        strangers = others.test if asked.on == "test" else others.train
        few = max(1, FAR // len(others.class_names))
        self.far = self._logits(strangers.limit(few))

    def _learn(self, task: Task, limit: int) -> None:
        learn, held = hold_out(task.train.limit(limit))
        self._learner.learn(replace(task, train=learn))
        logits, labels = self._logits(held), torch.from_numpy(held.labels)
        made = self.calibrations
        made["first"] = made.get("first", FirstCalibration()).joined(FirstCalibration.fit(logits, labels))
        made["held out"] = made.get("held out", Calibration.none()).joined(logits, labels)
        if self._learner.left_out is not None:
            everything = torch.cat([self._learner.left_out, logits])
            all_labels = torch.cat([torch.from_numpy(learn.labels), labels])
            made["left out"] = made.get("left out", Calibration.none()).joined(everything, all_labels)

    def _logits(self, images: ImageSet) -> Tensor:
        learner = self._learner
        tunings = [subspace.tuning for subspace in learner.subspaces()]
        return learner.head(learner.engine.features(images, tunings, reading=learner.reading))

    def row(self, calibration: Calibrated) -> list[float]:
        """See `COLUMNS`."""
        sure = calibration.confidences(self.known)
        known, near, far = (calibration.unknown(logits) for logits in (self.known, self.near, self.far))
        return [
            100 * _mean(self.known.argmax(dim=1) == self.labels),
            100 * _mean(sure.amax(dim=1)),
            100 * expected_calibration_error(sure, self.labels),
            100 * _mean(known <= 0.5),
            100 * _mean(near > 0.5),
            auroc(known, near),
            100 * _mean(far > 0.5),
            auroc(known, far),
        ]

    def told(self, score: Callable[[Tensor, Calibration], Tensor]) -> list[float]:
        """AUROC of a score that is high for known images: near and far."""
        calibration = self.calibrations.get("left out", self.calibrations["held out"])
        assert isinstance(calibration, Calibration)
        known, near, far = (
            -score(logits.double(), calibration) for logits in (self.known, self.near, self.far)
        )
        return [auroc(known, near), auroc(known, far)]


def _new(method: str, engine: Engine, backbone: str) -> Learner:
    """With the settings of the app."""
    preset = "few-images" if backbone == EMBEDDED and method == "ease" else None
    config, _ = resolve({"method": method}, preset=preset)
    learner_type = find_method(method)
    return learner_type(engine, learner_type.Settings.model_validate(config.settings))


def _left_over(task: Task, limit: int) -> ImageSet:
    """Training images that were neither learned from nor held out."""
    own = [np.flatnonzero(task.train.labels == c)[limit : limit + JUDGED] for c in task.classes]
    return task.train.take(np.concatenate(own))


def _mean(numbers: Tensor) -> float:
    return float(numbers.double().mean())


# --- scores that were compared --------------------------------------------------------------------


def _largest(logits: Tensor, calibration: Calibration) -> Tensor:
    return logits.amax(dim=1)


def _probability(logits: Tensor, calibration: Calibration) -> Tensor:
    return calibration.confidences(logits).amax(dim=1)


def _margin(logits: Tensor, calibration: Calibration) -> Tensor:
    best = logits.topk(2, dim=1).values
    return best[:, 0] - best[:, 1]


def _energy(logits: Tensor, calibration: Calibration) -> Tensor:
    return calibration.temperature * (logits / calibration.temperature).logsumexp(dim=1)


def _novelty(share: float) -> Callable[[Tensor, Calibration], Tensor]:
    """The largest logit less this share of what the class's own images have."""

    def score(logits: Tensor, calibration: Calibration) -> Tensor:
        best, where = logits.max(dim=1)
        assert calibration.evidence is not None
        return best - share * torch.tensor([mean for mean, _ in calibration.evidence.own]).double()[where]

    return score


SCORES: dict[str, Callable[[Tensor, Calibration], Tensor]] = {
    "largest probability": _probability,
    "margin": _margin,
    "energy": _energy,
    "largest logit": _largest,
    **{f"largest logit - {share} x own": _novelty(share) for share in (0.25, 0.5, 0.75, 1.0)},
}
"""All high for known images."""


if __name__ == "__main__":
    main()
