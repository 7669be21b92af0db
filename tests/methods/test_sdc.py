"""SDC's own promises."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from ease.heads.drift import drift
from ease.methods.sdc import Sdc, SdcSettings
from ease.streams import ImageSet, Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Sdc:
    return Sdc(engine, SdcSettings(**{"epochs": 3, "lr": 0.01, "batch_size": 12, **settings}))


def unit(learner: Sdc, images: ImageSet) -> torch.Tensor:
    return F.normalize(learner.engine.features(images, [learner.tuned])[0], dim=-1)


def test_the_drift_of_a_prototype_done_by_hand() -> None:
    # Two images at distance 0 and 0.6 from the prototype, sigma 0.3: weights 1 and exp(-2).
    before = torch.tensor([[1.0, 0.0], [1.0, 0.6]])
    after = torch.tensor([[1.0, 0.1], [1.4, 0.6]])
    near, far = 1 / (1 + math.exp(-2)), math.exp(-2) / (1 + math.exp(-2))
    moved = drift(before, after, torch.tensor([[1.0, 0.0]]), sigma=0.3)
    assert torch.allclose(moved, torch.tensor([[0.4 * far, 0.1 * near]]))


def test_a_prototype_far_from_all_images_still_moves() -> None:
    # Plain exponentials would all be 0 here, and the mean 0 / 0.
    moved = drift(torch.zeros(2, 2), torch.ones(2, 2), torch.full((1, 2), 100.0), sigma=0.3)
    assert torch.allclose(moved, torch.ones(1, 2))


def test_old_prototypes_move_by_the_drift_of_new_images_and_it_accumulates(
    engine: Engine, stream: Stream
) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0])
    expected = learner.prototypes.clone()
    for task in stream.tasks[1:]:
        before = unit(learner, task.train)
        learner.learn(task)
        expected = expected + drift(before, unit(learner, task.train), expected, 0.3)
        assert torch.allclose(learner.prototypes[: len(expected)], expected, atol=1e-6)
        expected = learner.prototypes.clone()
    assert len(learner.prototypes) == 6


def test_new_prototypes_are_means_and_the_nearest_one_wins(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    for task in stream.tasks:
        learner.learn(task)
    last = stream.tasks[-1].train
    mean = unit(learner, last)[torch.from_numpy(last.labels) == 5].mean(0)
    assert torch.allclose(learner.prototypes[5], mean, atol=1e-6)
    images = stream.tasks[0].test
    nearest = torch.cdist(unit(learner, images), learner.prototypes).argmin(1)
    assert torch.equal(learner.logits(engine.pixels(images)).argmax(1), nearest)
