"""LwF's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.heads.losses import distillation
from ease.methods._sequential import WithTeacher
from ease.methods.lwf import Lwf, LwfSettings
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Lwf:
    return Lwf(engine, LwfSettings(**{"epochs": 3, "lr": 0.01, "batch_size": 12, **settings}))


def test_the_teacher_is_the_previous_stage(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make(engine)
    pixels = engine.pixels(stream.tasks[0].test)
    taught: list[torch.Tensor] = []
    fit = engine.fit

    def watching(module: torch.nn.Module, *args: Any, **kwargs: Any) -> list[float]:
        losses = fit(module, *args, **kwargs)
        if isinstance(module, WithTeacher):  # after training: by now student and teacher differ
            taught.append(module(pixels)[1])
        return losses

    monkeypatch.setattr(engine, "fit", watching)
    stages = []
    for task in stream.tasks:
        learner.learn(task)
        stages.append(learner.logits(pixels))
    assert len(taught) == 2
    for teacher, previous in zip(taught, stages, strict=False):
        assert torch.allclose(teacher, previous, atol=1e-5)
    assert not torch.allclose(stages[0], stages[1][:, :2], atol=1e-3)


def test_distillation_keeps_old_logits_nearer_to_what_they_were(engine: Engine, stream: Stream) -> None:
    moved = []
    images = engine.pixels(stream.tasks[1].test)  # of the kind the teacher was asked about
    for weight in (0.0, 3.0):
        learner = make(engine, distill=weight, epochs=8)
        learner.learn(stream.tasks[0])
        before = learner.logits(images).softmax(1)
        learner.learn(stream.tasks[1])
        moved.append(float((learner.logits(images)[:, :2].softmax(1) - before).abs().mean()))
    assert moved[1] < 0.7 * moved[0]


def test_distillation_by_hand() -> None:
    student, teacher = torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]])
    p, q = torch.tensor([0.0, 2.0]).softmax(0), torch.tensor([1.0, 0.0]).softmax(0)
    assert torch.isclose(distillation(student, teacher, 2.0), (p * (p / q).log()).sum())
    weighted = F.normalize(p * torch.tensor([3.0, 1.0]), p=1, dim=0)
    expected = (weighted * (weighted / q).log()).sum()
    assert torch.isclose(distillation(student, teacher, 2.0, torch.tensor([3.0, 1.0])), expected)
    assert float(distillation(teacher, teacher, 2.0)) == pytest.approx(0, abs=1e-7)
