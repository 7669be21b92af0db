"""The memory of exemplars."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.engine.memory import Memory, herding
from ease.streams import Stream


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
