"""Strata: what it reads, what it trains and when, and that no order of tasks can matter."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from ease.backbone import Layers
from ease.experiments.predictor import Predictor
from ease.heads.whitened import WhitenedHead
from ease.methods.strata import Strata
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.protocol import make_stream
from ease.training.engine import Engine

QUICK: dict[str, Any] = {"epochs": 3, "rank": 4, "min_steps": 0}


def strata(engine: Engine, **settings: Any) -> Strata:
    return Strata(engine, Strata.Settings.model_validate({**QUICK, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Strata:
    learner = strata(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def scores(learner: Strata, images: ImageSet) -> torch.Tensor:
    return Predictor(learner).logits(images)


def test_scores_are_the_whitened_heads_on_the_class_tokens_of_the_last_blocks(
    engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, layers=2, patches=False)
    head = WhitenedHead(2 * engine.backbone.dim, parts=2)
    head.grow(6)
    for task in stream.tasks:
        features = engine.backbone.features(engine.pixels(task.train), [None], Layers(2))[0]
        head.add(features, torch.from_numpy(task.train.labels))
    images = stream.tasks[0].test
    features = engine.backbone.features(engine.pixels(images), [None], Layers(2))[0]
    assert torch.allclose(scores(learner, images), head.scores(features), atol=1e-4)


def test_a_model_with_fewer_blocks_is_read_whole(engine: Engine, stream: Stream) -> None:
    assert learned(engine, stream).sums.width == 2 * 3 * engine.backbone.dim  # the default is four
    assert learned(engine, stream, layers=1, patches=False).sums.width == engine.backbone.dim


@pytest.mark.parametrize("protocol", ["B0 Inc1", "B0 Inc3", "B4 Inc1"])
def test_however_classes_are_cut_into_tasks_the_answers_are_the_same(
    protocol: str, engine: Engine, six_digits: Dataset
) -> None:
    whole = make_stream(six_digits, "B0 Inc6")
    parts = make_stream(six_digits, protocol)
    assert whole.class_order == parts.class_order
    one, many = learned(engine, whole), learned(engine, parts)
    images = whole.tasks[0].test
    assert (scores(one, images) - scores(many, images)).abs().max() < 1e-5
    assert one.costs().stored == many.costs().stored


def test_nothing_is_trained_by_default_and_one_pass_is_enough(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream)
    assert learner.costs().trained == [0, 0, 0]
    assert learner.passes_per_image() == 1
    assert [s.hash for s in learner.subspaces()] == ["ptm"]
    width = learner.sums.width
    assert learner.costs().stored == 6 * width + width * (width + 1) // 2


def test_first_trains_on_the_first_task_alone_and_reads_its_subspace(engine: Engine, stream: Stream) -> None:
    learner = strata(engine, adapt="first")
    learner.learn(stream.tasks[0])
    first = learner.tuned
    assert first is not None
    before = first.fingerprint()
    for task in stream.tasks[1:]:
        learner.learn(task)
    assert learner.tuned is first
    assert first.fingerprint() == before
    assert learner.passes_per_image() == 1
    assert [bool(count) for count in learner.costs().trained] == [True, False, False]
    assert learner.subspaces()[0].hash == before


@pytest.mark.parametrize("adapt", ["first", "auto"])
def test_a_first_task_with_too_little_in_it_is_not_adapted_to(
    adapt: str, engine: Engine, six_digits: Dataset
) -> None:
    for dataset in (replace(six_digits, train=six_digits.train.limit(4)), six_digits.first_classes(1)):
        stream = make_stream(dataset, f"B0 Inc{len(dataset.class_names)}")
        learner = strata(engine, adapt=adapt)
        learner.learn(stream.tasks[0])
        assert learner.tuned is None
        assert "too little to adapt to" in engine.ledger.notes[-1]


@pytest.mark.parametrize("better", [True, False])
def test_auto_keeps_the_adapter_only_where_held_out_images_say_so(
    better: bool, engine: Engine, six_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {better: 70.0, not better: 60.0}
    monkeypatch.setattr(Strata, "_accuracy", lambda _self, tuning, *_: figures[tuning is not None])
    learner = strata(engine, adapt="auto")
    learner.learn(make_stream(six_digits, "B0 Inc6").tasks[0])
    assert (learner.tuned is not None) == better
    assert ("kept" if better else "dropped") in engine.ledger.notes[-1]
    assert learner.costs().trained[0] > 0, "what was dropped was trained all the same"


def test_auto_measures_on_images_that_neither_adapter_nor_head_has_seen(
    engine: Engine, six_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make_stream(six_digits, "B0 Inc6")
    trained: list[set[str]] = []
    fit = engine.fit

    def watching(module: Any, loss: Any, images: ImageSet, *args: Any, **kwargs: Any) -> list[float]:
        trained.append({images.digest(i) for i in range(len(images))})
        return fit(module, loss, images, *args, **kwargs)

    measured: list[set[str]] = []
    accuracy = Strata._accuracy

    def looking(self: Strata, tuning: Any, task: Any, rest: ImageSet, held: ImageSet) -> float:
        measured.append({held.digest(i) for i in range(len(held))})
        return accuracy(self, tuning, task, rest, held)

    monkeypatch.setattr(engine, "fit", watching)
    monkeypatch.setattr(Strata, "_accuracy", looking)
    strata(engine, adapt="auto").learn(stream.tasks[0])
    assert measured[0] == measured[1]
    assert measured[0]
    assert not trained[0] & measured[0]


def test_extending_a_class_is_as_if_its_images_had_come_at_once(engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, "B0 Inc6")
    (task,) = stream.tasks
    later = np.arange(len(task.train)) % 3 == 0
    learner = strata(engine)
    learner.learn(replace(task, train=task.train.take(np.flatnonzero(~later))))
    learner.extend(task.train.take(np.flatnonzero(later)))
    assert (scores(learner, task.test) - scores(learned(engine, stream), task.test)).abs().max() < 1e-5


def test_a_forgotten_class_is_never_named_again_and_what_stays_is_said(
    engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream)
    means = learner.sums.means.clone()
    done = learner.forget(2)
    assert learner.task_sizes == [2, 1, 2]
    assert torch.equal(learner.sums.means, means[[0, 1, 3, 4, 5]])
    assert scores(learner, stream.tasks[0].test).shape[1] == 5
    assert "covariance" in done.kept
    assert 0 < done.moved < 2


def test_the_last_class_can_be_forgotten_too(engine: Engine, stream: Stream) -> None:
    learner = strata(engine)
    learner.learn(stream.tasks[0])
    learner.forget(0)
    assert learner.forget(0).moved == 0
    assert learner.classes == 0
    learner.learn(replace(stream.tasks[1], classes=range(2), train=_moved(stream.tasks[1].train, -2)))
    assert scores(learner, stream.tasks[1].test).shape[1] == 2


def _moved(images: ImageSet, by: int) -> ImageSet:
    return ImageSet(images.source, images.indices, images.labels + by)


@pytest.mark.parametrize(("images", "epochs"), [(6000, 4), (270, 4), (150, 6), (16, 60)])
def test_a_small_first_task_is_visited_more_often(images: int, epochs: int) -> None:
    settings = Strata.Settings(epochs=4, batch_size=16, min_steps=60)
    assert settings.for_images(images).epochs == epochs
    assert settings.model_copy(update={"epochs": 0}).for_images(images).epochs == 0


def test_the_adapter_is_trained_for_at_least_that_many_steps(engine: Engine, stream: Stream) -> None:
    learner, first = strata(engine, adapt="first", batch_size=12, min_steps=12), stream.tasks[0]
    before = engine.ledger.passes["train"]
    learner.learn(first)
    epochs = -(-12 // -(-len(first.train) // 12))
    assert epochs > 3
    assert engine.ledger.passes["train"] - before == epochs * len(first.train)
