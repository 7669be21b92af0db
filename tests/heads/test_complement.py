"""Synthesised prototypes (Eq. 8-9)."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads import PrototypeBank, class_means
from ease.heads.complement import (
    References,
    Synthesis,
    complete,
    linear_map,
    nearest_images,
    semantic,
    transported,
)
from ease.heads.prototypes import best_separating

MIXTURES: dict[str, Synthesis] = {
    "pps": semantic,
    "pis": partial(nearest_images, neighbours=3),
    "ot": partial(transported, regularisation=0.1),
}
ALL: dict[str, Synthesis] = {**MIXTURES, "lr": partial(linear_map, ridge=0.1)}
SMALL = {
    "old": st.integers(1, 6),
    "new": st.integers(1, 6),
    "dim": st.integers(2, 8),
    "seed": st.integers(0, 999),
}


def triple(old: int, new: int, dim: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P[o,o], P[n,o], P[n,n]."""
    draw = torch.Generator().manual_seed(seed)
    p_oo, p_no, p_nn = (torch.randn(n, dim, generator=draw) for n in (old, new, new))
    return p_oo, p_no, p_nn


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


def test_pis_by_hand_takes_the_k_nearest_images_in_the_old_class_s_own_subspace() -> None:
    old_in_old = torch.tensor([[1.0, 0.0], [0.0, 5.0]])
    images_in_old = torch.tensor([[3.0, 0.0], [0.0, 2.0], [3.0, 4.0]])  # cosines 1, 0, .6 and 0, 1, .8
    images_in_new = torch.tensor([[10.0, 0.0], [0.0, 20.0], [-30.0, 30.0]])
    first, second = np.exp([1.0, 0.6]), np.exp([1.0, 0.8])
    first, second = first / first.sum(), second / second.sum()
    expected = [
        [10 * first[0] - 30 * first[1], 30 * first[1]],
        [-30 * second[1], 20 * second[0] + 30 * second[1]],
    ]
    estimate = nearest_images(old_in_old, images_in_old, images_in_new, neighbours=2)
    assert torch.allclose(estimate, torch.tensor(expected, dtype=torch.float32))
    single = nearest_images(old_in_old, images_in_old, images_in_new, neighbours=1)
    assert torch.equal(single, images_in_new[:2])


def test_lr_by_hand_is_the_ridge_solution_with_a_penalty_in_squared_lengths() -> None:
    old_in_old = np.array([[1.0, 2.0, 3.0]])
    new_in_old = np.array([[2.0, 0.0, 1.0], [0.0, 1.0, 1.0]])  # squared lengths 5 and 2
    new_in_new = np.array([[1.0, -1.0, 0.5], [4.0, 2.0, 0.0]])
    gram = new_in_old.T @ new_in_old + 0.2 * 3.5 * np.eye(3)
    expected = old_in_old @ np.linalg.solve(gram, new_in_old.T @ new_in_new)
    arguments = (torch.from_numpy(p).float() for p in (old_in_old, new_in_old, new_in_new))
    assert torch.allclose(linear_map(*arguments, ridge=0.2), torch.from_numpy(expected).float(), atol=1e-6)


def test_ot_by_hand_is_a_plan_whose_columns_are_used_equally() -> None:
    # Both old classes are nearest to the first reference, which can serve only one: cosines 1, 0 and .8, .6.
    old_in_old = torch.tensor([[2.0, 0.0], [4.0, 3.0]])
    new_in_old = torch.tensor([[1.0, 0.0], [0.0, 7.0]])
    new_in_new = torch.tensor([[10.0, 0.0], [0.0, 20.0]])
    # Two by two with uniform marginals: [[p, 1/2 - p], [1/2 - p, p]], where the odds p / (1/2 - p) squared are the
    # ratio of the kernel's diagonals, exp((1 + .6 - 0 - .8) / .1).
    odds = np.exp((1.0 + 0.6 - 0.0 - 0.8) / 0.1 / 2)
    share = odds / (1 + odds)
    expected = torch.tensor([[10 * share, 20 * (1 - share)], [10 * (1 - share), 20 * share]]).float()
    assert torch.allclose(
        transported(old_in_old, new_in_old, new_in_new, 0.1), expected, rtol=1e-4, atol=1e-4
    )


