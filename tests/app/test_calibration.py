"""Confidences that mean what they say, from few images, while classes keep coming."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.app.calibration import (
    FEW_IMAGES,
    TEMPERATURES,
    Calibration,
    auroc,
    expected_calibration_error,
    hold_out,
)
from ease.errors import EaseError
from ease.streams import ImageSet

quick = settings(deadline=None, max_examples=30)


@st.composite
def judged(draw: st.DrawFn, fewest: int = 1, scale: float = 0.0) -> tuple[Tensor, Tensor]:
    """Logits [N, C] of about any scale, and labels that they hit more or less often."""
    seed, count = draw(st.integers(0, 10**6)), draw(st.integers(fewest, 30))
    classes, skill = draw(st.integers(2, 8)), draw(st.floats(0, 3))
    size = scale or 10.0 ** draw(st.floats(-2, 2))
    random = np.random.default_rng(seed)
    labels = random.integers(0, classes, count)
    logits = random.normal(size=(count, classes)) + skill * np.eye(classes)[labels]
    return torch.from_numpy((size * logits).astype(np.float32)), torch.from_numpy(labels)


def share_right(logits: Tensor, labels: Tensor) -> float:
    """Laplace's: a few images that are all right prove little."""
    return (int((logits.argmax(1) == labels).sum()) + 1) / (len(labels) + 2)


# -- the temperature


@quick
@given(judged())
def test_the_mean_confidence_is_the_share_of_images_that_were_recognised(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    found = Calibration.fit(logits, labels)
    assert TEMPERATURES[0] <= found.temperature <= TEMPERATURES[1]
    confidence, wanted = float(found.confidences(logits).amax(1).mean()), share_right(logits, labels)
    if found.temperature < 0.99 * TEMPERATURES[1]:  # no confidence is below 1 / C
        assert confidence == pytest.approx(wanted, abs=0.005)
    else:
        assert confidence >= wanted - 0.005


@quick
@given(judged(scale=0.01), st.floats(0.2, 5))
def test_the_temperature_scales_with_the_logits(case: tuple[Tensor, Tensor], factor: float) -> None:
    logits, labels = case
    one, other = Calibration.fit(logits, labels), Calibration.fit(factor * logits.double(), labels)
    assume(all(TEMPERATURES[0] * 1.5 < c.temperature < TEMPERATURES[1] / 1.5 for c in (one, other)))
    assert other.temperature == pytest.approx(factor * one.temperature, rel=0.05)


@quick
@given(judged())
def test_a_temperature_changes_no_prediction(case: tuple[Tensor, Tensor]) -> None:
    logits, labels = case
    confidences = Calibration.fit(logits, labels).confidences(logits)
    assert torch.allclose(confidences.sum(1), torch.ones(len(labels)), atol=1e-5)
    rows = torch.arange(len(labels))
    assert torch.equal(confidences[rows, logits.argmax(1)], confidences.amax(1))


def test_a_few_images_that_are_all_right_do_not_make_it_certain() -> None:
    for count in (1, 2, 8):
        logits = torch.tensor([[0.9, 0.7, 0.6]]).repeat(count, 1)
        found = Calibration.fit(logits, torch.zeros(count, dtype=torch.long))
        assert float(found.confidences(logits)[0, 0]) == pytest.approx((count + 1) / (count + 2), abs=2e-3)


def test_calibrating_lowers_the_calibration_error_of_cosines() -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 10, 400)
    logits = torch.from_numpy(0.03 * (random.normal(size=(400, 10)) + 2.5 * np.eye(10)[labels]))
    found = Calibration.fit(logits[:200], torch.from_numpy(labels[:200]))
    assert found.ece_before is not None
    assert found.ece_after is not None
    assert found.ece_after < 0.1 < 0.4 < found.ece_before
    fresh = expected_calibration_error(found.confidences(logits[200:]), torch.from_numpy(labels[200:]))
    assert fresh < 0.1


