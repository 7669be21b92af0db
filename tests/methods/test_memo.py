"""MEMO's own promises."""

from __future__ import annotations

from typing import Any

import torch

from ease.backbone import tensors_hash
from ease.methods.memo import Memo, MemoSettings
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.memory import Memory


def make(engine: Engine, **settings: Any) -> Memo:
    defaults = {"epochs": 2, "later_epochs": 2, "lr": 0.01, "batch_size": 12}
    return Memo(engine, MemoSettings(**{**defaults, **settings}))


def test_shallow_blocks_are_shared_and_only_a_last_block_and_norm_are_new(
    engine: Engine, stream: Stream
) -> None:
    learner, memory = make(engine), Memory(3)
    learner.learn(stream.tasks[0], memory)
    shared = tensors_hash(learner.tunings[0].state_dict())
    assert shared != tensors_hash(make(engine).new_tuning().state_dict())  # task 1 trains all of it
    for task in stream.tasks[1:]:
        learner.learn(task, memory)
    assert tensors_hash(learner.tunings[0].state_dict()) == shared
    tunings = [s.tuning for s in learner.subspaces()]
    assert {id(t.vit()) for t in tunings if t is not None} == {id(learner.tunings[0].copy)}
    block = sum(p.numel() for p in engine.backbone.vit.blocks[-1].parameters())
    norm = sum(p.numel() for p in engine.backbone.vit.norm.parameters())
    assert [t.parameter_count() for t in learner.tunings[1:]] == [block + norm] * 2
    assert len({tensors_hash(b.state_dict()) for b in learner.branches}) == 3


def test_shared_blocks_computed_once_give_what_each_branch_gives_alone(
    engine: Engine, stream: Stream
) -> None:
    learner, memory = make(engine), Memory(3)
    for task in stream.tasks:
        learner.learn(task, memory)
    pixels = engine.pixels(stream.tasks[0].test)
    together = learner.base.features(pixels, learner.plugged())
    alone = engine.backbone.features(pixels, [s.tuning for s in learner.subspaces()])
    assert torch.allclose(together, alone, atol=1e-5)
    assert torch.allclose(alone[0], engine.backbone.features(pixels, [learner.tunings[0]])[0], atol=1e-5)
    assert len({s.hash for s in learner.subspaces()}) == 3


def test_a_new_branch_starts_from_the_previous_one(engine: Engine, stream: Stream) -> None:
    learner, memory = make(engine), Memory(3)
    for task in stream.tasks[:2]:
        learner.learn(task, memory)
        start, last = learner.new_tuning().state_dict(), learner.branches[-1].state_dict()
        assert all(torch.equal(start[name], value) for name, value in last.items())


def test_later_tasks_have_epochs_of_their_own(engine: Engine, stream: Stream) -> None:
    learner = make(engine, epochs=3, later_epochs=5)
    assert [learner.training_of(task).epochs for task in stream.tasks] == [3, 5, 5]
