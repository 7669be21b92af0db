"""Fewer passes than subspaces."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads.anytime import within_budget


class World:
    """Similarities [S, N, C] that somebody looks up, counting."""

    def __init__(self, columns: int, images: int, classes: int, seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.each = torch.rand(columns, images, classes, generator=draw)
        self.own = torch.randint(columns, (classes,), generator=draw)
        self.weights = 0.1 * torch.rand(columns, classes, generator=draw)
        self.weights[self.own, torch.arange(classes)] = 1.0
        self.asked: list[tuple[int, int]] = []

    def look(self, column: int, here: torch.Tensor) -> torch.Tensor:
        self.asked += [(column, int(i)) for i in here]
        return self.each[column, here]

    def logits(self, budget: int) -> torch.Tensor:
        return within_budget(self.look, self.each.shape[1], self.own, self.weights, budget)


worlds = st.builds(World, st.integers(1, 6), st.integers(1, 5), st.integers(1, 12), st.integers(0, 10_000))


@settings(max_examples=150, deadline=None)
@given(world=worlds, budget=st.integers(1, 8))
def test_no_image_takes_more_passes_than_allowed_nor_the_same_one_twice(world: World, budget: int) -> None:
    logits = world.logits(budget)
    assert logits.isfinite().all()
    assert len(set(world.asked)) == len(world.asked)
    images = [image for _, image in world.asked]
    assert max(images.count(i) for i in range(world.each.shape[1])) <= budget
    assert {image for column, image in world.asked if column == 0} == set(range(world.each.shape[1]))


@settings(max_examples=100, deadline=None)
@given(world=worlds, budget=st.integers(2, 6))
def test_whoever_wins_was_looked_at_in_the_own_subspace_of_its_class(world: World, budget: int) -> None:
    winners = world.own[world.logits(budget).argmax(dim=1)]
    looked = any(column in world.own.tolist() for column, _ in world.asked)
    if looked and (0 in world.own or budget > 1):
        for image, column in enumerate(winners.tolist()):
            assert (column, image) in world.asked


@settings(max_examples=100, deadline=None)
@given(world=worlds, budget=st.integers(1, 6))
def test_an_image_does_not_depend_on_its_neighbours(world: World, budget: int) -> None:
    together = world.logits(budget)
    for image in range(world.each.shape[1]):
        alone = within_budget(
            lambda column, here, image=image: world.each[column, here + image],  # type: ignore[misc]
            1,
            world.own,
            world.weights,
            budget,
        )
        assert torch.allclose(alone[0], together[image], atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(world=worlds)
def test_with_all_passes_it_is_the_full_sum(world: World) -> None:
    columns = world.each.shape[0]
    if set(world.own.tolist()) | {0} != set(range(columns)) or columns == 1:
        return  # a subspace that is nobody's own is only visited as the first
    full = torch.einsum("snc,sc->nc", world.each, world.weights)
    assert torch.allclose(world.logits(columns), full, atol=1e-5)


def test_a_case_by_hand() -> None:
    """Three subspaces of one class each: seen from the first, class 2 looks better than class 1."""
    each = torch.tensor([[[0.1, 0.5, 0.6]], [[0.0, 0.9, 0.0]], [[0.3, 0.2, 0.8]]])
    weights = torch.full((3, 3), 0.05) + 0.95 * torch.eye(3)
    logits = within_budget(lambda column, here: each[column, here], 1, torch.arange(3), weights, 2)[0]
    # The only other subspace visited counts for both others: 0.05 each.
    assert torch.allclose(logits[0], torch.tensor(0.1 + 0.1 * 0.3))
    assert torch.allclose(logits[2], torch.tensor(0.8 + 0.1 * 0.6))
    assert logits[1] < logits[0]  # its own subspace was not visited
