"""Are wrong labels found? Recall of swapped labels at a stated rate of false alarms, beside two simpler ways.

    clean     nothing is swapped: the share of photos that are named although every label is right
    swapped   5 % of the labels are replaced by another class at random, three draws
    moved     five photos of one class lie in the folder of another, six pairs of classes

The audit states its false-alarm rate before it knows what is wrong; `named` is the share of right labels that it named.
`one out`, `recall`: the same with scores from which only the photo itself was left out, as in the app's calibration,
and not the scatter of its class. Then two simpler ways: agreement of the ten nearest neighbours (kNN), and the margin
of confident learning (Northcutt et al., 2021), computed by hand from the same scores. Neither states a rate, so they
are given the threshold that names as many right labels as the audit did, which nobody would know. Training photos.

    python -m benchmarks.label_audit                  # with the embedded ViT, and photos-42 with DeiT-tiny
    python -m benchmarks.label_audit --sets glyphs
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.class_folders import BACKBONES, DEIT, SETS
from ease.app.audit import FALSE_ALARMS
from ease.backbone.zoo import load_backbone
from ease.heads.label_noise import LabelNoise
from ease.heads.left_out import left_out_scores
from ease.heads.whitened import WhitenedHead
from ease.methods import JudgesLabels, Learner, find_method
from ease.streams.intake import collect_images
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

SHARE, DRAWS, MOVED, PAIRS = 0.05, 3, 5, 6
COLUMNS = ("named", "recall", "one out", "recall", "kNN", "margin")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=["glyphs", "photos-42"])
    parser.add_argument("--backbones", nargs="+", default=list(BACKBONES), choices=BACKBONES)
    parser.add_argument("--classes", type=int, help="only the first classes, as in a small folder")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"stated rate of false alarms: {100 * FALSE_ALARMS:g} %. Percent, training photos.\n")
    print(f"{'':44s}" + "".join(f"{title:>8s}" for title in COLUMNS))
    for name in asked.sets:
        for backbone in asked.backbones:
            if name == "glyphs" and backbone == DEIT:
                continue
            if (why := SETS[name].lacks(backbone)) is not None:
                print(why)
                continue
            learner, features, labels = _features(name, backbone, asked.classes)
            for case, rows in _cases(labels).items():
                found = np.array([_judged(learner, features, *row) for row in rows])
                shown = "".join("       -" if np.isnan(v) else f"{100 * v:8.1f}" for v in found.mean(axis=0))
                print(f"{name + ', ' + backbone:36s}{case:8s}{shown}", flush=True)


def _features(name: str, backbone: str, classes: int | None) -> tuple[Learner, Tensor, Tensor]:
    """A learner that knows nothing, and the features [1, N, K] and labels [N] of the training photos."""
    model = SETS[name].model(backbone)
    frozen = load_backbone(model.backbone, weights=model.weights, input_size=model.input_size)
    method = find_method("strata")
    learner = method(Engine(frozen, Transforms(frozen.pixels)), method.Settings())
    with tempfile.TemporaryDirectory() as folder:
        photos = collect_images(SETS[name].write(Path(folder), steps=1, classes=classes).steps[0])
        features = learner.engine.features(photos.images, [None], reading=learner.reading)
    return learner, features, torch.from_numpy(photos.images.labels)


def _cases(labels: Tensor) -> dict[str, list[tuple[Tensor, Tensor]]]:
    """Labels and which of them are wrong, by case."""
    clean = (labels, torch.zeros(len(labels), dtype=torch.bool))
    return {"clean": [clean], "swapped": list(_swapped(labels)), "moved": list(_moved(labels))}


def _swapped(labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    classes = int(labels.max()) + 1
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        chosen = rng.choice(len(labels), round(SHARE * len(labels)), replace=False)
        given, wrong = labels.clone(), torch.zeros(len(labels), dtype=torch.bool)
        given[chosen] = (labels[chosen] + torch.from_numpy(rng.integers(1, classes, len(chosen)))) % classes
        wrong[chosen] = True
        yield given, wrong


def _moved(labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    for draw in range(PAIRS):
        rng = np.random.default_rng(draw)
        place, origin = rng.choice(int(labels.max()) + 1, 2, replace=False)
        chosen = rng.choice(np.flatnonzero(labels.numpy() == origin), MOVED, replace=False)
        given, wrong = labels.clone(), torch.zeros(len(labels), dtype=torch.bool)
        given[chosen], wrong[chosen] = int(place), True
        yield given, wrong


def _judged(learner: Learner, features: Tensor, labels: Tensor, wrong: Tensor) -> list[float]:
    """See `COLUMNS`."""
    assert isinstance(learner, JudgesLabels)
    classes = int(labels.max()) + 1
    scores = learner.label_scores(features, labels, classes)
    named, plainly = _named(scores, labels), _named(_plain_scores(features[0], labels, classes), labels)
    rate, plain_rate = (float(each[~wrong].double().mean()) for each in (named, plainly))
    if not bool(wrong.any()):
        return [rate, float("nan"), plain_rate, *[float("nan")] * 3]
    recall, plain_recall = (float(each[wrong].double().mean()) for each in (named, plainly))
    rivals = [_neighbours(features[0], labels), _confident_margin(scores, labels)]
    recalls = [float((v[wrong] < torch.quantile(v[~wrong], rate)).double().mean()) for v in rivals]
    return [rate, recall, plain_rate, plain_recall, *recalls]


def _named(scores: Tensor, labels: Tensor) -> Tensor:
    """Which photos `ease.app.audit` names for their labels, bool [N]."""
    noise, own = LabelNoise.fit(scores, labels), scores.double().gather(1, labels[:, None])[:, 0]
    improbable = noise.of_labels(labels) < noise.threshold(noise.probabilities, FALSE_ALARMS / 2)
    return improbable | (own < noise.threshold(scores.double(), FALSE_ALARMS / 2))


def _plain_scores(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Each photo left out alone; its class is part of the covariance."""
    head = WhitenedHead(features.shape[1], parts=8)
    head.grow(classes)
    head.add(features, labels)
    return left_out_scores(head, features, labels)


def _neighbours(features: Tensor, labels: Tensor, count: int = 10) -> Tensor:
    """The share of the nearest photos, by cosine, that have the same label, [N]; ties by how near they are."""
    units = F.normalize(features - features.mean(dim=0), dim=1)
    alike = (units @ units.mT).fill_diagonal_(-2)
    near = alike.topk(count, dim=1)
    same = (labels[near.indices] == labels[:, None]).double()
    return same.mean(dim=1) + 1e-6 * near.values.double().mean(dim=1)


def _confident_margin(scores: Tensor, labels: Tensor) -> Tensor:
    """Own probability minus the largest other, each relative to the mean self-confidence of its class, [N]."""
    p = LabelNoise.fit(scores, labels).probabilities
    usual = torch.stack([p[labels == c, c].mean() for c in range(p.shape[1])])
    above = p - usual
    own = above.gather(1, labels[:, None])[:, 0]
    return own - above.scatter(1, labels[:, None], -9).max(dim=1).values


if __name__ == "__main__":
    main()
