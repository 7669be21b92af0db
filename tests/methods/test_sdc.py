"""SDC's own promises."""

from __future__ import annotations

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
