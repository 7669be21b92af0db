"""What a stage's logits say about a learner: accuracy, forgetting, backward transfer.

Classes are numbered in stream order, so task t owns one contiguous run of columns. All figures are percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ease.errors import EaseError

TOP = 5


@dataclass(frozen=True)
class StageScore:
    """How a learner did after one stage, over the test images of every class seen so far."""

    accuracy: float
    """Top-1 over all test images (micro), so a large base task weighs as much as it has images."""
    per_task: list[float | None]
    """Top-1 within each task seen; None for a task without test images."""
    top5: float
    """Top-min(5, classes)."""
    task_id_accuracy: float
    """How often the predicted class belongs to the true class's task."""
    count: int
    task_counts: list[int]


def score_stage(logits: ArrayLike, labels: ArrayLike, task_sizes: Sequence[int]) -> StageScore:
    """Score logits [N, C] against labels [N]; `task_sizes` are the class counts of the tasks seen (sum C).

    Equal logits are settled as argmax settles them: the lower class number wins, in top-1 and top-5 alike.
    """
    scores, truth = np.asarray(logits), np.asarray(labels)
    _check(scores, truth, task_sizes)

    rows = np.arange(len(truth))
    own = scores[rows, truth][:, None]
    lower = np.arange(scores.shape[1])[None, :] < truth[:, None]
    rank = np.count_nonzero((scores > own) | ((scores == own) & lower), axis=1)

    task_of = np.repeat(np.arange(len(task_sizes)), task_sizes)
    true_task = task_of[truth]
    counts = np.bincount(true_task, minlength=len(task_sizes))
    hits = np.bincount(true_task[rank == 0], minlength=len(task_sizes))
    return StageScore(
        accuracy=_percent(hits.sum(), len(truth)),
        per_task=[_percent(hit, count) if count else None for hit, count in zip(hits, counts, strict=True)],
        top5=_percent(np.count_nonzero(rank < TOP), len(truth)),
        task_id_accuracy=_percent(
            np.count_nonzero(task_of[scores.argmax(axis=1)] == true_task),
            len(truth),
        ),
        count=len(truth),
        task_counts=counts.tolist(),
    )


@dataclass(frozen=True)
class RunScore:
    """How a learner did over a whole stream; see `summary`."""

    accuracy: list[float]
    average: float
    last: float
    forgetting: float
    backward_transfer: float
    per_task: list[list[float | None]]
    top5: list[float]
    task_id_accuracy: list[float]


def summary(stages: Sequence[StageScore]) -> RunScore:
    """The figures of a whole run; `stages[b]` is the score after task b.

    With B the last stage and a[b, t] the accuracy on task t after stage b:
    forgetting = mean over t < B of (max over t <= b < B of a[b, t]) - a[B, t], and
    backward transfer = mean over t < B of a[B, t] - a[t, t]. Both are 0 where there is no earlier task.
    """
    if not stages:
        raise ValueError("a summary needs at least one stage")
    for number, stage in enumerate(stages):
        if len(stage.per_task) != number + 1:
            raise ValueError(f"stage {number} scores {len(stage.per_task)} tasks, expected {number + 1}")

    accuracy = [stage.accuracy for stage in stages]
    per_task = [list(stage.per_task) for stage in stages]
    transferred = []
    for task in range(len(stages) - 1):
        final, history = _history(per_task, task)
        if final is not None and history:
            transferred.append(final - history[0])
    forgotten = [value for value in task_forgetting(per_task) if value is not None]
    return RunScore(
        accuracy=accuracy,
        average=_mean(accuracy),
        last=accuracy[-1],
        forgetting=_mean(forgotten),
        backward_transfer=_mean(transferred),
        per_task=per_task,
        top5=[stage.top5 for stage in stages],
        task_id_accuracy=[stage.task_id_accuracy for stage in stages],
    )


def task_forgetting(per_task: Sequence[Sequence[float | None]]) -> list[float | None]:
    """How far each task but the last has fallen from its best; None for a task without test images."""
    found: list[float | None] = []
    for task in range(len(per_task) - 1):
        final, history = _history(per_task, task)
        # A task without test images has no accuracy to lose.
        found.append(None if final is None or not history else max(history) - final)
    return found


def _history(per_task: Sequence[Sequence[float | None]], task: int) -> tuple[float | None, list[float]]:
    """A task's accuracy after the last stage, and after each earlier one since it was learned."""
    earlier = (row[task] for row in per_task[task:-1])
    return per_task[-1][task], [value for value in earlier if value is not None]


def _check(scores: np.ndarray, truth: np.ndarray, task_sizes: Sequence[int]) -> None:
    if scores.ndim != 2 or truth.shape != scores.shape[:1]:
        raise ValueError(f"logits {scores.shape} and labels {truth.shape} are not [N, C] and [N]")
    if not len(truth):
        raise EaseError("no test image to score: every stage needs test images of the classes it has seen")
    if not np.issubdtype(truth.dtype, np.integer):
        raise ValueError(f"labels must be class numbers, not {truth.dtype}")
    if min(task_sizes, default=0) < 1 or sum(task_sizes) != scores.shape[1]:
        raise ValueError(f"task sizes {list(task_sizes)} do not add up to {scores.shape[1]} classes")
    if truth.min() < 0 or truth.max() >= scores.shape[1]:
        raise ValueError(f"labels run {truth.min()}..{truth.max()}, but there are {scores.shape[1]} classes")
    # argmax takes NaN for the largest value, which would count a diverged model's guesses as predictions.
    if np.isnan(scores).any():
        raise EaseError("the logits hold NaN: training has diverged, try a lower learning rate")


def _percent(part: int | np.integer, whole: int | np.integer) -> float:
    return 100.0 * int(part) / int(whole)


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
