"""The one loop from images to logits: batches, budget, store, progress, cancellation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ease.errors import EaseError
from ease.experiments.predictor import PredictionCancelledError, Predictor
from ease.methods import Ease, Learner, find_method
from ease.progress import Advance
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.features import FeatureStore


class Steps:
    """Remembers what progress was shown."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int, list[int]]] = []

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator[Advance]:
        self.bars.append((label, total, []))
        yield self.bars[-1][2].append

    def say(self, line: str) -> None: ...


@pytest.fixture
def learner(engine: Engine, stream: Stream) -> Learner:
    learner = Ease(engine, Ease.Settings(epochs=1, rank=2, batch_size=12))
    for task in stream.tasks:
        learner.learn(task)
    return learner


@pytest.mark.parametrize("name", ["simplecil", "ease", "l2p"])
def test_sets_pixels_and_stored_features_give_the_same_logits(
    name: str, engine: Engine, stream: Stream
) -> None:
    method = find_method(name)
    learner = method(engine, method.Settings(**({} if name == "simplecil" else {"epochs": 1})))
    learner.learn(stream.tasks[0])
    images = stream.tasks[0].test
    engine.batch_size = 5  # 16 images: the last batch is short
    plain = Predictor(learner).logits(images)
    assert plain.shape == (16, 2)
    assert torch.equal(Predictor(learner).logits(engine.pixels(images)), plain)
    assert torch.equal(Predictor(learner, FeatureStore()).logits(images), plain)
    each = [Predictor(learner).logits(images.take(range(at, min(at + 5, 16)))) for at in range(0, 16, 5)]
    assert torch.equal(torch.cat(each), plain)


def test_no_batch_spans_two_sets_and_progress_is_shown_by_batch(learner: Learner, stream: Stream) -> None:
    steps, tests = Steps(), [task.test for task in stream.tasks]
    learner.engine.batch_size = 10
    logits = Predictor(learner).logits(tests, progress=steps)
    assert logits.shape == (48, 6)
    assert steps.bars == [("evaluation", 48, [10, 6, 10, 6, 10, 6])]
    assert Predictor(learner).logits([]).shape == (0, 6)


def test_a_budget_saves_passes_and_leaves_the_learner_as_it_was(learner: Learner, stream: Stream) -> None:
    images = stream.tasks[0].test
    full, limited = Predictor(learner), Predictor(learner, budget=1)
    exact = full.logits(images)
    assert not torch.equal(limited.logits(images), exact)
    assert (full.computed, limited.computed) == (3 * 16, 16)
    assert learner.passes_per_image() == 3
    assert torch.equal(full.logits(images), exact)


def test_a_budget_that_cannot_be_kept_is_refused_before_any_image_is_loaded(
    engine: Engine, learner: Learner
) -> None:
    with pytest.raises(EaseError, match="budget of 0"):
        Predictor(learner, budget=0)
    assert learner.passes_per_image() == 3
    simplecil = find_method("simplecil")
    Predictor(simplecil(engine, simplecil.Settings()), budget=1)  # it has learned nothing yet


def test_cancelling_stops_before_the_next_batch(learner: Learner, stream: Stream) -> None:
    learner.engine.batch_size = 4
    predictor, asked = Predictor(learner), iter([False, False, True])
    with pytest.raises(PredictionCancelledError):
        predictor.logits(stream.tasks[0].test, cancelled=lambda: next(asked))
    assert predictor.computed == 2 * 4 * 3
