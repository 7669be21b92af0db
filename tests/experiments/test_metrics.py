"""The figures of a run, against hand-computed examples and their invariants."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.experiments.metrics import StageScore, score_stage, summary


def stage(*per_task: float | None) -> StageScore:
    known = [value for value in per_task if value is not None]
    mean = sum(known) / len(known)
    return StageScore(mean, list(per_task), 100.0, 100.0, len(known), [int(v is not None) for v in per_task])


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, list[int]]:
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    count = draw(st.integers(1, 40))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    # Few distinct values, so that ties are common.
    logits = random.integers(0, draw(st.integers(1, 6)), size=(count, sum(sizes))).astype(np.float32)
    return logits, random.integers(0, sum(sizes), size=count), sizes


def test_a_hand_computed_stage_with_an_uneven_base() -> None:
    # Task 0 owns classes 0-2, task 1 class 3.
    logits = np.array(
        [
            [9, 1, 1, 1],  # 0 -> 0 right
            [9, 1, 1, 1],  # 1 -> 0 wrong, right task
            [1, 1, 9, 1],  # 2 -> 2 right
            [1, 1, 1, 9],  # 2 -> 3 wrong task
            [1, 1, 1, 9],  # 3 -> 3 right
        ]
    )
    score = score_stage(logits, [0, 1, 2, 2, 3], [3, 1])
    assert score.accuracy == 60.0
    assert score.per_task == [50.0, 100.0]
    assert score.task_id_accuracy == 80.0
    assert score.top5 == 100.0
    assert (score.count, score.task_counts) == (5, [4, 1])


def test_top5_counts_the_fifth_place_and_not_the_sixth() -> None:
    logits = np.arange(8.0)[::-1][None].repeat(8, axis=0)
    assert score_stage(logits, np.arange(8), [8]).top5 == 100 * 5 / 8


def test_equal_logits_go_to_the_lower_class() -> None:
    score = score_stage(np.zeros((8, 8)), np.arange(8), [4, 4])
    assert score.accuracy == 100 / 8
    assert score.top5 == 100 * 5 / 8
    assert score.task_id_accuracy == 50.0


def test_minus_infinity_masks_a_class_and_nan_is_refused() -> None:
    masked = np.array([[-np.inf, 0.0], [-np.inf, 0.0]])
    assert score_stage(masked, [0, 1], [2]).accuracy == 50.0
    with pytest.raises(EaseError, match="diverged"):
        score_stage(np.array([[np.nan, 1.0]]), [1], [2])


@pytest.mark.parametrize(
    ("logits", "labels", "sizes"),
    [
        (np.zeros((2, 3)), [0], [3]),
        (np.zeros(3), [0, 1, 2], [3]),
        (np.zeros((1, 3)), [0], [2]),
        (np.zeros((1, 3)), [0], [3, 0]),
        (np.zeros((1, 3)), [3], [3]),
        (np.zeros((1, 3)), [-1], [3]),
        (np.zeros((1, 3)), [0.0], [3]),
    ],
)
def test_shapes_that_do_not_fit_are_refused(logits: np.ndarray, labels: list, sizes: list[int]) -> None:
    with pytest.raises(ValueError):
        score_stage(logits, labels, sizes)


def test_no_test_image_is_an_error_for_people() -> None:
    with pytest.raises(EaseError, match="no test image"):
        score_stage(np.zeros((0, 3)), np.zeros(0, dtype=int), [3])


@given(scored())
def test_accuracy_is_the_count_weighted_mean_of_the_tasks(case: tuple) -> None:
    logits, labels, sizes = case
    score = score_stage(logits, labels, sizes)
    pairs = zip(score.per_task, score.task_counts, strict=True)
    weighted = sum(value * count for value, count in pairs if value is not None)
    assert sum(score.task_counts) == score.count == len(labels)
    assert score.accuracy == pytest.approx(weighted / score.count)


@given(scored())
def test_a_right_class_is_a_right_task_and_in_the_top_five(case: tuple) -> None:
    score = score_stage(*case)
    assert 0 <= score.accuracy <= score.top5 <= 100
    assert score.accuracy <= score.task_id_accuracy <= 100


@given(scored())
def test_accuracy_is_that_of_argmax(case: tuple) -> None:
    logits, labels, sizes = case
    expected = 100 * np.mean(logits.argmax(axis=1) == labels)
    assert score_stage(logits, labels, sizes).accuracy == pytest.approx(expected)


@given(scored(), st.randoms(use_true_random=False))
def test_the_order_of_the_images_does_not_matter(case: tuple, random: object) -> None:
    logits, labels, sizes = case
    order = list(range(len(labels)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert score_stage(logits[order], labels[order], sizes) == score_stage(logits, labels, sizes)


def test_a_hand_computed_run_of_three_stages() -> None:
    result = summary([stage(90.0), stage(94.0, 80.0), stage(70.0, 76.0, 100.0)])
    assert result.accuracy == [90.0, 87.0, 82.0]
    assert result.average == pytest.approx((90 + 87 + 82) / 3)
    assert result.last == 82.0
    # Task 0 peaked at 94 in stage 1, not at its own stage; task 1 at its own 80.
    assert result.forgetting == pytest.approx(((94 - 70) + (80 - 76)) / 2)
    assert result.backward_transfer == pytest.approx(((70 - 90) + (76 - 80)) / 2)
    assert result.per_task == [[90.0], [94.0, 80.0], [70.0, 76.0, 100.0]]


def test_the_last_stage_is_not_part_of_the_peak() -> None:
    assert summary([stage(50.0), stage(60.0, 10.0)]).forgetting == -10.0


def test_a_single_stage_forgets_nothing() -> None:
    result = summary([stage(75.0)])
    assert (result.forgetting, result.backward_transfer) == (0.0, 0.0)
    assert result.average == result.last == 75.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=12))
def test_a_constant_learner_forgets_nothing(values: list[float]) -> None:
    result = summary([stage(*values[: end + 1]) for end in range(len(values))])
    assert result.forgetting == result.backward_transfer == 0.0


@given(st.integers(2, 8), st.randoms(use_true_random=False))
def test_forgetting_is_never_less_than_the_loss_since_learning(count: int, random: object) -> None:
    draw = random.uniform  # type: ignore[attr-defined]
    stages = [stage(*(draw(0, 100) for _ in range(end + 1))) for end in range(count)]
    result = summary(stages)
    assert result.forgetting >= -result.backward_transfer - 1e-9


def test_a_task_without_test_images_is_none_and_left_out_of_the_means() -> None:
    assert score_stage(np.eye(4)[:3], [0, 1, 2], [3, 1]).per_task == [100.0, None]
    result = summary([stage(90.0), stage(80.0, None), stage(60.0, None, 50.0)])
    assert result.forgetting == 30.0
    assert result.backward_transfer == -30.0


def test_a_summary_is_plain_json() -> None:
    stages = [score_stage(np.eye(n, dtype=np.float32), np.arange(n), [2] * (n // 2)) for n in (2, 4, 6)]
    result = asdict(summary(stages))
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_stages_must_come_in_order_and_there_must_be_one() -> None:
    with pytest.raises(ValueError, match="at least one"):
        summary([])
    with pytest.raises(ValueError, match="stage 0 scores 2"):
        summary([stage(1.0, 2.0), stage(1.0)])
