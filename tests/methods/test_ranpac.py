"""RanPAC's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.errors import EaseError
from ease.experiments.predictor import Predictor
from ease.heads.ridge import RidgeHead
from ease.methods.ranpac import RIDGES, Ranpac, RanpacSettings
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Ranpac:
    quick = {"epochs": 2, "lr": 0.05, "batch_size": 12, "rank": 4, "scale": 1.0, "projection": 40}
    return Ranpac(engine, RanpacSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Ranpac:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def closed_form(hidden: torch.Tensor, labels: torch.Tensor, ridge: float) -> torch.Tensor:
    wanted = F.one_hot(labels).double()
    return torch.linalg.solve(hidden.T @ hidden + ridge * torch.eye(hidden.shape[1]), hidden.T @ wanted)


@pytest.mark.parametrize("ridge", [1e-3, 1.0, 1e4])
def test_running_sums_give_the_closed_form_of_all_images_at_once(ridge: float) -> None:
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(30, 8, generator=draw, dtype=torch.float64).relu()
    labels = torch.arange(30) // 5
    head = RidgeHead(8)
    for task in range(3):
        head.grow(2)
        rows = slice(10 * task, 10 * task + 10)
        head.add(hidden[rows], labels[rows])
    weights = head.weights(ridge)
    assert weights is not None
    assert torch.allclose(weights, closed_form(hidden, labels, ridge), rtol=1e-8, atol=1e-12)


def test_a_learner_of_three_tasks_is_the_regression_on_all_their_images(
    engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream)
    tuned = [learner.tuned]
    hidden = torch.cat([learner.project(engine.features(t.train, tuned)[0]) for t in stream.tasks])
    labels = torch.cat([torch.from_numpy(t.train.labels) for t in stream.tasks])
    weights = closed_form(hidden, labels, learner.ridge)
    for task in stream.tasks:
        expected = learner.project(engine.features(task.test, tuned)[0]) @ weights
        found = Predictor(learner).logits(task.test)
        assert torch.allclose(found.double(), expected, atol=1e-4)


def test_features_are_rectified_products_with_standard_normals(engine: Engine) -> None:
    learner = make(engine, projection=5000)
    hidden = learner.project(torch.eye(engine.backbone.dim))
    negated = learner.project(-torch.eye(engine.backbone.dim))
    weights = hidden - negated
    assert ((hidden == 0) | (negated == 0)).all()
    assert abs(float(weights.mean())) < 0.01
    assert abs(float(weights.square().mean()) - 1) < 0.02
    assert abs(float(weights.pow(4).mean()) - 3) < 0.1, "the fourth moment of a normal"


def test_the_ridge_is_the_best_on_images_that_were_held_out(engine: Engine) -> None:
    """Labels that features say nothing about want a large ridge, labels that they determine a small one."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(60) % 2
    noise = torch.randn(60, 20, generator=draw, dtype=torch.float64)
    clear = torch.cat([F.one_hot(labels).double(), 0.01 * noise], dim=1)
    chosen = []
    for features in (noise, clear):
        head = RidgeHead(features.shape[1])
        head.grow(2)
        head.add(features[:40], labels[:40])
        errors = []
        for ridge in RIDGES:
            weights = closed_form(features[:40], labels[:40], ridge)
            errors.append(float((features[40:] @ weights - F.one_hot(labels[40:])).square().mean()))
        best = head.best_ridge(RIDGES, features[40:], labels[40:])
        assert best == RIDGES[errors.index(min(errors))]
        chosen.append(best)
    assert chosen[0] > 1e3 * chosen[1]


def test_it_tunes_on_the_first_task_only(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0])
    assert learner.tuned is not None
    first = learner.tuned.fingerprint()
    for task in stream.tasks[1:]:
        learner.learn(task)
    assert learner.tuned.fingerprint() == first
    assert learner.costs().trained[1:] == [0, 0]


def test_a_ridge_that_is_too_small_is_passed_over() -> None:
    head = RidgeHead(6)
    head.grow(1)
    head.add(1e9 * torch.ones(2, 6), torch.zeros(2, dtype=torch.int64))
    assert head.weights(1e-8) is None
    assert torch.isfinite(head.solve([1e-8, 1e8])).all()
    head.add(torch.full((1, 6), torch.nan), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(EaseError, match="finite"):
        head.solve(RIDGES)


def test_width_follows_the_backbone(engine: Engine) -> None:
    assert make(engine, projection="auto").width == 2000
    assert make(engine, projection=77).width == 77
