"""The share of wrong labels, and thresholds with a stated rate of false alarms."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ease.heads.label_noise import LabelNoise


def drawn(count: int = 4000, classes: int = 6, temperature: float = 0.1) -> tuple[Tensor, Tensor]:
    """Scores, and labels drawn from the probabilities that belong to them."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.rand(count, classes, generator=draw) * 0.6
    labels = torch.multinomial((scores / temperature).softmax(dim=1), 1, generator=draw)[:, 0]
    return scores, labels


def with_wrong(labels: Tensor, classes: int, share: float) -> tuple[Tensor, Tensor]:
    wrong = torch.rand(len(labels), generator=torch.Generator().manual_seed(1)) < share
    return torch.where(wrong, (labels + 1) % classes, labels), wrong


def test_the_temperature_of_the_scores_is_found_with_and_without_wrong_labels() -> None:
    scores, labels = drawn()
    clean = LabelNoise.fit(scores, labels)
    assert clean.temperature == pytest.approx(0.1, rel=0.08)
    assert clean.wrong < 0.01
    mixed = LabelNoise.fit(scores, with_wrong(labels, 6, 0.1)[0])
    assert mixed.temperature == pytest.approx(0.1, rel=0.15)
    assert mixed.wrong == pytest.approx(0.1, abs=0.04)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("share", [0.0, 0.1])
def test_right_labels_fall_below_the_threshold_at_the_stated_rate(rate: float, share: float) -> None:
    scores, right = drawn()
    labels, wrong = with_wrong(right, 6, share)
    noise = LabelNoise.fit(scores, labels)
    for values in (noise.probabilities, scores.double()):
        own = values.gather(1, labels[:, None])[:, 0]
        alarms = (own < noise.threshold(values, rate))[~wrong].double().mean()
        assert float(alarms) == pytest.approx(rate, rel=0.4)


def test_the_least_probable_label_is_doubted_most() -> None:
    scores, right = drawn(count=400)
    labels, _ = with_wrong(right, 6, 0.1)
    noise = LabelNoise.fit(scores, labels)
    doubts, probable = noise.doubts(labels), noise.of_labels(labels)
    assert bool(((doubts >= 0) & (doubts <= 1)).all())
    assert int(doubts.argmax()) == int(probable.argmin())
    assert bool((doubts[probable.argsort()].diff() <= 1e-12).all())
