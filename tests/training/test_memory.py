"""The memory of exemplars."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.streams import Stream
from ease.training.memory import Memory, herding, joined


def test_herding_on_a_case_done_by_hand() -> None:
    # Four directions; the mean points along the first. It is taken first, then the pair that cancels out.
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [1.0, 0.05]])
    order = herding(points, 4)
    assert order[0] == 3 or order[0] == 0
    assert set(order.tolist()) == {0, 1, 2, 3}
    mean = torch.nn.functional.normalize(points, dim=-1).mean(0)
    best = min(range(4), key=lambda i: float((torch.nn.functional.normalize(points[i], dim=0) - mean).norm()))
    assert order[0] == best


@settings(max_examples=30, deadline=None)
@given(count=st.integers(1, 12), size=st.integers(1, 12), seed=st.integers(0, 99))
def test_herding_chooses_distinct_images_and_prefixes_agree(count: int, size: int, seed: int) -> None:
    count = min(count, size)
    points = torch.randn(size, 4, generator=torch.Generator().manual_seed(seed))
    order = herding(points, size)
    assert len(set(order.tolist())) == size
    assert np.array_equal(herding(points, count), order[:count])


def test_it_keeps_so_many_of_each_class_and_survives_its_state(stream: Stream) -> None:
    for selection in ("herding", "random"):
        memory = Memory(3, selection)  # type: ignore[arg-type]
        for task in stream.tasks[:2]:
            memory.remember(
                task.train, torch.randn(len(task.train), 4, generator=torch.Generator().manual_seed(0))
            )
        assert np.array_equal(np.bincount(memory.images.labels), [3, 3, 3, 3])
        again = Memory(3)
        again.load_state(memory.state())
        assert np.array_equal(again.images.labels, memory.images.labels)
        assert [again.images.digest(i) for i in range(12)] == [memory.images.digest(i) for i in range(12)]


def kept(memory: Memory, label: int) -> list[str]:
    images = memory.images
    return [images.digest(i) for i in range(len(images)) if images.labels[i] == label]


@pytest.mark.parametrize("selection", ["herding", "random"])
def test_a_total_budget_is_shared_and_old_classes_give_up_what_was_chosen_last(
    selection: Literal["herding", "random"], stream: Stream
) -> None:
    memory = Memory(
        selection=selection, total=21
    )  # 12 images per class: the first share, 10, is not all of them
    draws = [torch.randn(24, 4, generator=torch.Generator().manual_seed(i)) for i in range(3)]
    before: dict[int, list[str]] = {}
    for task, features in zip(stream.tasks, draws, strict=True):
        memory.remember(task.train, features)
        share = 21 // task.classes.stop
        assert np.bincount(memory.images.labels).tolist() == [share] * task.classes.stop
        assert all(kept(memory, label) == old[:share] for label, old in before.items())
        before = {label: kept(memory, label) for label in range(task.classes.stop)}
    again = Memory(total=21)
    again.load_state(memory.state())
    assert [kept(again, label) for label in range(6)] == [kept(memory, label) for label in range(6)]


def test_even_a_class_that_is_kept_whole_is_in_order_of_choice(stream: Stream) -> None:
    images, features = stream.tasks[0].train, torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
    memory = Memory(total=24)
    memory.remember(images, features)
    first = np.flatnonzero(images.labels == 0)
    order = first[herding(features[first], 12)]
    assert all(torch.equal(memory.images.image(i), images.image(int(at))) for i, at in enumerate(order))


def test_a_total_budget_below_one_image_per_class_is_refused(stream: Stream) -> None:
    memory = Memory(total=3)
    memory.remember(stream.tasks[0].train, torch.randn(24, 4))
    with pytest.raises(EaseError, match="cannot hold 4 classes"):
        memory.remember(stream.tasks[1].train, torch.randn(24, 4))
    assert len(memory) == 2


def test_a_memory_of_nothing_is_refused() -> None:
    with pytest.raises(EaseError, match="at least 1"):
        Memory(0)


def test_joined_sets_are_one_after_the_other(stream: Stream) -> None:
    memory = Memory(2)
    memory.remember(stream.tasks[0].train, torch.randn(24, 4))
    parts = [stream.tasks[1].train.take([3, 1]), memory.images, stream.tasks[2].train.take([0])]
    whole = joined(*parts)
    assert len(whole) == 7
    expected = [(part.digest(i), part.labels[i]) for part in parts for i in range(len(part))]
    assert [(whole.digest(i), whole.labels[i]) for i in range(7)] == expected
    assert torch.equal(whole.image(2), memory.images.image(0))
    assert torch.equal(whole.image(6), stream.tasks[2].train.image(0))
    assert len(joined(stream.tasks[0].train, Memory().images)) == 24
