"""A training whose head collapsed is found and repeated, whatever method trains with such a head."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ease.heads import CosineHead
from ease.methods import Learner, find_method
from ease.methods import _tuned_head as tuned_head
from ease.methods._tuned_head import TunedHead, fit_task
from ease.streams import Stream, Task
from ease.training.engine import Engine

METHODS = ["ease", "adam-adapter", "ranpac"]
WILD = 4.0
"""At such a rate the head's scale falls below zero in the first steps."""


def make(engine: Engine, name: str, **settings: Any) -> Learner:
    method = find_method(name)
    few = {"epochs": 2, "lr": 0.05, "batch_size": 12, "rank": 4, "sigma": 8.0, "projection": 32, **settings}
    return method(
        engine, method.Settings(**{k: v for k, v in few.items() if k in method.Settings.model_fields})
    )


def trained(engine: Engine, name: str, task: Task, phase: str, **settings: Any) -> TunedHead:
    """What one training, without a retry, makes of the task."""
    learner: Any = make(engine, name, **settings)
    module = learner.new_subspace(task) if name == "ease" else learner.new_tuned_head(task)
    fit_task(engine, module, task, learner.settings, phase=phase)
    return module


def scale(module: TunedHead) -> float:
    assert isinstance(module.head, CosineHead)
    return module.head.sigma.item()


@pytest.mark.parametrize("name", METHODS)
def test_a_training_that_collapsed_is_retried_once_and_reported(
    engine: Engine, stream: Stream, name: str
) -> None:
    task = stream.tasks[0]
    wild = trained(engine, name, task, "train", lr=WILD)
    assert scale(wild) < 0.8
    calm = trained(engine, name, task, "again", lr=WILD / 2, clip=1.0)
    assert scale(calm) > 0.8

    learner = make(engine, name, lr=WILD)
    learner.learn(task)
    (note,) = engine.ledger.notes
    assert note.startswith("task 1: the training collapsed")
    kept = learner.subspaces()[-1].tuning
    assert kept is not None
    found = kept.state_dict()
    assert all(torch.equal(value, found[key]) for key, value in calm.tuning.state_dict().items())


@pytest.mark.parametrize(("clip", "again"), [(None, 1.0), (0.5, 0.5), (8.0, 1.0)])
def test_the_retry_never_clips_less_than_the_training(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch, clip: float | None, again: float
) -> None:
    used: list[float | None] = []
    monkeypatch.setattr(tuned_head, "COLLAPSED", 2.0)  # every training counts as one
    monkeypatch.setattr(
        tuned_head, "fit_task", lambda engine, module, task, training, **_: used.append(training.clip) or 1.0
    )
    make(engine, "ease", clip=clip).learn(stream.tasks[0])
    assert used == [clip, again]
    assert ("may avoid this" in engine.ledger.notes[0]) == (clip is None)


@pytest.mark.parametrize("name", METHODS)
def test_a_healthy_training_is_not_repeated(engine: Engine, stream: Stream, name: str) -> None:
    learner = make(engine, name)
    for task in stream.tasks:
        learner.learn(task)
    assert not engine.ledger.notes
    tasks = stream.tasks if name == "ease" else stream.tasks[:1]
    assert engine.ledger.passes["train"] == 2 * sum(len(task.train) for task in tasks)
