"""FeCAM's own promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.spatial.distance import mahalanobis

from ease.experiments.predictor import Predictor
from ease.heads.gaussian import GaussianHead
from ease.methods import class_fields, restore_learner, save_model
from ease.methods.fecam import Fecam, FecamSettings
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.protocol import make_stream
from ease.training.engine import Engine


def learned(engine: Engine, stream: Stream, **settings: Any) -> Fecam:
    learner = Fecam(engine, FecamSettings(**settings))
    for task in stream.tasks:
        learner.learn(task)
    return learner


def logits(learner: Fecam, images: ImageSet) -> torch.Tensor:
    return Predictor(learner).logits(images)


def all_images(stream: Stream, part: str) -> ImageSet:
    parts = [getattr(task, part) for task in stream.tasks]
    return ImageSet(
        parts[0].source,
        np.concatenate([images.indices for images in parts]),
        np.concatenate([images.labels for images in parts]),
    )


def by_hand(seen: np.ndarray, asked: np.ndarray, alpha1: float, alpha2: float) -> list[float]:
    """Squared distances of the vectors [M, K] to the class of the vectors [N, K], as FeCAM's equations say them."""
    covariance = np.cov(seen.T)
    identity = np.eye(len(covariance))
    diagonal = np.diag(covariance).mean()
    elsewhere = covariance[identity == 0].mean()
    shrunk = covariance + alpha1 * diagonal * identity + alpha2 * elsewhere * (1 - identity)
    deviations = np.sqrt(np.diag(shrunk))
    inverse = np.linalg.pinv(shrunk / np.outer(deviations, deviations))
    return [mahalanobis(x, seen.mean(axis=0), inverse) ** 2 for x in asked]


@pytest.mark.parametrize("alphas", [(1.0, 0.0), (10.0, 10.0), (0.1, 0.05)])
def test_scores_are_minus_the_distances_computed_by_hand(
    alphas: tuple[float, float], engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, alpha1=alphas[0], alpha2=alphas[1])
    train, test = all_images(stream, "train"), all_images(stream, "test")
    seen, asked = (F.normalize(engine.features(x, [None])[0], dim=-1).double().numpy() for x in (train, test))
    expected = np.array([by_hand(seen[train.labels == c], asked, *alphas) for c in range(6)]).T
    found = logits(learner, test).numpy()
    assert np.allclose(-found, expected, rtol=1e-4)
    assert np.array_equal(found.argmax(axis=1), expected.argmin(axis=1))


def test_without_shrinkage_more_images_than_features_give_the_plain_inverse() -> None:
    draw = np.random.RandomState(0)
    seen, asked = draw.randn(40, 5) @ draw.randn(5, 5), draw.randn(3, 5)
    head = GaussianHead(5, 0.0, 0.0)
    head.grow(1)
    head.add(torch.from_numpy(seen), torch.zeros(40, dtype=torch.int64))
    expected = by_hand(seen, asked, 0.0, 0.0)
    assert np.allclose(-head.scores(torch.from_numpy(asked))[:, 0].numpy(), expected, rtol=1e-4)


def test_without_shrinkage_fewer_images_than_features_take_the_pseudo_inverse() -> None:
    """Directions in which a class was never seen to vary count nothing."""
    seen = torch.tensor([[1.0, 1.0, 0.0], [1.0, 3.0, 2.0], [1.0, 2.0, 1.0]])
    head = GaussianHead(3, 0.0, 0.0)
    head.grow(1)
    head.add(seen, torch.zeros(3, dtype=torch.int64))
    # Features 2 and 3 are fully correlated, so N holds four ones and its pseudo-inverse four quarters. Feature 1 is
    # constant: its distance is the plain one.
    asked = torch.tensor([[1.0, 3.0, 0.0], [1.0, 4.0, 3.0], [3.0, 2.0, 1.0]])
    assert torch.allclose(head.scores(asked)[:, 0], -torch.tensor([0.0, 4.0, 4.0]), atol=1e-5)


@pytest.mark.parametrize("alphas", [(1.0, 0.0), (10.0, 10.0), (0.0, 0.0)])
@pytest.mark.parametrize("images", [1, 2, 3])
def test_few_images_per_class_give_finite_scores(
    alphas: tuple[float, float], images: int, engine: Engine, six_digits: Dataset
) -> None:
    few = replace(six_digits, train=six_digits.train.limit(images))
    stream = make_stream(few, "B0 Inc2")
    found = logits(learned(engine, stream, alpha1=alphas[0], alpha2=alphas[1]), all_images(stream, "test"))
    assert found.isfinite().all()


def test_a_class_of_one_image_is_compared_by_the_euclidean_distance(
    engine: Engine, six_digits: Dataset
) -> None:
    stream = make_stream(replace(six_digits, train=six_digits.train.limit(1)), "B0 Inc2")
    test = all_images(stream, "test")
    seen, asked = (
        F.normalize(engine.features(x, [None])[0], dim=-1) for x in (all_images(stream, "train"), test)
    )
    found = logits(learned(engine, stream), test)
    assert torch.allclose(found, -torch.cdist(asked, seen).square(), atol=1e-5)


def test_the_same_image_many_times_is_one_image() -> None:
    image = F.normalize(torch.randn(1, 7, generator=torch.Generator().manual_seed(0)), dim=-1)
    head = GaussianHead(7)
    head.grow(1)
    head.add(image.repeat(3, 1), torch.zeros(3, dtype=torch.int64))
    assert torch.equal(head.correlations(0), torch.eye(7, dtype=torch.float64))


def test_extending_a_class_is_learning_all_its_images_at_once(engine: Engine, stream: Stream) -> None:
    whole = learned(engine, stream)
    halves = Fecam(engine, FecamSettings())
    for task in stream.tasks:
        halves.learn(replace(task, train=task.train.take(np.arange(0, len(task.train), 2))))
    for task in stream.tasks:
        halves.extend(task.train.take(np.arange(1, len(task.train), 2)))
    test = all_images(stream, "test")
    assert torch.allclose(logits(halves, test), logits(whole, test), rtol=1e-4)
    assert torch.equal(halves.gaussians.counts, whole.gaussians.counts)


def test_forgetting_leaves_nothing_of_the_class_and_the_others_as_they_are(
    engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    learner = learned(engine, stream)
    test = all_images(stream, "test")
    before = logits(learner, test)
    done = learner.forget(3)
    assert (done.moved, done.kept) == (0.0, "")
    assert learner.task_sizes == [2, 1, 2]
    assert torch.equal(logits(learner, test), before[:, [0, 1, 2, 4, 5]])
    files, _ = learner.state()
    assert [len(part["counts"]) for part in files.values()] == [2, 1, 2]
    classes = class_fields(stream, 3)
    del classes[3]
    save_model(ModelDirectory(tmp_path / "model"), learner, classes)
    loaded, _ = restore_learner(ModelDirectory(tmp_path / "model"), engine)
    assert torch.equal(Predictor(loaded).logits(test), logits(learner, test))


def test_files_of_old_tasks_do_not_change(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, replace(stream, tasks=stream.tasks[:2]))
    before, _ = learner.state()
    learner.learn(stream.tasks[2])
    after, _ = learner.state()
    for name, tensors in before.items():
        assert all(torch.equal(tensors[key], after[name][key]) for key in tensors)