def test_odd_logits_are_no_trouble() -> None:
    flat = Calibration.fit(torch.ones(3, 4), torch.tensor([0, 1, 2]))
    assert flat.temperature == 1
    wrong = Calibration.fit(torch.tensor([[9.0, 0.0]] * 4), torch.tensor([1, 1, 1, 1]))
    assert wrong.temperature == pytest.approx(TEMPERATURES[1])
    with pytest.raises(ValueError, match="fit"):
        Calibration.fit(torch.ones(3, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="fit"):
        Calibration.fit(torch.full((1, 4), math.nan), torch.zeros(1))


# -- the unknown


@quick
@given(judged())
def test_at_least_95_percent_of_the_images_behind_it_are_accepted(case: tuple[Tensor, Tensor]) -> None:
    found = Calibration.fit(*case)
    accepted = found.unknown(case[0]) <= 0.5
    assert accepted.double().mean() >= 0.95
    assert torch.equal(found.unknown(case[0][:1]), found.unknown(case[0])[:1])


@quick
@given(judged(), st.integers(0, 10**6))
def test_above_a_half_means_rejected_and_lower_logits_are_less_known(
    case: tuple[Tensor, Tensor], seed: int
) -> None:
    fitted = Calibration.fit(*case)
    first = replace(fitted, evidence=None)  # as models of the first version have it
    near = [math.nextafter(fitted.threshold, side) for side in (-math.inf, math.inf)]
    best = torch.from_numpy(np.random.default_rng(seed).normal(fitted.threshold, 3 * fitted.temperature, 20))
    best = torch.cat([best, torch.tensor([*near, fitted.threshold], dtype=torch.float64)]).sort().values
    logits = torch.stack([best, best - 1], dim=1)
    assert torch.equal(first.unknown(logits) > 0.5, best < fitted.threshold)
    for found in (fitted, first):
        scores = found.unknown(logits)
        assert (scores.diff() <= 0).all()
        assert ((scores >= 0) & (scores <= 1)).all()


def test_an_image_is_compared_with_what_its_class_usually_has() -> None:
    """Class 0 lies apart: its images score .9. Those of class 1 score .5, and that is no reason for suspicion."""
    random = np.random.default_rng(5)
    labels = torch.from_numpy(np.repeat([0, 1], 100))
    own = torch.where(labels == 0, 0.9, 0.5) + 0.03 * torch.from_numpy(random.normal(size=200))
    logits = torch.full((200, 2), 0.1, dtype=torch.float64).scatter(1, labels[:, None], own[:, None])
    found = Calibration.fit(logits, labels)
    doubtful, usual = found.unknown(torch.tensor([[0.55, 0.1], [0.1, 0.5]])).tolist()
    assert doubtful > usual
    plain = replace(found, evidence=None).unknown(torch.tensor([[0.55, 0.1], [0.1, 0.5]])).tolist()
    assert plain[0] < plain[1]
    # Without the class's own images, nothing is usual for it.
    assert found.without(0).unknown(torch.tensor([[0.5]])).item() == pytest.approx(
        replace(found, evidence=None).unknown(torch.tensor([[0.5]])).item()
    )


@pytest.mark.filterwarnings("ignore:torch.tensor results are registered as constants")
@quick
@given(judged(fewest=2))
def test_the_unknown_score_can_be_traced_for_any_batch(case: tuple[Tensor, Tensor]) -> None:
    found = Calibration.fit(*case)
    traced = torch.jit.trace(found.unknown, case[0][:1], check_trace=False)
    assert torch.allclose(traced(case[0]), found.unknown(case[0]), atol=1e-6)


def test_many_images_are_accepted_at_about_the_rate_promised() -> None:
    random = np.random.default_rng(1)
    logits = torch.from_numpy(random.normal(0.8, 0.05, (2000, 5)))
    found = Calibration.fit(logits[:1000], torch.zeros(1000, dtype=torch.long))
    rate = float((found.unknown(logits[1000:]) <= 0.5).double().mean())
    assert 0.93 < rate < 0.98


def test_few_images_of_many_classes_together_still_accept_most_of_what_is_known() -> None:
    """One held-out image per class is all that small classes give: its own score would reject every second image."""
    random = np.random.default_rng(2)

    def logits(count: int) -> Tensor:
        return torch.from_numpy(random.normal([0.9, 0.6, 0.6, 0.6], 0.05, (count, 4)))

    for images in (1, 2, 4):
        joined = Calibration.none()
        for _ in range(20):
            joined = joined.joined(logits(images), torch.zeros(images, dtype=torch.long))
        assert joined.images == 20 * images
        assert 0.9 < (joined.unknown(logits(500)) <= 0.5).double().mean() < 0.99


def test_a_handful_of_images_does_not_show_how_bad_known_ones_can_be() -> None:
    random = np.random.default_rng(4)
    fresh = torch.from_numpy(random.normal([0.9, 0.6], 0.05, (500, 2)))
    rates = []
    for _ in range(100):
        few = torch.from_numpy(random.normal([0.9, 0.6], 0.05, (5, 2)))
        found = Calibration.fit(few, torch.zeros(5, dtype=torch.long))
        rates.append(float((found.unknown(fresh) <= 0.5).double().mean()))
    assert np.mean(rates) > 0.9  # the least of five scores accepts 83 %


def test_classes_that_come_alone_count_with_how_they_differ() -> None:
    """Each class varies little and classes differ much: what is usual within one would reject many of the others."""
    random = np.random.default_rng(3)
    levels = random.normal(0.6, 0.12, 30)

    def images(label: int, count: int) -> tuple[Tensor, Tensor]:
        logits = torch.from_numpy(random.normal(0, 0.05, (count, label + 1)))
        logits[:, label] += levels[label]
        return logits, torch.full((count,), label)

    found = Calibration.none()
    for label in range(30):
        found = found.joined(*images(label, 6))
    fresh = torch.cat([F.pad(images(label, 20)[0], (0, 29 - label)) for label in range(30)])
    assert 0.9 < (found.unknown(fresh) <= 0.5).double().mean() < 0.99


def test_uncalibrated_says_nothing_about_unknowns() -> None:
    none = Calibration.none()
    assert not none.calibrated
    assert none.unknown(torch.rand(4, 3)).isnan().all()
    logits = torch.rand(4, 3)
    assert torch.equal(none.confidences(logits), logits.softmax(1))
    assert Calibration.fit(torch.empty(0, 3), torch.empty(0)) == none
    assert Calibration.fit(torch.ones(1, 1), torch.zeros(1)) == none  # nothing to compare it with


def test_a_single_class_has_a_threshold_but_no_temperature() -> None:
    lone = Calibration.fit(torch.tensor([[0.8], [0.9]]), torch.tensor([0, 0]))
    assert lone.calibrated
    assert lone.ece_before is None
    assert lone.unknown(torch.tensor([[0.85], [0.3]])).gt(0.5).tolist() == [False, True]
    later = torch.tensor([[0.8, 0.9], [0.7, 0.9], [0.9, 0.8]]), torch.tensor([1, 1, 1])
    both = lone.joined(*later)
    assert both.images == 5
    assert both.temperature != lone.temperature
    assert both.ece_before is not None
    assert (
        Calibration.fit(*later).temperature / 2 < both.temperature < 2 * Calibration.fit(*later).temperature
    )


# -- joining


@quick
@given(judged(fewest=4), st.integers(1, 3))
def test_images_in_two_calls_are_as_good_as_in_one(case: tuple[Tensor, Tensor], at: int) -> None:
    logits, labels = case
    once = Calibration.fit(logits, labels)
    for order in (slice(None, None, 1), slice(None, None, -1)):
        parts = [(logits[:at], labels[:at]), (logits[at:], labels[at:])][order]
        twice = Calibration.fit(*parts[0]).joined(*parts[1])
        assert twice.images == once.images
        assert twice.temperature == pytest.approx(once.temperature)
        assert twice.evidence is not None
        assert once.evidence is not None
        assert twice.evidence.own == pytest.approx(np.array(once.evidence.own))


@pytest.mark.parametrize(("skill", "right"), [(2.15, 0.6), (4.8, 0.98)])
def test_confidence_is_right_on_average_whether_the_model_is_good_or_poor(skill: float, right: float) -> None:
    """Classes come two by two, and logits shrink as they do when a covariance has seen more images."""
    random = np.random.default_rng(7)

    def images(classes: int, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        scale = 0.05 * (1 + 2 / classes)
        logits = random.normal(size=(len(labels), classes)) + skill * np.eye(classes)[labels]
        return torch.from_numpy(scale * logits), torch.from_numpy(labels)

    found = Calibration.none()
    for classes in range(2, 22, 2):
        found = found.joined(*images(classes, np.repeat([classes - 2, classes - 1], 10)))
    logits, labels = images(20, random.integers(0, 20, 2000))
    assert (logits.argmax(1) == labels).double().mean() == pytest.approx(right, abs=0.03)
    confidence = found.confidences(logits).amax(1).mean()
    assert confidence == pytest.approx(float((logits.argmax(1) == labels).double().mean()), abs=0.05)


@quick
@given(judged())
def test_nothing_joined_changes_nothing(case: tuple[Tensor, Tensor]) -> None:
    found, none = Calibration.fit(*case), Calibration.none()
    nothing = case[0][:0], case[1][:0]
    assert found.joined(*nothing) == found
    assert none.joined(*nothing) == none
    assert none.joined(*case) == found
    assert none.without(0) == none


@quick
@given(judged(fewest=10, scale=0.05), st.integers(1, 1000), st.floats(0.01, 0.1))
def test_a_calibration_of_the_first_version_goes_on(
    case: tuple[Tensor, Tensor], images: int, temperature: float
) -> None:
    """It has no evidence, so its numbers count as its images would have them."""
    first = Calibration(temperature, 0.1, images, 0.5, 0.1)
    assert first.unknown(torch.tensor([[0.05, 0.0], [0.15, 0.0]])).gt(0.5).tolist() == [True, False]
    new, both = Calibration.fit(*case), first.joined(*case)
    assert both.images == images + new.images
    assume(new.temperature < 0.9 * TEMPERATURES[1])
    low, high = sorted((temperature, new.temperature))
    assert 0.9 * low <= both.temperature <= 1.1 * high
    many = replace(first, images=10**6).joined(*case)
    assert many.temperature == pytest.approx(temperature, rel=0.02)
    assert many.threshold == pytest.approx(0.1, abs=0.01)


# -- calibration error and AUROC


def test_the_calibration_error_of_perfect_confidences_is_zero() -> None:
    right = torch.eye(4)
    assert expected_calibration_error(right, torch.arange(4)) == 0
    # 4 of 5 with a confidence of .8
    assert expected_calibration_error(
        torch.tensor([[0.8, 0.2]] * 5), torch.tensor([0, 0, 0, 0, 1])
    ) == pytest.approx(0, abs=1e-6)


def test_the_calibration_error_by_hand() -> None:
    probabilities = [[0.9, 0.1], [0.7, 0.3], [0.6, 0.4], [0.05, 0.95]]
    # Two bins of (0, .5] and (.5, 1]: mean confidence .7875, accuracy .5.
    assert expected_calibration_error(probabilities, [0, 1, 1, 1], bins=2) == pytest.approx(0.2875)
    # Ten bins: .9 right (gap .1), .7 wrong (.7), .6 wrong (.6), .95 right (.05), each a quarter.
    assert expected_calibration_error(probabilities, [0, 1, 1, 1], bins=10) == pytest.approx(1.45 / 4)
    # On the edge of two bins it is the lower one: .5 right (gap .5), .9 wrong (.9).
    assert expected_calibration_error([[0.5, 0.5], [0.9, 0.1]], [0, 1], bins=2) == pytest.approx(0.7)
    with pytest.raises(ValueError, match="no image"):
        expected_calibration_error(torch.empty(0, 2), torch.empty(0))


def test_auroc_is_the_chance_that_an_unknown_scores_higher() -> None:
    assert auroc([0.1, 0.2], [0.3, 0.9]) == 1
    assert auroc(torch.tensor([0.1, 0.4]), torch.tensor([0.2, 0.4])) == pytest.approx((1 + 0 + 1 + 0.5) / 4)


# -- holding out


def some_images(counts: list[int], copies: int = 1, start: int = 0) -> ImageSet:
    labels = np.repeat(np.arange(len(counts)), counts)
    pixels = np.random.default_rng(start).integers(0, 256, (len(labels), 2, 2, 3), dtype=np.uint8)
    return ImageSet.of_arrays(np.repeat(pixels, copies, axis=0), np.repeat(labels, copies))


def content(images: ImageSet) -> set[tuple[int, str]]:
    return {(int(images.labels[i]), images.digest(i)) for i in range(len(images))}


def test_a_tenth_of_each_class_is_held_out_and_small_classes_are_left_whole() -> None:
    learn, held = hold_out(some_images([4, 5, 14, 20, 100]))
    assert np.bincount(held.labels, minlength=5).tolist() == [0, 1, 1, 2, 10]
    assert np.bincount(learn.labels).tolist() == [4, 4, 13, 18, 90]
    assert not content(learn) & content(held)


@quick
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 10**6), st.integers(1, 6))
def test_holding_out_depends_on_content_alone(counts: list[int], seed: int, copies: int) -> None:
    images = some_images(counts, copies, start=seed)
    order = np.random.default_rng(seed).permutation(len(images))
    first, second = hold_out(images), hold_out(images.take(order))
    for one, other in zip(first, second, strict=True):
        assert content(one) == content(other)
        assert len(one) == len(other)
    assert not content(first[0]) & content(first[1])
    assert {label for label, _ in content(first[0])} == set(range(len(counts)))
    sizes = np.bincount(first[1].labels, minlength=len(counts))
    for label, count in enumerate(counts):
        assert (sizes[label] == 0) == (count * copies < FEW_IMAGES or count == 1)


