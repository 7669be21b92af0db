"""Prototypes when subspaces go."""

from __future__ import annotations

import pytest
import torch

from ease.heads import PrototypeBank
from ease.heads.complement import complete
from ease.heads.reduction import best_own, with_subspaces


@pytest.fixture
def bank() -> PrototypeBank:
    """Three tasks of two classes, a subspace each."""
    draw = torch.Generator().manual_seed(0)
    made = PrototypeBank()
    for task in range(3):
        means = torch.randn(task + 1, 2, 5, generator=draw)
        made.add_task(means, torch.tensor([4, 6]), list(range(1, task + 2)), own=task + 1)
    return made


def test_a_lost_subspace_takes_its_cells_and_numbers_close_up(bank: PrototypeBank) -> None:
    left = with_subspaces(bank, [1, 3])
    assert sorted(left.cells) == [(0, 1), (1, 1), (2, 1), (2, 2)]
    assert torch.equal(left.cells[2, 2], bank.cells[2, 3])
    assert left.own == [1, 1, 2]
    assert complete(left, [1, 2]).isfinite().all()
    left.cells[0, 1].zero_()
    assert bank.cells[0, 1].any()  # the old one stays as it is


def test_a_task_without_its_subspace_gets_the_one_that_sets_it_apart(bank: PrototypeBank) -> None:
    bank.cells[2, 1] = torch.eye(5)[:2]
    bank.cells[2, 2] = torch.ones(2, 5) + 0.01 * torch.eye(5)[:2]  # hardly to be told from each other
    assert with_subspaces(bank, [1, 2]).own == [1, 2, 1]
    bank.cells[2, 1], bank.cells[2, 2] = bank.cells[2, 2], bank.cells[2, 1]
    assert with_subspaces(bank, [1, 2]).own == [1, 2, 2]
    bank.cells[2, 0] = torch.eye(5)[:2]
    assert best_own(bank, 2) != 0  # the pre-trained model only if there is nothing else


def test_what_needs_images_is_carried_along(bank: PrototypeBank) -> None:
    bank.synthesised = {(0, 2): torch.ones(2, 5), (0, 3): 3 * torch.ones(2, 5), (1, 3): torch.ones(2, 5)}
    left = with_subspaces(bank, [1, 3])
    assert left.synthesised.keys() == {(0, 2), (1, 2)}
    assert torch.equal(left.synthesised[0, 2], 3 * torch.ones(2, 5))


def test_classes_shown_again_keep_what_was_measured(bank: PrototypeBank) -> None:
    bank.extend(0, torch.arange(15.0).view(3, 5), 4, [1, 2, 3])
    assert torch.equal(with_subspaces(bank, [1, 3]).later[0, 2][0][0], torch.arange(10.0, 15.0))
