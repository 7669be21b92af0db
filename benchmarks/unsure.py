"""Which photos the inbox collects, and whether classes that the model does not know are found as groups among them.

A fifth of the classes is left out, the others are learned as the app does it, and then photos of all classes arrive.
Five draws of the classes; the tables have means over them. Two questions:

    collected  the share of photos that are collected as unsure, in percent: of known classes, of those among them that
               are answered wrongly and rightly, and of the classes that were left out
    groups     look-alikes that are offered as a new class: how many groups, the mean share of a group's most frequent
               class (purity), the share of groups that are mostly of one left-out class (new), and for how many of the
               left-out classes there is a group of which at least three quarters are of that class (found); `could`:
               left-out classes with at least three photos among those that are compared

Thresholds were chosen on training photos that the model has not learned, which is what is shown by default, with other
values beside the chosen ones. `--on test` draws other classes and shows test photos, for the chosen values only, beside
the first version of the groups: only photos that are like no class were compared, and were alike from half way
between the cosines expected of two images of one class and of two classes.

    python -m benchmarks.unsure
    python -m benchmarks.unsure --on test
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.class_folders import BACKBONES, DEIT, SETS
from ease.app.calibration import Calibration, hold_out
from ease.app.prediction import UNKNOWN_THRESHOLD
from ease.app.unsure import NEAR_UNKNOWN, SMALLEST_GROUP, UNSURE_CONFIDENCE, look_alikes
from ease.backbone.zoo import load_backbone
from ease.heads.whitened import UNRELATED, WhitenedHead
from ease.methods.strata import Strata
from ease.streams import ImageSet, Task
from ease.streams.intake import collect_images
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

LEFT_OUT = 5
"""One of so many classes is left out."""
LEARNED = {("glyphs", "train"): 20, ("photos-42", "train"): 15}
"""Photos per class to learn, where the rest of the training photos is shown; 20 where test photos are shown."""
SHOWN = 18
"""Training photos per class that are shown, at most; as many as there are test photos of a glyph."""
FIRST_DRAW = {"train": 0, "test": 100}
"""Classes are drawn again for the test."""
MOSTLY = 0.75
"""The share of a group that must be of one class for that class to be found."""
CONFIDENCES, NEAR, FACTORS = (0.3, 0.4, 0.6, 0.7), (0.3, 0.5), (3.0, 3.5, 4.5, 5.0)
"""What was compared with the chosen values."""
COLLECTED = ("known", "wrong", "right", "left out")
GROUPS = ("groups", "purity", "new", "found", "could", "left out")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=["glyphs", "photos-42"], choices=("glyphs", "photos-42"))
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--on", choices=("train", "test"), default="train")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--classes", type=int, help="only the first classes, as in a small folder")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.sets:
        for backbone in asked.backbones:
            if name == "glyphs" and backbone == DEIT:
                continue
            if (why := SETS[name].lacks(backbone)) is not None:
                print(why)
                continue
            photos = Photos.of(name, backbone, asked.on, asked.classes)
            first = FIRST_DRAW[asked.on]
            drawn = [Drawn(photos, draw) for draw in range(first, first + asked.draws)]
            print(f"\n{name}, {backbone}, {asked.on} photos, {asked.draws} draws", flush=True)
            print(f"{'collected':40s}" + "".join(f"{title:>9s}" for title in COLLECTED))
            for title, chosen in _choices(asked.on).items():
                print(f"{title:40s}" + _row([100 * one.collected(*chosen) for one in drawn]), flush=True)
            print(f"{'groups':40s}" + "".join(f"{title:>9s}" for title in GROUPS))
            for title, way in _ways(asked.on).items():
                print(f"{title:40s}" + _row([one.grouped(*way(one)) for one in drawn]), flush=True)


def _row(values: list[np.ndarray]) -> str:
    """Means over draws; a draw without a value, such as the purity of no group, does not count."""
    table = np.array(values)
    means = [np.nan if np.isnan(own).all() else float(np.nanmean(own)) for own in table.T]
    return "".join(f"{'-':>9s}" if np.isnan(mean) else f"{mean:9.1f}" for mean in means)


@dataclass(frozen=True)
class Photos:
    """The photos of one set as features, so that every draw can use them.

    Attributes:
        new: Makes a learner that knows nothing.
        features: Photos to learn, [1, N, K].
        labels: Their classes, [N].
        held: Which of them the app holds out at first to measure on, bool [N].
        shown: Photos that arrive later, [1, M, K].
        shown_labels: Their classes, [M].
    """

    new: Callable[[], Strata]
    features: Tensor
    labels: Tensor
    held: Tensor
    shown: Tensor
    shown_labels: Tensor

    @classmethod
    def of(cls, name: str, backbone: str, on: str, classes: int | None) -> Photos:
        """Photos to learn, and the others of the training photos or the test photos."""
        model = SETS[name].model(backbone)
        frozen = load_backbone(model.backbone, weights=model.weights, input_size=model.input_size)

        def new() -> Strata:
            return Strata(Engine(frozen, Transforms(frozen.pixels)), Strata.Settings())

        with tempfile.TemporaryDirectory() as folder:
            written = SETS[name].write(Path(folder), steps=1, classes=classes)
            train, count = collect_images(written.steps[0]).images, LEARNED.get((name, on), 20)
            learned, later = _of_each_class(train, 0, count), _of_each_class(train, count, count + SHOWN)
            shown = later if on == "train" else collect_images(written.test).images
            learner, held = new(), set(hold_out(learned)[1].indices.tolist())
            features, arriving = (
                learner.engine.features(images, [None], reading=learner.reading)
                for images in (learned, shown)
            )
        return cls(
            new,
            features,
            torch.from_numpy(learned.labels),
            torch.tensor([at in held for at in learned.indices.tolist()]),
            arriving,
            torch.from_numpy(shown.labels),
        )


def _of_each_class(images: ImageSet, start: int, stop: int) -> ImageSet:
    """Some images of each class, in their order."""
    own = [np.flatnonzero(images.labels == label)[start:stop] for label in np.unique(images.labels)]
    return images.take(np.concatenate(own))


class Drawn:
    """A model without a fifth of the classes, and what it says of the photos that arrive.

    Attributes:
        head: What it has learned.
        labels: Class of each photo that arrives, [M].
        left_out: The classes that the model does not know.
        right: Which photos are answered rightly, bool [M].
        confidence: In the answer, [M].
        unknown: The unknown score, [M].
        directions: By which photos are compared, [M, K].
    """

    def __init__(self, photos: Photos, draw: int) -> None:
        self.labels = photos.shown_labels
        order = np.random.default_rng(draw).permutation(int(self.labels.max()) + 1).tolist()
        count = max(1, len(order) // LEFT_OUT)
        self.left_out, known = set(order[:count]), sorted(order[count:])
        place = torch.full((len(order),), -1)
        place[known] = torch.arange(len(known))
        learner, labels = photos.new(), place[photos.labels]
        calibration = _learned(learner, photos, labels, len(known))
        self.head: WhitenedHead = learner.sums
        logits = learner.head(photos.shown)
        self.right = logits.argmax(dim=1) == place[self.labels]
        self.confidence = calibration.confidences(logits).amax(dim=1)
        self.unknown = calibration.unknown(logits)
        self.directions = learner.directions(photos.shown)

    def unsure(self, confidence: float = UNSURE_CONFIDENCE, near: float = NEAR_UNKNOWN) -> Tensor:
        """Which photos are collected, bool [M]; see `ease.app.unsure.is_unsure`."""
        return (self.confidence < confidence) | (self.unknown > near)

    def collected(self, confidence: float, near: float) -> np.ndarray:
        """See `COLLECTED`."""
        new = torch.tensor([label in self.left_out for label in self.labels.tolist()])
        unsure = self.unsure(confidence, near)
        parts = (~new, ~new & ~self.right, ~new & self.right, new)
        return np.array([float(unsure[part].double().mean()) for part in parts])

    def grouped(self, compared: Tensor, least: float, any_group: bool = False) -> np.ndarray:
        """See `GROUPS`; of the photos that are compared, bool [M], with any group if none has to be like no class."""
        labels, unknown = self.labels[compared], self.unknown[compared] > UNKNOWN_THRESHOLD
        groups = look_alikes(self.directions[compared], unknown | any_group, least)
        purities, new, found = [], [], set()
        for group in groups:
            own, counts = labels[group].unique(return_counts=True)
            label, share = int(own[counts.argmax()]), float(counts.max()) / len(group)
            purities.append(100 * share)
            new.append(100.0 * (label in self.left_out and share > 0.5))
            if label in self.left_out and share >= MOSTLY:
                found.add(label)
        could = sum(int((labels == label).sum()) >= SMALLEST_GROUP for label in self.left_out)
        means = (float(np.mean(each)) if each else np.nan for each in (purities, new))
        return np.array([len(groups), *means, len(found), could, len(self.left_out)])


def _learned(learner: Strata, photos: Photos, labels: Tensor, classes: int) -> Calibration:
    """Learn the classes with labels [N] >= 0 and calibrate, as `Classifier.learn` does it."""
    known = labels >= 0
    learn, held = known & ~photos.held, known & photos.held
    nothing = ImageSet.of_arrays(np.zeros((0, 1, 1, 3), np.uint8), [])
    names = tuple(map(str, range(classes)))
    learner.collect(
        Task(0, range(classes), names, nothing, nothing), photos.features[:, learn], labels[learn]
    )
    assert learner.left_out is not None
    judged = torch.cat([learner.left_out, learner.head(photos.features[:, held])])
    learner.sums.add(photos.features[0, held], labels[held])
    return Calibration.fit(judged, torch.cat([labels[learn], labels[held]]))


def _choices(on: str) -> dict[str, tuple[float, float]]:
    """Least confidence and largest unknown score of photos that are not collected."""
    chosen = (UNSURE_CONFIDENCE, NEAR_UNKNOWN)
    rows = [chosen]
    if on == "train":
        rows += [(confidence, NEAR_UNKNOWN) for confidence in CONFIDENCES]
        rows += [(UNSURE_CONFIDENCE, near) for near in NEAR]
    return {f"confidence < {row[0]:g} or unknown > {row[1]:g}" + " *" * (row == chosen): row for row in rows}


Way = Callable[[Drawn], tuple[Tensor, float, bool]]


def _ways(on: str) -> dict[str, Way]:
    """Which photos are compared, the cosine from which they are alike, and whether any group counts."""

    def by_chance(factor: float) -> Way:
        return lambda one: (one.unsure(), one.head.alike_from() * factor / UNRELATED, False)

    ways: dict[str, Way] = {
        f"unsure, {UNRELATED:g} deviations *": by_chance(UNRELATED),
        "the first version": lambda one: (one.unknown > UNKNOWN_THRESHOLD, half_way(one.head), False),
    }
    if on == "train":
        ways |= {f"unsure, {factor:g} deviations": by_chance(factor) for factor in FACTORS}
        ways["unsure, half way"] = lambda one: (one.unsure(), half_way(one.head), False)
        ways["unsure, none needs to be like no class"] = lambda one: (
            one.unsure(),
            one.head.alike_from(),
            True,
        )
    return ways


def half_way(head: WhitenedHead) -> float:
    """Half way between the cosines that two images of one class and of two classes are expected to have."""
    found = head.whitening()
    matrix, means = found.matrix.double(), found.directions.double() * found.lengths.double()[:, None]
    spread = float((matrix @ head.scatter @ matrix.mT).trace()) / head.freedom
    lengths = (means.square().sum(dim=1) + spread).sqrt()
    cosines = (means @ means.mT) / (lengths[:, None] * lengths)
    within = float(cosines.diagonal().mean())
    return (within + (float(cosines.sum()) - len(means) * within) / (len(means) * (len(means) - 1))) / 2


if __name__ == "__main__":
    main()