def test_equal_images_are_on_the_same_side_across_classes_too() -> None:
    images = some_images([20, 20])
    both = np.concatenate([np.arange(len(images)), np.arange(20)])
    mixed = ImageSet(images.source, both, np.concatenate([images.labels, np.ones(20, np.int64)]))
    learn, held = hold_out(mixed)
    assert not {d for _, d in content(learn)} & {d for _, d in content(held)}
    assert set(held.labels.tolist()) == {1}


def test_nothing_to_hold_out_of_nothing() -> None:
    learn, held = hold_out(some_images([3]).take([]))
    assert len(learn) == len(held) == 0


# -- manifests


@quick
@given(judged())
def test_a_calibration_survives_json(case: tuple[Tensor, Tensor]) -> None:
    found = Calibration.fit(*case)
    assert Calibration.of_json(json.loads(json.dumps(found.as_json()))) == found
    assert Calibration.of_json(Calibration.none().as_json()) == Calibration.none()


FIRST = {"temperature": 0.02, "threshold": 0.8, "images": 7, "ece_before": 0.5, "ece_after": 0.1}
"""As the first version wrote it."""
GOOD = json.loads(json.dumps(Calibration.fit(torch.eye(3).repeat(3, 1), torch.arange(3).repeat(3)).as_json()))


