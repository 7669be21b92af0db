"""What the ceiling promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ease.config import RunConfig, resolve
from ease.errors import EaseError
from ease.experiments.run import resume_run, start_run
from ease.methods.joint import Joint, JointSettings
from ease.streams import ImageSet, Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Joint:
    return Joint(engine, JointSettings(**{"epochs": 2, "lr": 0.01, "batch_size": 12, "rank": 4, **settings}))


def test_every_stage_starts_from_the_ptm_and_sees_all_images_so_far(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    seen: list[ImageSet] = []
    starts: list[torch.Tensor] = []
    fit = engine.fit

    def watching(module: Any, loss: Any, images: ImageSet, *args: Any, **kwargs: Any) -> list[float]:
        seen.append(images)
        starts.append(engine.features(stream.tasks[0].test, [module.tuning]))
        return fit(module, loss, images, *args, **kwargs)

    engine.fit = watching  # type: ignore[method-assign]
    for task in stream.tasks:
        learner.learn(task)
    assert [np.bincount(images.labels).tolist() for images in seen] == [[12] * 2, [12] * 4, [12] * 6]
    ptm = engine.features(stream.tasks[0].test, [None])
    assert all(torch.allclose(start, ptm, atol=1e-5) for start in starts)
    assert not torch.allclose(engine.features(stream.tasks[0].test, [learner.tuned]), ptm, atol=1e-3)


def test_an_adapter_may_train_in_place_of_all_weights(engine: Engine, stream: Stream) -> None:
    learner = make(engine, tuning="adapter")
    for task in stream.tasks:
        learner.learn(task)
    assert learner.tuned.kind == "adapter"
    assert learner.costs().trained[0] < engine.backbone.parameter_count() / 10


def test_tasks_are_revisited_once_and_in_order(engine: Engine, stream: Stream) -> None:
    learner = make(engine, epochs=0)
    with pytest.raises(EaseError, match="cannot be revisited"):
        learner.revisit(stream.tasks[0])  # the future
    learner.learn(stream.tasks[0])
    with pytest.raises(EaseError, match="cannot be revisited"):
        learner.revisit(stream.tasks[0])  # already there


def quick() -> RunConfig:
    options = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 6, "input_size": 16}
    return resolve({**options, "method": "joint"}, sets=["epochs=1"])[0]


def test_a_resumed_run_shows_the_old_tasks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = start_run(quick(), tmp_path / "whole", [])
    adapt = Joint.adapt

    def struck(self: Joint, task: Any, memory: Any) -> None:
        if task.index == 1:
            raise KeyboardInterrupt
        adapt(self, task, memory)

    monkeypatch.setattr(Joint, "adapt", struck)
    with pytest.raises(KeyboardInterrupt):
        start_run(quick(), tmp_path / "struck", [])
    monkeypatch.undo()
    record = resume_run(tmp_path / "struck")
    changing = {"seconds", "peak_memory", "passes_repeated"}
    assert {k: v for k, v in record.as_json().items() if k not in changing} == {
        k: v for k, v in whole.as_json().items() if k not in changing
    }
