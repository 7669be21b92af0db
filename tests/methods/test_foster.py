"""FOSTER's own promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.config import resolve
from ease.experiments.run import resume_run, start_run
from ease.heads.losses import distillation
from ease.methods import class_fields, restore_learner, save_model
from ease.methods.foster import Boosted, Foster, FosterSettings, class_weights
from ease.storage.model_directory import ModelDirectory
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.memory import Memory


def make(engine: Engine, **settings: Any) -> Foster:
    return Foster(engine, FosterSettings(**{"epochs": 4, "lr": 0.02, "batch_size": 12, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Foster:
    learner, memory = make(engine, **settings), Memory(3)
    for task in stream.tasks:
        learner.learn(task, memory)
    return learner


def test_every_stage_returns_to_one_backbone(engine: Engine, stream: Stream) -> None:
    learner, memory = make(engine, epochs=1), Memory(3)
    one, dim = engine.backbone.parameter_count(), engine.backbone.dim
    for task in stream.tasks:
        learner.learn(task, memory)
        assert len(learner.subspaces()) == 1
        assert learner.costs().stored == one + task.classes.stop * (dim + 1)
    boosting, compression = one + 6 * (2 * dim + 1) + 6 * (dim + 1), one + 6 * (dim + 1)
    assert learner.costs().trained[-1] == boosting + compression


def test_the_student_starts_as_the_old_network_and_comes_to_agree_with_the_teacher(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, memory = make(engine, epochs=8), Memory(3)
    learner.learn(stream.tasks[0], memory)
    pixels = engine.pixels(stream.tasks[1].train)
    before = learner.logits(pixels)
    compress, apart = learner.compress, []

    def watching(task: Any, images: Any, boosted: Boosted) -> None:
        teacher, _, old = boosted(pixels)
        assert torch.allclose(old, before, atol=1e-4)
        assert torch.allclose(learner.logits(pixels), before)
        compress(task, images, boosted)
        assert torch.allclose(boosted(pixels)[0], teacher)  # the teacher is not taught
        student = learner.logits(pixels)
        start = torch.cat([before, torch.zeros_like(before)], dim=1)
        weights = class_weights(torch.from_numpy(images.labels), 4, 0.97)
        apart.extend([distillation(logits, teacher, 2.0, weights) for logits in (start, student)])

    monkeypatch.setattr(learner, "compress", watching)
    learner.learn(stream.tasks[1], memory)
    assert apart[1] < 0.5 * apart[0]


def test_who_teaches_whom_at_every_stage(engine: Engine, stream: Stream) -> None:
    """Boosting follows the stage before, the compression follows what boosting has just ended with."""
    learner, memory, pixels = make(engine), Memory(3), engine.pixels(stream.tasks[0].test)
    fit = engine.fit
    last: dict[str, torch.Tensor] = {}
    seen: list[str] = []

    @torch.no_grad()
    def boosted_by_hand(module: Boosted) -> torch.Tensor:
        new = engine.backbone.features(pixels, [module.tuning])[0]
        return module.linear(torch.cat([last["feature"], new], dim=1))

    def watching(module: Any, loss: Any, *args: Any, **kwargs: Any) -> list[float]:
        seen.append(phase := kwargs["phase"])
        with torch.no_grad():
            before = module(pixels)
        if phase == "boost":
            # The new network starts as the old one, and both are the stage before.
            assert torch.allclose(before[2], last["logits"], atol=1e-5)
            start = engine.backbone.features(pixels, [module.tuning])[0]
            assert torch.allclose(start, last["feature"], atol=1e-5)
        elif phase == "compress":
            student, (teacher, _, _) = before
            assert torch.allclose(student[:, : last["logits"].shape[1]], last["logits"], atol=1e-5)
            assert torch.allclose(teacher, last["boosted"], atol=1e-5)
        losses = fit(module, loss, *args, **kwargs)
        with torch.no_grad():
            after = module(pixels)
        if phase == "boost":
            last["boosted"] = boosted_by_hand(module)
            assert torch.allclose(after[0], last["boosted"], atol=1e-5)
            assert not torch.allclose(after[0], before[0], atol=1e-2)  # else any teacher would do
            assert torch.equal(after[2], before[2])
        elif phase == "compress":
            assert torch.equal(after[1][0], before[1][0])
            assert not torch.allclose(after[0], before[0], atol=1e-2)
        return losses

    engine.fit = watching  # type: ignore[method-assign]
    for task in stream.tasks:
        learner.learn(task, memory)
        last = {
            "logits": learner.logits(pixels),
            "feature": engine.backbone.features(pixels, [learner.tuned])[0],
        }
    assert seen == ["train", *["boost", "compress"] * 2]


def test_class_weights_by_hand() -> None:
    labels = torch.tensor([0, 0, 0, 1])
    rare, common = 0.5 / (1 - 0.5), 0.5 / (1 - 0.5**3)
    expected = torch.tensor([common, rare]) * 2 / (common + rare)
    assert torch.allclose(class_weights(labels, 2, 0.5), expected)
    assert expected[1] > 1 > expected[0]


def test_both_losses_by_hand(engine: Engine, stream: Stream) -> None:
    learner, memory = make(engine, epochs=1), Memory(3)
    learner.learn(stream.tasks[0], memory)
    losses: dict[str, Any] = {}
    fit = engine.fit

    def watching(module: Any, loss: Any, *args: Any, **kwargs: Any) -> list[float]:
        losses[kwargs["phase"]] = loss
        return fit(module, loss, *args, **kwargs)

    engine.fit = watching  # type: ignore[method-assign]
    learner.learn(stream.tasks[1], memory)
    draw = torch.Generator().manual_seed(0)
    logits, branch, student = torch.randn(3, 5, 4, generator=draw)
    old, labels = torch.randn(5, 2, generator=draw), torch.tensor([0, 1, 2, 3, 3])
    counts = torch.tensor([0, 1, 2, 3]).repeat_interleave(torch.tensor([3, 3, 12, 12]))
    boosting = (
        F.cross_entropy(logits / class_weights(counts, 4, 0.96), labels)
        + F.cross_entropy(branch, labels)
        + distillation(logits[:, :2], old, 2.0)
    )
    assert torch.isclose(losses["boost"]((logits, branch, old), labels), boosting)
    balanced = distillation(student, logits, 2.0, class_weights(counts, 4, 0.97))
    assert torch.isclose(losses["compress"]((student, (logits, branch, old)), labels), balanced)


def test_the_teacher_can_answer_and_the_student_is_the_same_then(
    engine: Engine, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = engine.pixels(stream.tasks[0].test)
    before: list[torch.Tensor] = []
    boost = Foster.boost

    def watching(self: Foster, *args: Any) -> Boosted:
        boosted = boost(self, *args)
        before.append(boosted(images)[0])
        return boosted

    monkeypatch.setattr(Foster, "boost", watching)
    student, teacher = learned(engine, stream, epochs=1), learned(engine, stream, epochs=1, report="teacher")
    assert torch.equal(student.linear.weight, teacher.linear.weight)
    assert len(teacher.subspaces()) == 2
    assert torch.allclose(teacher.logits(images), before[-1], atol=1e-5)
    assert not torch.allclose(student.logits(images), teacher.logits(images), atol=1e-3)
    directory = ModelDirectory(tmp_path / "model")
    save_model(directory, teacher, class_fields(stream, len(stream)))
    loaded, _ = restore_learner(directory, engine)
    assert torch.equal(loaded.logits(images), teacher.logits(images))
    files, _ = teacher.state()
    assert teacher.costs().stored == sum(v.numel() for part in files.values() for v in part.values())


def test_a_run_struck_between_boosting_and_compression_ends_as_if_it_had_not_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 6, "input_size": 16}
    config, _ = resolve(
        {**options, "method": "foster", "exemplars": 12}, sets=["exemplar_budget=total", "epochs=1"]
    )
    whole = start_run(config, tmp_path / "whole", [])

    def struck(self: Foster, task: Any, images: Any, boosted: Boosted) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Foster, "compress", struck)
        with pytest.raises(KeyboardInterrupt):
            start_run(config, tmp_path / "struck", [])
    record = resume_run(tmp_path / "struck")
    changing = {"seconds", "peak_memory", "passes_repeated"}
    assert {k: v for k, v in record.as_json().items() if k not in changing} == {
        k: v for k, v in whole.as_json().items() if k not in changing
    }
    assert record.config is not None
    assert record.config.exemplar_budget == "total"