def test_the_first_version_still_means_what_it_did() -> None:
    found = Calibration.of_json(FIRST)
    assert (found.temperature, found.threshold, found.images) == (0.02, 0.8, 7)
    logits = torch.tensor([[0.83, 0.1], [0.77, 0.1]])
    assert found.unknown(logits).tolist() == pytest.approx(torch.sigmoid(torch.tensor([-1.5, 1.5])).tolist())
    assert Calibration.of_json(json.loads(json.dumps(found.as_json()))) == found
    with pytest.raises(EaseError, match="calibration is damaged"):
        Calibration.of_json({**FIRST, "evidence": None})


NUMBERS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": -1.0},
    {"temperature": 1e9},
    {"temperature": math.nan},
    {"temperature": "0.02"},
    {"temperature": None},
    {"temperature": True},
    {"threshold": math.inf},
    {"threshold": math.nan},
    {"threshold": None},
    {"threshold": [0.8]},
    {"images": -1},
    {"images": 2.0},
    {"images": True},
    {"images": 10**30},
    {"images": 0},
    {"ece_before": 1.5},
    {"ece_after": None},
    {"ece_after": {}},
    {"more": 1},
]


@pytest.mark.parametrize("good", [FIRST, GOOD], ids=["first", "today"])
@pytest.mark.parametrize("change", [*NUMBERS, {"version": 3}, {"version": True}, {"version": "2"}], ids=str)
def test_nonsense_in_a_manifest_is_refused(good: dict[str, Any], change: dict[str, Any]) -> None:
    Calibration.of_json(good)
    with pytest.raises(EaseError, match="calibration is damaged"):
        Calibration.of_json({**good, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 0},
        {"weight": math.nan},
        {"weight": "9"},
        {"right": -1},
        {"right": 1e6},
        {"classes": 0},
        {"classes": 3.0},
        {"classes": 10**9},
        {"confidences": None},
        {"confidences": [0.5] * 3},
        {"confidences": [1e6] * 61},
        {"confidences": [0.1 * i for i in range(61)]},
        {"confidences": [math.nan] * 61},
        {"confidences": [None] * 61},
        {"scores": [0.5]},
        {"scores": [1.0 - i for i in range(21)]},
        {"scores": [math.inf] * 21},
        {"scores": "x" * 21},
        {"own": None},
        {"own": [0.5]},
        {"own": [[0.5]]},
        {"own": [[0.5, 1.5]]},
        {"own": [[math.nan, 1]]},
        {"own": [["0.5", 1]]},
        {"own": [[0.5, -1]]},
        {"own": [[0.5, 1]] * 4},
        {"own": "ab"},
        {"more": 1},
    ],
    ids=lambda change: str(change)[:40],
)
def test_nonsense_in_the_evidence_is_refused(change: dict[str, Any]) -> None:
    Calibration.of_json(GOOD, classes=3)
    with pytest.raises(EaseError, match="calibration is damaged"):
        Calibration.of_json({**GOOD, "evidence": {**GOOD["evidence"], **change}}, classes=3)


def test_evidence_must_be_whole() -> None:
    for value in ([], "x", 3, {}, {key: v for key, v in GOOD["evidence"].items() if key != "own"}):
        with pytest.raises(EaseError, match="calibration is damaged"):
            Calibration.of_json({**GOOD, "evidence": value})


@pytest.mark.parametrize("value", [None, [], "x", 3, {}, {"temperature": 1.0}])
def test_what_is_no_calibration_at_all_is_refused(value: object) -> None:
    with pytest.raises(EaseError, match="calibration is damaged"):
        Calibration.of_json(value)
