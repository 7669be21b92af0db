"""LayUP's own promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold

from ease.backbone import Layers
from ease.experiments.predictor import Predictor
from ease.heads.ridge import RidgeHead, stratified_folds
from ease.methods import class_fields, restore_learner, save_model
from ease.methods.layup import RIDGES, Layup, LayupSettings
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.protocol import make_stream
from ease.training.engine import Engine

QUICK = {"epochs": 2, "lr": 0.01, "batch_size": 12, "rank": 4, "scale": 1.0}


def make(engine: Engine, **settings: Any) -> Layup:
    return Layup(engine, LayupSettings(**{**QUICK, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Layup:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def logits(learner: Layup, images: ImageSet) -> torch.Tensor:
    return Predictor(learner).logits(images)


def all_images(stream: Stream, part: str) -> ImageSet:
    parts = [getattr(task, part) for task in stream.tasks]
    return ImageSet(
        parts[0].source,
        np.concatenate([images.indices for images in parts]),
        np.concatenate([images.labels for images in parts]),
    )


def read(learner: Layup, images: ImageSet) -> np.ndarray:
    """The features [N, K] in double precision."""
    features = learner.engine.features(images, [learner.tuned], reading=Layers(3, normed=False))
    return features[0].double().numpy()


def joint_fit(hidden: np.ndarray, labels: np.ndarray, classes: int, ridge: float) -> np.ndarray:
    """W [K, classes] of all images at once."""
    wanted = np.eye(classes)[labels]
    return np.linalg.solve(hidden.T @ hidden + ridge * np.eye(hidden.shape[1]), hidden.T @ wanted)


def test_the_grid_is_the_released_one() -> None:
    assert np.allclose(RIDGES, [*np.logspace(-4, 3, 15), 1e-8])


def test_the_feature_is_the_raw_class_tokens_and_all_of_them_where_there_are_fewer(engine: Engine) -> None:
    dim, depth = engine.backbone.dim, engine.backbone.shape.depth
    assert make(engine).reading == Layers(depth, normed=False)
    assert make(engine, layers=2).reading == Layers(2, normed=False)
    assert len(make(engine, layers=2).sums.gram) == 2 * dim


@pytest.mark.parametrize("adapt", ["never", "first"])
def test_tasks_one_by_one_are_the_joint_ridge_fit_of_all_images(
    adapt: str, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, adapt=adapt)
    train, test = all_images(stream, "train"), all_images(stream, "test")
    weights = joint_fit(read(learner, train), train.labels, 6, learner.ridge)
    assert np.allclose(logits(learner, test).numpy(), read(learner, test) @ weights, atol=1e-4)


def test_with_a_fixed_lambda_the_order_of_tasks_makes_no_difference(
    engine: Engine, six_digits: Dataset
) -> None:
    test = six_digits.test
    found = []
    for seed in (1, 2, 3):
        stream = make_stream(six_digits, "B0 Inc2", seed)
        learner = learned(engine, stream)
        learner.ridge = 0.1
        columns = [stream.class_names.index(name) for name in six_digits.class_names]
        found.append((columns, logits(learner, test)[:, columns]))
    orders, scores = zip(*found, strict=True)
    assert orders[0] != orders[1] != orders[2]
    weights = joint_fit(read(learner, six_digits.train), six_digits.train.labels, 6, 0.1)
    for ours in scores:
        assert np.allclose(ours.numpy(), read(learner, test) @ weights, atol=1e-4)


def test_folds_are_those_of_scikit_learn() -> None:
    draw = np.random.RandomState(0)
    for labels in (
        np.repeat([3, 4, 5], [4, 9, 6]),
        draw.permutation(np.repeat([7, 8, 9, 10], [5, 4, 11, 7])),
        draw.randint(0, 3, 60) + 2,
    ):
        ours = stratified_folds(torch.from_numpy(labels), 4).numpy()
        for fold, (_, held) in enumerate(StratifiedKFold(4).split(labels, labels)):
            assert np.array_equal(np.flatnonzero(ours == fold), held)


def test_lambda_is_chosen_by_cross_validation_on_the_current_task(engine: Engine, stream: Stream) -> None:
    """Each fold is scored by the fit of all earlier images and of the other folds, computed here from scratch."""
    learner = make(engine)
    chosen = []
    for task in stream.tasks:
        learner.learn(task)
        old = [all_images(replace(stream, tasks=stream.tasks[: task.index]), "train")] if task.index else []
        hidden = read(learner, task.train)
        accuracy = np.zeros(len(RIDGES))
        for rest, held in StratifiedKFold(4).split(hidden, task.train.labels):
            rows = np.concatenate([*(read(learner, images) for images in old), hidden[rest]])
            labels = np.concatenate([*(images.labels for images in old), task.train.labels[rest]])
            for i, ridge in enumerate(RIDGES):
                weights = joint_fit(rows, labels, task.classes.stop, ridge)
                accuracy[i] += np.mean((hidden[held] @ weights).argmax(1) == task.train.labels[held])
        # lambdas that are lost in rounding are numerical noise in both computations
        solid = np.array([ridge > 1e-6 for ridge in RIDGES])
        assert learner.ridge == RIDGES[int(np.where(solid, accuracy, -1).argmax())]
        chosen.append(learner.ridge)
    assert len(set(chosen)) > 1, "the case is too easy to tell the rule from a constant"


def test_of_equally_good_lambdas_the_first_is_taken_and_choosing_adds_nothing() -> None:
    labels = torch.arange(48) % 2
    head = RidgeHead(2)
    head.grow(2)
    assert head.cross_validated_ridge(RIDGES, torch.eye(2)[labels], labels, 4) == RIDGES[0]
    assert head.cross_validated_ridge(RIDGES[::-1], torch.eye(2)[labels], labels, 4) == RIDGES[-1]
    assert not head.gram.any()
    assert not head.sums.any()


@pytest.mark.parametrize(("images", "protocol"), [(1, "B0 Inc2"), (3, "B0 Inc3"), (8, "B0 Inc1")])
def test_tasks_too_small_to_divide_keep_the_lambda(
    images: int, protocol: str, engine: Engine, six_digits: Dataset
) -> None:
    stream = make_stream(replace(six_digits, train=six_digits.train.limit(images)), protocol)
    learner = learned(engine, stream, adapt="first")
    assert learner.ridge == make(engine).ridge
    assert logits(learner, all_images(stream, "test")).isfinite().all()


def test_a_first_task_of_one_class_trains_no_adapter_and_says_so(engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, "B0 Inc1")
    learner = learned(engine, stream, adapt="first")
    assert learner.tuned is None
    assert sum(learner.costs().trained) == 0
    assert any("single class" in note for note in engine.ledger.notes)


def test_it_adapts_to_the_first_task_only_and_only_if_asked(engine: Engine, stream: Stream) -> None:
    assert learned(engine, stream).tuned is None
    learner = make(engine, adapt="first")
    learner.learn(stream.tasks[0])
    assert learner.tuned is not None
    first = learner.tuned.fingerprint()
    for task in stream.tasks[1:]:
        learner.learn(task)
    assert learner.tuned.fingerprint() == first
    assert learner.costs().trained[1:] == [0, 0]


def test_extending_a_class_is_learning_all_its_images_at_once(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    for task in stream.tasks:
        learner.learn(replace(task, train=task.train.take(np.arange(0, len(task.train), 2))))
    for task in stream.tasks:
        learner.extend(task.train.take(np.arange(1, len(task.train), 2)))
    train, test = all_images(stream, "train"), all_images(stream, "test")
    weights = joint_fit(read(learner, train), train.labels, 6, learner.ridge)
    assert np.allclose(logits(learner, test).numpy(), read(learner, test) @ weights, atol=1e-4)


@pytest.mark.parametrize("adapt", ["never", "first"])
def test_forgetting_drops_the_class_leaves_the_others_and_says_what_stays(
    adapt: str, engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    learner = learned(engine, stream, adapt=adapt)
    test = all_images(stream, "test")
    before, trained = logits(learner, test), learner.costs().trained
    done = learner.forget(1)
    assert done.moved == 0.0
    assert "cannot be separated" in done.kept
    assert ("adapter" in done.kept) == (adapt == "first")
    assert "adapter" not in learner.forget(3).kept  # it came with a later task
    assert learner.task_sizes == [1, 2, 1]
    assert torch.allclose(logits(learner, test), before[:, [0, 2, 3, 5]], atol=1e-6)
    assert learner.costs().trained == trained
    classes = [entry for i, entry in enumerate(class_fields(stream, 3)) if i not in (1, 4)]
    save_model(ModelDirectory(tmp_path / "model"), learner, classes)
    loaded, _ = restore_learner(ModelDirectory(tmp_path / "model"), engine)
    assert torch.equal(Predictor(loaded).logits(test), logits(learner, test))
    assert loaded.costs() == learner.costs()
