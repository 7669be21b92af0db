"""The drift of prototypes, from pairs and without."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads.drift import drift, unpaired_drift

BEFORE = torch.tensor([[1.0, 0.0], [1.0, 0.6]])
AFTER = torch.tensor([[1.0, 0.1], [1.4, 0.6]])
PROTOTYPE = torch.tensor([[1.0, 0.0]])


def test_the_drift_of_a_prototype_done_by_hand() -> None:
    # Two images at distance 0 and 0.6 from the prototype, sigma 0.3: weights 1 and exp(-2).
    near, far = 1 / (1 + math.exp(-2)), math.exp(-2) / (1 + math.exp(-2))
    moved = drift(BEFORE, AFTER, PROTOTYPE, sigma=0.3)
    assert torch.allclose(moved, torch.tensor([[0.4 * far, 0.1 * near]]))


def test_a_floor_is_added_to_every_weight() -> None:
    near, far = 1.5, math.exp(-2) + 0.5
    moved = drift(BEFORE, AFTER, PROTOTYPE, sigma=0.3, floor=0.5)
    assert torch.allclose(moved, torch.tensor([[0.4 * far, 0.1 * near]]) / (near + far))


def test_a_prototype_far_from_all_images_still_moves() -> None:
    # Plain exponentials would all be 0 here, and the mean 0 / 0.
    for floor in (0.0, 1e-5):
        moved = drift(torch.zeros(2, 2), torch.ones(2, 2), torch.full((1, 2), 100.0), sigma=0.3, floor=floor)
        assert torch.allclose(moved, torch.ones(1, 2))


def test_without_pairs_by_hand() -> None:
    near, far = 1 / (1 + math.exp(-2)), math.exp(-2) / (1 + math.exp(-2))
    moved = unpaired_drift(BEFORE, AFTER, PROTOTYPE, sigma=0.3)
    assert torch.allclose(moved, torch.tensor([[1.2 - 1.0, 0.35 - 0.6 * far]]))
    assert near > far


def test_without_pairs_is_what_shuffled_pairs_give_on_average() -> None:
    random = torch.Generator().manual_seed(0)
    before, prototypes = torch.randn(30, 4, generator=random), torch.randn(3, 4, generator=random)
    after = before + 0.5 + 0.2 * torch.randn(30, 4, generator=random)
    shuffles = [after[torch.randperm(30, generator=random)] for _ in range(3000)]
    mean = torch.stack([drift(before, shuffled, prototypes, 1.0) for shuffled in shuffles]).mean(dim=0)
    assert torch.allclose(mean, unpaired_drift(before, after, prototypes, 1.0), atol=0.03)
    assert not torch.allclose(mean, drift(before, after, prototypes, 1.0), atol=0.1)


@settings(max_examples=25, deadline=None)
@given(images=st.integers(1, 8), seed=st.integers(0, 1000))
def test_both_agree_where_all_weights_are_equal(images: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    before, after = torch.randn(2, images, 3, generator=random)
    prototypes = torch.randn(2, 3, generator=random)
    paired = drift(before, after, prototypes, sigma=1e6)
    assert torch.allclose(paired, unpaired_drift(before, after, prototypes, sigma=1e6), atol=1e-5)