@settings(max_examples=40, deadline=None)
@given(**SMALL)
def test_an_estimate_lies_among_its_references_and_ignores_lengths(
    old: int, new: int, dim: int, seed: int
) -> None:
    p_oo, p_no, p_nn = triple(old, new, dim, seed)
    factors = torch.rand(new, 1, generator=torch.Generator().manual_seed(seed)).add(0.1)
    for mixture in MIXTURES.values():
        estimate = mixture(p_oo, p_no, p_nn)
        assert estimate.shape == p_oo.shape
        assert estimate.dtype == torch.float32
        # Convex weights: in a space where the references are the unit vectors, the estimate is the weights.
        weights = mixture(p_oo, p_no, torch.eye(new))
        assert (weights >= 0).all()
        assert torch.allclose(weights.sum(dim=1), torch.ones(old), atol=1e-5)
        assert torch.allclose(weights @ p_nn, estimate, atol=1e-5)
        assert torch.allclose(mixture(p_oo * 7, p_no * factors, p_nn), estimate, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(**SMALL)
def test_the_order_of_the_references_does_not_matter(old: int, new: int, dim: int, seed: int) -> None:
    p_oo, p_no, p_nn = triple(old, new, dim, seed)
    order = torch.randperm(new, generator=torch.Generator().manual_seed(seed))
    for name, synthesise in ALL.items():
        estimate = synthesise(p_oo, p_no, p_nn)
        assert torch.allclose(synthesise(p_oo, p_no[order], p_nn[order]), estimate, atol=1e-4), name
        assert torch.equal(synthesise(p_oo, p_no, p_nn), estimate), name


@settings(max_examples=40, deadline=None)
@given(**SMALL, more=st.integers(0, 300))
def test_pis_with_all_images_and_one_per_class_is_pps(
    old: int, new: int, dim: int, seed: int, more: int
) -> None:
    p_oo, p_no, p_nn = triple(old, new, dim, seed)
    estimate = nearest_images(p_oo, p_no, p_nn, neighbours=new + more)
    assert torch.allclose(estimate, semantic(p_oo, p_no, p_nn), atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(old=st.integers(1, 4), dim=st.integers(1, 6), more=st.integers(0, 3), seed=st.integers(0, 999))
def test_lr_without_penalty_reproduces_a_linear_map(old: int, dim: int, more: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    # Orthogonal and stretched a little: full rank, and no worse conditioned than 1 : 3.
    turn, _ = torch.linalg.qr(torch.randn(dim, dim, generator=draw))
    p_no = torch.cat([turn * torch.linspace(1, 3, dim), torch.randn(more, dim, generator=draw)])
    true_map, p_oo = torch.randn(dim, dim, generator=draw), torch.randn(old, dim, generator=draw)
    estimate = linear_map(p_oo, p_no, p_no @ true_map, ridge=0.0)
    assert torch.allclose(estimate, p_oo @ true_map, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(**SMALL)
def test_lr_is_the_ridge_solution_whatever_the_shape_and_scale(
    old: int, new: int, dim: int, seed: int
) -> None:
    p_oo, p_no, p_nn = (p.double().numpy() for p in triple(old, new, dim, seed))
    gram = p_no.T @ p_no + 0.3 * np.square(p_no).sum(1).mean() * np.eye(dim)
    expected = torch.from_numpy(p_oo @ np.linalg.solve(gram, p_no.T @ p_nn)).float()
    tensors = [torch.from_numpy(p).float() for p in (p_oo, p_no, p_nn)]
    assert torch.allclose(linear_map(*tensors, ridge=0.3), expected, atol=1e-4)
    stretched = linear_map(tensors[0] * 50, tensors[1] * 50, tensors[2], ridge=0.3)
    assert torch.allclose(stretched, expected, atol=1e-4)


def test_lr_without_penalty_survives_references_that_depend_on_each_other() -> None:
    p_oo, p_no, p_nn = triple(2, 3, 4, seed=0)
    once = linear_map(p_oo, p_no, p_nn, ridge=0.0)
    twice = linear_map(p_oo, torch.cat([p_no, p_no]), torch.cat([p_nn, p_nn]), ridge=0.0)
    assert torch.allclose(once, twice, atol=1e-4)
    assert torch.equal(linear_map(p_oo, p_no * 0, p_nn, ridge=0.0), torch.zeros(2, 4))


@pytest.mark.parametrize("regularisation", [0.01, 0.1])
def test_ot_is_the_plan_of_double_precision(regularisation: float) -> None:
    p_oo, p_no, _ = triple(4, 6, 16, seed=2)
    old, new = (
        p.double().numpy() / np.linalg.norm(p.double().numpy(), axis=1)[:, None] for p in (p_oo, p_no)
    )
    kernel, columns = np.exp((old @ new.T - 1) / regularisation), np.ones(6)
    for _ in range(20000):  # Sinkhorn as it is usually written
        rows = 1 / 4 / (kernel @ columns)
        columns = 1 / 6 / (kernel.T @ rows)
    plan = rows[:, None] * kernel * columns
    expected = torch.from_numpy(plan / plan.sum(axis=1, keepdims=True)).float()
    assert torch.allclose(transported(p_oo, p_no, torch.eye(6), regularisation), expected, atol=1e-6)


@pytest.mark.parametrize("regularisation", [0.001, 0.01, 0.1, 1.0, 1e3])
def test_ot_of_any_regularisation_is_finite_and_silent(
    regularisation: float, capfd: pytest.CaptureFixture[str]
) -> None:
    p_oo, p_no, p_nn = triple(7, 40, 16, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weights = transported(p_oo, p_no, torch.eye(40), regularisation)
        estimate = transported(p_oo, p_no, p_nn, regularisation)
    assert estimate.isfinite().all()
    assert torch.allclose(weights.sum(dim=1), torch.ones(7), atol=1e-5)
    if regularisation >= 0.01:
        assert torch.allclose(weights.mean(dim=0), torch.full((40,), 1 / 40), atol=1e-5)
    assert capfd.readouterr() == ("", "")


@settings(max_examples=25, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), seed=st.integers(0, 999))
def test_real_cells_pass_through_and_no_cell_is_empty(sizes: list[int], seed: int) -> None:
    bank = random_bank(sizes, seed=seed)
    columns = list(range(1, len(sizes) + 1))
    kinds: list[References] = ["triangle", "newest"]
    for references in kinds:
        for synthesise in ALL.values():
            full = complete(bank, columns, references, synthesise)
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


def test_kept_estimates_are_used_as_they_are_but_never_before_real_cells() -> None:
    bank = random_bank([2, 3, 2])
    kept = {(old, s): torch.full((n, 5), 10.0 * old + s) for old, n, s in [(0, 2, 2), (0, 2, 3), (1, 3, 3)]}
    bank.synthesised.update(kept)
    full = complete(bank, [1, 2, 3], "triangle", None)
    for (task, subspace), cell in {**kept, **bank.cells}.items():
        assert torch.equal(full[subspace - 1, bank.rows(task)], cell)
    assert not complete(bank, [1, 2, 3], None, None)[2, :2].any()
    bank.cells[0, 3] = torch.ones(2, 5)  # measured after all, as the upper bound does
    assert torch.equal(complete(bank, [1, 2, 3], "triangle", None)[2, :2], torch.ones(2, 5))


def test_estimates_that_need_images_lie_in_the_file_of_the_task_whose_images_they_need() -> None:
    bank = random_bank([2, 3, 2])
    bank.synthesised |= {(0, 2): torch.ones(2, 5), (0, 3): torch.zeros(2, 5), (1, 3): torch.ones(3, 5)}
    marked = [sorted(n for n in bank.state(t) if n.startswith("synthesised/")) for t in range(3)]
    assert marked == [[], ["synthesised/0000/0002"], ["synthesised/0000/0003", "synthesised/0001/0003"]]
    again = PrototypeBank.of_states([bank.state(t) for t in range(3)])
    assert again.cells.keys() == bank.cells.keys()
    assert again.synthesised.keys() == bank.synthesised.keys()
    assert all(torch.equal(again.synthesised[key], cell) for key, cell in bank.synthesised.items())


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


# --- changing a bank ------------------------------------------------------------------------------


def test_more_images_are_weighed_with_those_before() -> None:
    bank = random_bank([2, 3])  # task 0 has real cells in subspace 1, task 1 in 1 and 2; 3 images per class
    before = {key: cell.clone() for key, cell in bank.cells.items()}
    more = torch.randn(2, 5, generator=torch.Generator().manual_seed(1))
    bank.extend(1, more, 6, [1, 2])
    assert torch.allclose(bank.cells[0, 1][1], (before[0, 1][1] * 3 + more[0] * 6) / 9)
    assert torch.equal(bank.cells[0, 1][0], before[0, 1][0])
    assert all(torch.equal(bank.cells[key], before[key]) for key in [(1, 1), (1, 2)])
    assert bank.counts[0].tolist() == [3, 9]
    full = complete(bank, [1, 2])
    assert torch.equal(full[1, 1], more[1])  # real where it was synthesised, from these images alone
    assert torch.equal(full[1, 0], complete(random_bank([2, 3]), [1, 2])[1, 0])
    bank.extend(1, more + 1, 3, [1, 2])
    assert torch.allclose(bank.later[0, 2][1][0], more[1] + 1 / 3)
    assert bank.later[0, 2][1][1] == 9


def test_a_forgotten_class_leaves_the_real_cells_of_others_untouched() -> None:
    bank = random_bank([3, 2, 2])
    bank.extend(2, torch.ones(3, 5), 4, [1, 2, 3])
    real = {key: cell.clone() for key, cell in bank.cells.items()}
    bank.forget(1)
    assert bank.classes == 6
    assert [len(c) for c in bank.counts] == [2, 2, 2]
    for key, cell in bank.cells.items():
        assert torch.equal(cell, real[key][[0, 2]] if key[0] == 0 else real[key])
    full = complete(bank, [1, 2, 3])
    assert torch.equal(full[1, 1], torch.ones(5))  # what was shown again has moved up with its class
    again = PrototypeBank.of_states([bank.state(t) for t in range(3)])
    assert torch.equal(complete(again, [1, 2, 3]), full)


def test_a_task_may_lose_all_its_classes() -> None:
    bank = random_bank([2, 2, 2])
    for _ in range(2):
        bank.forget(2)
    assert [len(c) for c in bank.counts] == [2, 0, 2]
    assert bank.in_use(2)  # the last task was measured there
    assert complete(bank, [1, 2, 3]).isfinite().all()
    newest = complete(bank, [1, 2, 3], references="newest")
    assert (newest[1].abs().sum(dim=-1) > 0).all()
    for _ in range(2):
        bank.forget(2)
    assert not bank.in_use(3)
