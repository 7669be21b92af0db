"""Synthesised prototypes (Eq. 8-9)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads import PrototypeBank, class_means
from ease.heads.complement import complete, semantic
from ease.heads.prototypes import best_separating


def random_bank(sizes: list[int], dim: int = 5, seed: int = 0) -> PrototypeBank:
    """Task t has real cells in subspaces 1..t+1, as EASE makes them."""
    draw = torch.Generator().manual_seed(seed)
    bank = PrototypeBank()
    for task, size in enumerate(sizes):
        columns = list(range(1, task + 2))
        means = torch.randn(len(columns), size, dim, generator=draw)
        bank.add_task(means, torch.full((size,), 3), columns, own=task + 1)
    return bank


def test_a_cell_computed_by_hand() -> None:
    old_in_old = torch.tensor([[1.0, 0.0]])
    new_in_old = torch.tensor([[2.0, 0.0], [0.0, 3.0]])  # cosines 1 and 0
    new_in_new = torch.tensor([[10.0, 0.0], [0.0, 20.0]])
    weight = torch.tensor([1.0, 0.0]).softmax(0)
    expected = torch.stack([10 * weight[0], 20 * weight[1]])[None]
    assert torch.allclose(semantic(old_in_old, new_in_old, new_in_new), expected)


@settings(max_examples=40, deadline=None)
@given(old=st.integers(1, 6), new=st.integers(1, 6), dim=st.integers(2, 8), seed=st.integers(0, 999))
def test_an_estimate_lies_among_its_references_and_ignores_lengths(
    old: int, new: int, dim: int, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    p_oo, p_no, p_nn = (torch.randn(n, dim, generator=draw) for n in (old, new, new))
    estimate = semantic(p_oo, p_no, p_nn)
    assert (estimate <= p_nn.max(0).values + 1e-5).all()
    assert (estimate >= p_nn.min(0).values - 1e-5).all()
    scaled = semantic(p_oo * 7, p_no * torch.rand(new, 1, generator=draw).add(0.1), p_nn)
    assert torch.allclose(estimate, scaled, atol=1e-5)


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_real_cells_pass_through_and_no_cell_is_empty(sizes: list[int], seed: int) -> None:
    bank = random_bank(sizes, seed=seed)
    columns = list(range(1, len(sizes) + 1))
    for references in ("triangle", "newest"):
        full = complete(bank, columns, references)  # type: ignore[arg-type]
        assert full.shape == (len(sizes), sum(sizes), 5)
        assert (full.abs().sum(-1) > 0).all()
        for (task, subspace), cell in bank.cells.items():
            assert torch.equal(full[subspace - 1, bank.rows(task)], cell)


def test_triangle_mixes_all_later_classes_and_newest_only_the_subspace_s_own() -> None:
    bank = random_bank([2, 3, 2])
    own, target = bank.cells[0, 1], 2
    triangle = complete(bank, [1, 2, 3], "triangle")[target - 1, :2]
    newest = complete(bank, [1, 2, 3], "newest")[target - 1, :2]
    assert torch.allclose(triangle, semantic(own, bank.gather([1, 2], 1), bank.gather([1, 2], target)))
    assert torch.allclose(newest, semantic(own, bank.cells[1, 1], bank.cells[1, target]))


def test_a_bank_survives_its_state() -> None:
    bank = random_bank([2, 1, 3])
    again = PrototypeBank.of_states([bank.state(t) for t in range(3)])
    assert again.own == bank.own
    assert again.cells.keys() == bank.cells.keys()
    assert all(torch.equal(again.cells[key], cell) for key, cell in bank.cells.items())
    assert torch.equal(again.own_of_class(), torch.tensor([1, 1, 2, 3, 3, 3]))


@settings(max_examples=25, deadline=None)
@given(labels=st.lists(st.integers(4, 6), min_size=1, max_size=30), seed=st.integers(0, 99))
def test_class_means_are_plain_means(labels: list[int], seed: int) -> None:
    labels = [*labels, 4, 5, 6]
    features = torch.randn(2, len(labels), 3, generator=torch.Generator().manual_seed(seed))
    means, counts = class_means(features, torch.tensor(labels), range(4, 7))
    for row, c in enumerate(range(4, 7)):
        at = torch.tensor(labels) == c
        assert counts[row] == at.sum()
        assert torch.allclose(means[:, row], features[:, at].mean(1), atol=1e-6)


def test_the_best_separating_subspace_is_where_the_class_stands_apart() -> None:
    bank = PrototypeBank()
    bank.add_task(torch.tensor([[[1.0, 0.0]], [[1.0, 0.0]]]), torch.tensor([5]), [1, 2], own=1)
    near, far = torch.tensor([0.9, 0.1]), torch.tensor([0.0, 1.0])
    features = torch.stack([near.expand(4, 2), far.expand(4, 2)])
    chosen = best_separating(features, torch.full((4,), 1), range(1, 2), features[:, :1], bank, [1, 2])
    assert chosen == 1
    assert F.cosine_similarity(far, bank.cells[0, 2][0], dim=0) == 0
