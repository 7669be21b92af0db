"""LAE's own promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ease.backbone import Backbone, tensors_hash
from ease.methods.lae import Lae, LaeSettings, OnlineAndOffline
from ease.streams import Stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

PETS = ("adapter", "lora", "prefix")


def make(engine: Engine, **settings: Any) -> Lae:
    return Lae(engine, LaeSettings(**{"epochs": 4, "frozen": 0.5, "batch_size": 12, "lr": 0.01, **settings}))


def learned(engine: Engine, stream: Stream, tasks: int = 3, **settings: Any) -> Lae:
    learner = make(engine, **settings)
    for task in stream.tasks[:tasks]:
        learner.learn(task)
    return learner


def online(learner: Lae) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.tuned.named_parameters()}


def offline(learner: Lae) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in learner.offline.named_parameters()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def test_the_larger_of_both_probabilities_decides(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, tasks=2)
    with torch.no_grad():
        learner.linear.weight.zero_()
        learner.linear.bias.zero_()
        learner.linear.weight[range(4), range(4)] = 1.0  # the first four features are the logits
    features = torch.zeros(2, 1, 48)
    # online: 3/6, 1/6, 1/6, 1/6; offline: 1/10, 1/10, 7/10, 1/10
    features[0, 0, :4] = torch.tensor([3.0, 1.0, 1.0, 1.0]).log()
    features[1, 0, :4] = torch.tensor([1.0, 1.0, 7.0, 1.0]).log()
    expected = torch.tensor([[3 / 6, 1 / 6, 7 / 10, 1 / 6]])
    assert torch.allclose(learner.head(features).exp(), expected)
    summed = (features[0] + features[1])[:, :4]  # neither the sum of logits nor the mean of probabilities
    assert not torch.allclose(learner.head(features).softmax(1), summed.softmax(1), atol=0.01)


def test_logits_are_those_of_two_passes_and_of_one_after_the_first_task(
    engine: Engine, stream: Stream
) -> None:
    learner = make(engine, decay=0.9)
    pixels = engine.pixels(stream.tasks[0].test)
    for stage, task in enumerate(stream.tasks):
        learner.learn(task)
        tunings = [learner.tuned, learner.offline]
        with torch.no_grad():
            both = [learner.linear(engine.backbone.forward(pixels, t)).softmax(dim=1) for t in tunings]
        assert torch.allclose(learner.logits(pixels).exp(), torch.maximum(*both), atol=1e-5)
        assert learner.passes_per_image() == (1 if stage == 0 else 2)
        assert torch.equal(*both) is (stage == 0)


def test_the_offline_copy_is_the_moving_average_of_every_step(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learned(engine, stream, tasks=1, decay=0.9)
    assert same(online(learner), offline(learner)), "it begins as a copy at the end of the first task"
    start, seen = offline(learner), []
    accumulate = OnlineAndOffline.accumulate

    def watched(module: OnlineAndOffline, decay: float) -> None:
        seen.append({name: value.detach().clone() for name, value in module.tuning.named_parameters()})
        accumulate(module, decay)

    monkeypatch.setattr(OnlineAndOffline, "accumulate", watched)
    learner.learn(stream.tasks[1])
    steps = len(seen)
    assert steps == 4 * 2, "also in the epochs that train the head alone"
    for name, value in offline(learner).items():
        average = 0.9**steps * start[name]
        average = average + sum(0.1 * 0.9 ** (steps - 1 - i) * tuned[name] for i, tuned in enumerate(seen))
        assert torch.allclose(value, average, atol=1e-6), name
        assert not torch.allclose(value, start[name], atol=1e-4), name
        assert not torch.allclose(value, online(learner)[name], atol=1e-4), name


@pytest.mark.parametrize("pet", PETS)
def test_the_first_epochs_of_a_later_task_train_the_head_alone(
    pet: str, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, tasks=1, frozen=1.0, pet=pet)
    assert any(value.abs().max() > 0 for name, value in online(learner).items() if "scale" not in name)
    before, rows = online(learner), learner.linear.weight.detach().clone()
    learner.learn(stream.tasks[1])
    assert same(online(learner), before)
    assert learner.linear.weight[2:].abs().max() > 0.01, "from N(0, .001)"
    assert torch.equal(learner.linear.weight[:2], rows), "old logits get no gradient"
    thawed = learned(engine, stream, tasks=2, frozen=0.0, pet=pet)
    assert not any(torch.equal(value, before[name]) for name, value in online(thawed).items())


def test_the_first_task_trains_the_tuning_from_its_first_step(engine: Engine, stream: Stream) -> None:
    assert same(
        online(learned(engine, stream, tasks=1, frozen=1.0)),
        online(learned(engine, stream, tasks=1, frozen=0.0)),
    )


@pytest.mark.parametrize(("step", "epochs_left"), [(1, 4), (4, 3), (5, 2), (8, 1)])
def test_a_training_that_was_interrupted_ends_as_one_that_was_not(
    step: int,
    epochs_left: int,
    backbone: Backbone,
    stream: Stream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(backbone, Transforms.raw(backbone.pixels), seed=7, checkpoints=tmp_path)
    whole = learned(Engine(backbone, Transforms.raw(backbone.pixels), seed=7), stream, tasks=2, decay=0.5)
    learner = learned(engine, stream, tasks=1, decay=0.5)
    files, meta = learner.state()
    accumulate, steps = OnlineAndOffline.accumulate, 0

    def stopping(module: OnlineAndOffline, decay: float) -> None:
        nonlocal steps
        steps += 1
        if steps == step and not resumed:
            raise KeyboardInterrupt
        accumulate(module, decay)

    monkeypatch.setattr(OnlineAndOffline, "accumulate", stopping)
    resumed = False
    with pytest.raises(KeyboardInterrupt):
        learner.learn(stream.tasks[1])
    again = make(engine, decay=0.5)
    again.load_state(files, meta)
    steps, resumed = 0, True
    again.learn(stream.tasks[1])
    assert tensors_hash(again.state()[0]["learner/0001"]) == tensors_hash(whole.state()[0]["learner/0001"])
    assert steps == epochs_left * 2, "only the epochs that were not finished"


def test_only_the_first_blocks_are_tuned(engine: Engine) -> None:
    for pet in PETS:
        assert make(engine, pet=pet, blocks=2).tuned.config()["layers"] == [0, 1]
        assert make(engine, pet=pet).tuned.config()["layers"] == [0, 1, 2], (
            "all, if there are fewer than five"
        )


def test_cost_is_two_tunings_and_one_head(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, pet="lora", rank=2)
    pet = 3 * (4 * 2 * 48 + 2)
    assert learner.costs().trained == [2 * 49 + pet, *(2 * seen * 49 + pet for seen in (4, 6))]
    assert learner.costs().stored == 2 * pet + 6 * 49


def test_the_loss_is_that_of_the_new_logits(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, tasks=1)
    task, losses = stream.tasks[1], []
    fit = engine.fit

    def watched(module: Any, loss: Any, *args: Any, **kwargs: Any) -> list[float]:
        logits, labels = torch.randn(5, 4), torch.tensor([2, 3, 3, 2, 2])
        losses.append((float(loss(logits, labels)), float(F.cross_entropy(logits[:, 2:], labels - 2))))
        return fit(module, loss, *args, **kwargs)

    engine.fit = watched  # type: ignore[method-assign]
    learner.learn(task)
    assert len(losses) == 2
    assert all(found == pytest.approx(right) for found, right in losses)
