"""Images are decoded once, and not kept beyond their task."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ease.backbone import Backbone
from ease.errors import EaseError
from ease.experiments.predictor import Predictor
from ease.methods.ease import Ease, EaseSettings
from ease.streams import ImageSet, Stream, Task
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.fit import Training
from ease.training.loading import Loader

from .test_fit import module, same

KILOBYTES_EACH = 3  # 32 x 32 x 3


class Counting:
    """Images that must be decoded, as those on disk; counts how often each was."""

    def __init__(self, images: ImageSet) -> None:
        self.images = images
        self.loads: list[int] = []
        self.broken: int | None = None

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> Tensor:
        if index == self.broken:
            raise EaseError(f"image {index} is damaged")
        self.loads.append(index)
        return self.images.image(index)

    def digest(self, index: int) -> str:
        return self.images.digest(index)


def counting(images: ImageSet) -> tuple[ImageSet, Counting]:
    source = Counting(images)
    return ImageSet(source, np.arange(len(images)), images.labels), source


def make_engine(backbone: Backbone, loader: Loader) -> Engine:
    return Engine(backbone, Transforms.raw(backbone.pixels), seed=7, batch_size=16, loader=loader)


@pytest.mark.parametrize(("memory", "times"), [(256 * 1024, 1), (0, 3), (12 * KILOBYTES_EACH * 1024, 2)])
def test_training_decodes_an_image_once_if_there_is_room(
    backbone: Backbone, stream: Stream, memory: int, times: float
) -> None:
    images, source = counting(stream.tasks[0].train)
    engine = make_engine(backbone, Loader(memory, workers=0))
    engine.fit(module(backbone), F.cross_entropy, images, Training(epochs=3, lr=0.1, batch_size=8), task=0)
    assert len(source.loads) == times * len(images)  # half of 24 images fit in the last case: 12 + 3 * 12


@pytest.mark.parametrize("workers", [1, 3])
def test_threads_that_decode_ahead_change_nothing(backbone: Backbone, stream: Stream, workers: int) -> None:
    trained = []
    for count in (0, workers):
        images, _ = counting(stream.tasks[0].train)
        engine = make_engine(backbone, Loader(workers=count))
        trained.append(module(backbone))
        engine.fit(trained[-1], F.cross_entropy, images, Training(epochs=2, lr=0.1, batch_size=5), task=0)
    assert same(*trained)


@pytest.mark.parametrize("workers", [0, 2, 4])
def test_batches_come_in_order_and_a_fault_reaches_whoever_asks(stream: Stream, workers: int) -> None:
    images, source = counting(stream.tasks[0].train)
    parts = np.array_split(np.arange(len(images)), 7)
    loader = Loader(workers=workers)
    made = list(loader.batches(images, parts, lambda part: part.tolist()))
    assert made == [part.tolist() for part in parts]
    source.broken = 9
    with pytest.raises(EaseError, match="image 9 is damaged"):
        list(loader.batches(images, parts, lambda part: [loader.training(images, int(i)) for i in part]))


def test_a_task_leaves_no_training_image_behind_and_test_images_are_decoded_once(
    backbone: Backbone, stream: Stream
) -> None:
    loader = Loader(workers=0)
    engine = make_engine(backbone, loader)
    learner = Ease(engine, EaseSettings(epochs=2, lr=0.05, batch_size=12, rank=4))
    predictor, tests, tested = Predictor(learner, FeatureStore()), [], []
    for task in stream.tasks:
        train, source = counting(task.train)
        learner.learn(_with(task, train))
        assert len(source.loads) == len(train)  # two epochs and the prototypes
        loader.training(train, 0, keep=False)
        assert len(source.loads) == len(train) + 1  # it was not held any more
        test, seen = counting(task.test)
        tests.append(test)
        tested.append(seen)
        predictor.logits(tests)
    assert all(len(source.loads) == len(source) for source in tested)


def test_what_was_held_is_free_again(stream: Stream) -> None:
    images, source = counting(stream.tasks[0].train)
    loader = Loader(memory=12 * KILOBYTES_EACH * 1024, workers=0)
    for _ in range(2):
        for position in range(12):
            loader.training(images, position)
        loader.drop_training_images()
    before = len(source.loads)
    for position in range(12):
        loader.training(images, position)
        loader.training(images, position)
    assert len(source.loads) == before + 12


def test_the_ledger_knows_how_long_the_model_waited(backbone: Backbone, stream: Stream) -> None:
    engine = make_engine(backbone, Loader())
    engine.features(stream.tasks[0].test, [None])
    assert 0 < engine.ledger.waited < engine.ledger.seconds["prototypes"]


def _with(task: Task, train: ImageSet) -> Task:
    return replace(task, train=train)


def test_pixels_are_the_same_however_they_come(backbone: Backbone, stream: Stream) -> None:
    images, _ = counting(stream.tasks[0].test)
    engine = make_engine(backbone, Loader())
    expected = engine.features_of_pixels(engine.pixels(images), [None])
    for phase in ("prototypes", "evaluation", "evaluation"):
        found = engine.features(images, [None], phase)  # type: ignore[arg-type]
        assert torch.allclose(found, expected, atol=1e-6)
