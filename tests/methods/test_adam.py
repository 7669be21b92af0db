"""ADAM's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.experiments.predictor import Predictor
from ease.methods import find_method
from ease.methods.adam import Adam
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.features import FeatureStore

VARIANTS = {
    "adam-finetune": "full",
    "adam-vpt-shallow": "vpt-shallow",
    "adam-vpt-deep": "vpt-deep",
    "adam-ssf": "ssf",
    "adam-adapter": "adapter",
}
every_variant = pytest.mark.parametrize("name", list(VARIANTS))


def make(name: str, engine: Engine, **settings: Any) -> Adam:
    method = find_method(name)
    quick = {"epochs": 2, "lr": 0.02, "batch_size": 12, "rank": 4, "scale": 1.0, "length": 2, "sigma": 8.0}
    quick |= settings
    known = {key: value for key, value in quick.items() if key in method.Settings.model_fields}
    learner = method(engine, method.Settings.model_validate(known))
    assert isinstance(learner, Adam)
    return learner


@every_variant
def test_it_tunes_on_the_first_task_only(name: str, engine: Engine, stream: Stream) -> None:
    learner = make(name, engine)
    learner.learn(stream.tasks[0])
    assert learner.tuned is not None
    assert learner.tuned.kind == VARIANTS[name]
    first = learner.tuned.fingerprint()
    trained = engine.ledger.passes["train"]
    assert trained == 2 * len(stream.tasks[0].train)
    for task in stream.tasks[1:]:
        learner.learn(task)
    assert learner.tuned.fingerprint() == first
    assert engine.ledger.passes["train"] == trained
    assert learner.costs().trained[1:] == [0, 0]


@every_variant
def test_logits_are_one_cosine_over_ptm_and_tuned_side_by_side(
    name: str, engine: Engine, stream: Stream
) -> None:
    learner = make(name, engine)
    for task in stream.tasks:
        learner.learn(task)
    tunings = [None, learner.tuned]

    def merged(images: Any) -> torch.Tensor:
        ptm, tuned = engine.features(images, tunings)
        return torch.cat([ptm, tuned], dim=1)

    prototypes = torch.stack(
        [
            merged(task.train)[torch.from_numpy(task.train.labels) == c].mean(0)
            for task in stream.tasks
            for c in task.classes
        ]
    )
    found = merged(stream.tasks[1].test)
    expected = F.cosine_similarity(found[:, None], prototypes[None], dim=-1)
    ours = Predictor(learner).logits(stream.tasks[1].test)
    assert torch.allclose(ours, expected, atol=1e-5)
    ptm, tuned = engine.features(stream.tasks[1].test, tunings)
    assert not torch.allclose(ptm, tuned, atol=1e-3), "tuning has moved the copy"


def test_features_of_both_subspaces_keep(engine: Engine, stream: Stream) -> None:
    learner = make("adam-adapter", engine)
    predictor = Predictor(learner, FeatureStore())
    for task in stream.tasks:
        learner.learn(task)
        predictor.logits([t.test for t in stream.tasks[: task.index + 1]])
    assert predictor.computed == 2 * sum(len(task.test) for task in stream.tasks)


def test_the_journal_calls_it_aper() -> None:
    for name in VARIANTS:
        assert find_method(name.replace("adam", "aper")).name == name


def test_defaults_are_the_public_ones() -> None:
    for name in VARIANTS:
        settings: Any = find_method(name).Settings()
        expected = (6, 128, 0.05) if name == "adam-finetune" else (20, 48, 5e-4)
        assert (settings.epochs, settings.batch_size, settings.weight_decay) == expected
        assert (settings.lr, settings.optimizer, settings.schedule) == (0.01, "sgd", "cosine")
