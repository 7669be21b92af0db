"""SSIAT's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.heads.drift import drift, unpaired_drift
from ease.heads.losses import cosine_margin
from ease.methods.ssiat import Ssiat, SsiatSettings
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Ssiat:
    quick = {
        "epochs": 2,
        "later_epochs": 2,
        "batch_size": 12,
        "rank": 4,
        "align_draws": 16,
        "shift_sigma": 1.0,
    }
    return Ssiat(engine, SsiatSettings(**{**quick, **settings}))


@pytest.mark.parametrize(("variant", "estimate"), [("text", drift), ("released", unpaired_drift)])
def test_old_means_move_by_the_drift_and_covariances_stay(
    variant: str, estimate: Any, engine: Engine, stream: Stream
) -> None:
    learner = make(engine, variant=variant, lr=0.1)
    learner.learn(stream.tasks[0])
    means, covariance = learner.gaussians.means.clone(), learner.gaussians.covariance_of(0)
    before = engine.features(stream.tasks[1].train, [learner.tuned])[0]
    learner.learn(stream.tasks[1])
    after = engine.features(stream.tasks[1].train, [learner.tuned])[0]
    expected = means + estimate(before, after, means, 1.0, 1e-5)
    assert torch.allclose(learner.gaussians.means[:2], expected, atol=1e-6)
    assert torch.equal(learner.gaussians.covariance_of(0), covariance)


def test_the_margin_by_hand() -> None:
    cosines, labels = torch.tensor([[0.5, 0.3], [0.1, 0.9]]), torch.tensor([0, 1])
    by_hand = F.cross_entropy(20 * torch.tensor([[0.2, 0.3], [0.1, 0.6]]), labels)
    assert torch.allclose(cosine_margin(20 * cosines, labels, 20.0, 0.3), by_hand)
    assert torch.equal(cosine_margin(20 * cosines, labels, 20.0, 0.0), F.cross_entropy(20 * cosines, labels))


def test_a_logit_is_twenty_times_a_cosine(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0])
    images = stream.tasks[0].test
    features = engine.features(images, [learner.tuned])[0]
    expected = 20 * F.cosine_similarity(features[:, None], learner.linear.weight.detach()[None], dim=-1)
    assert torch.allclose(learner.logits(engine.pixels(images)), expected, atol=1e-4)


def test_later_tasks_have_their_own_number_of_epochs(engine: Engine, stream: Stream) -> None:
    learner = make(engine, epochs=3, later_epochs=1)
    for task in stream.tasks[:2]:
        learner.learn(task)
    images = len(stream.tasks[0].train), len(stream.tasks[1].train)
    assert engine.ledger.passes["train"] == 3 * images[0] + 1 * images[1]


def test_bytes_of_a_low_rank_covariance_are_fewer(engine: Engine, stream: Stream) -> None:
    stored = []
    for form in ("full", "low-rank", "diagonal"):
        learner = make(engine, covariance=form, covariance_rank=2)
        learner.learn(stream.tasks[0])
        stored.append(learner.costs().stored)
    dim = engine.backbone.dim
    assert stored[0] - stored[1] == 2 * (dim * (dim + 1) // 2 - 3 * dim)
    assert stored[1] - stored[2] == 2 * 2 * dim
