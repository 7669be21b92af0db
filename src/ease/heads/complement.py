"""Synthesis of the prototypes of old classes in new subspaces (Eq. 8-9 and the variants of the ablation)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.heads.prototypes import PrototypeBank

References = Literal["triangle", "newest"]
Synthesis = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps (P[o,o], P[n,o], P[n,n]) to an estimate of P[o,n]."""

SINKHORN_STEPS = 1000
"""Maximum number of iterations; more are needed only for a regularisation far below any useful value."""


def semantic(old_in_old: Tensor, new_in_old: Tensor, new_in_new: Tensor) -> Tensor:
    """PPS (Eq. 8-9): old classes as mixtures of new ones, weighted by similarity in the co-occurrence space.

    Args:
        old_in_old: P[o,o], [n_old, d], old classes in their own subspace.
        new_in_old: P[n,o], [n_new, d], reference classes in the same subspace.
        new_in_new: P[n,n], [n_new, d], reference classes in the target subspace.

    Returns:
        Estimate of P[o,n], [n_old, d].
    """
    return similarities(old_in_old, new_in_old).softmax(dim=-1) @ new_in_new


def nearest_images(
    old_in_old: Tensor, images_in_old: Tensor, images_in_new: Tensor, neighbours: int
) -> Tensor:
    """PIS (supplement): like PPS, with the most similar new images as references for each old class.

    Args:
        old_in_old: P[o,o], [n_old, d], old classes in their own subspace.
        images_in_old: [N, d], features of the new images in the same subspace.
        images_in_new: [N, d], features of the same images in the target subspace.
        neighbours: Number k of images that represent an old class; all of them if there are fewer.

    Returns:
        Estimate of P[o,n], [n_old, d].
    """
    similarity = similarities(old_in_old, images_in_old)
    nearest, which = similarity.topk(min(neighbours, similarity.shape[1]), dim=-1)
    # As a sparse [n_old, N] product, because gathering k features per class would take k times the memory.
    return torch.zeros_like(similarity).scatter(1, which, nearest.softmax(dim=-1)) @ images_in_new


def linear_map(old_in_old: Tensor, new_in_old: Tensor, new_in_new: Tensor, ridge: float) -> Tensor:
    """LR: P[o,o] W, where W [d, d] minimises `|P[n,o] W - P[n,n]|^2 + ridge * s |W|^2`.

    s is the mean squared length of the rows of P[n,o], so that `ridge` has the same meaning on every backbone. There
    are fewer classes than dimensions, so without a penalty W is the smallest of many solutions. Arguments as in
    `semantic`.

    Returns:
        Estimate of P[o,n], [n_old, d].
    """
    old, known, wanted = old_in_old.double(), new_in_old.double(), new_in_new.double()
    left, values, right = torch.linalg.svd(known, full_matrices=False)
    solid = values > values.max() * max(known.shape) * torch.finfo(torch.float64).eps
    penalty = ridge * known.square().sum(dim=1).mean()
    inverse = torch.where(solid, values / (values.square() + penalty), 0.0)
    # Multiplied from the left, so that W, which has d^2 entries and rank n_new, is never formed.
    return ((old @ right.mT * inverse) @ (left.mT @ wanted)).to(new_in_new)


def transported(old_in_old: Tensor, new_in_old: Tensor, new_in_new: Tensor, regularisation: float) -> Tensor:
    """OT: like PPS, with the rows of an entropic transport plan as weights.

    The cost is 1 - cos and the marginals are uniform, so all references are used equally. Arguments as in `semantic`.

    Returns:
        Estimate of P[o,n], [n_old, d].
    """
    from ot.bregman import sinkhorn_log  # takes seconds to import

    # In fp64, because in fp32 rounding keeps the marginals from reaching the threshold; in the log domain, because a
    # small regularisation underflows otherwise.
    cost = 1 - similarities(old_in_old.double(), new_in_old.double())
    rows, columns = (cost.new_full((n,), 1 / n) for n in cost.shape)
    plan = sinkhorn_log(rows, columns, cost, regularisation, SINKHORN_STEPS, stopThr=1e-9, warn=False)
    return (plan / plan.sum(dim=1, keepdim=True)).to(new_in_new) @ new_in_new


def similarities(old: Tensor, new: Tensor) -> Tensor:
    """Eq. 8 before its softmax: cosines of [n_old, d] and [n_new, d], [n_old, n_new]."""
    return F.normalize(old, dim=-1) @ F.normalize(new, dim=-1).mT


def complete(
    bank: PrototypeBank,
    subspaces: list[int],
    references: References | None = "triangle",
    synthesise: Synthesis | None = semantic,
) -> Tensor:
    """The full classifier (Eq. 10): real prototypes where there are any, synthesised ones elsewhere.

    Args:
        bank: The real prototypes.
        subspaces: The subspaces of the classifier, in this order.
        references: Which classes the missing prototypes are synthesised from. `triangle`: all classes with a real
            prototype in the target subspace, so that every estimate changes as tasks arrive (released code).
            `newest`: only the classes that the target subspace was trained on, so that an estimate never changes (the
            paper's text). None leaves missing prototypes at zero.
        synthesise: How missing prototypes are estimated; None takes those that are kept in the bank (PIS).

    Returns:
        Prototypes [S, C, d].
    """
    sample = next(iter(bank.cells.values()))
    full = sample.new_zeros(len(subspaces), bank.classes, sample.shape[-1])
    rows, together = bank.all_rows(), _Together(bank)
    for column, subspace in enumerate(subspaces):
        real = together.tasks(subspace)
        known = set(real)
        sources = bank.learned_for(subspace) if references == "newest" else real
        if not any(bank.counts[task].shape[0] for task in sources):  # all of these classes were forgotten
            sources = real
        for task in range(bank.tasks):
            if not bank.counts[task].shape[0]:  # forgotten
                continue
            if task in known:
                full[column, rows[task]] = bank.cells[task, subspace]
            elif references is not None and synthesise is None:
                full[column, rows[task]] = bank.synthesised[task, subspace]
            elif references is not None and synthesise is not None:
                space = bank.own[task]
                full[column, rows[task]] = synthesise(
                    bank.cells[task, space],
                    together.gather(sources, space),
                    together.gather(sources, subspace),
                )
            for row, (mean, _) in bank.later.get((task, subspace), {}).items():
                full[column, rows[task].start + row] = mean
    return full


class _Together:
    """The real prototypes of a subspace in one piece, so that those of its newest tasks are a part of it.

    Every pair of an old task and a new subspace needs such prototypes. To put them together again for each pair would
    take as many steps as there are triples of tasks.
    """

    def __init__(self, bank: PrototypeBank) -> None:
        self.bank = bank
        self._found: dict[int, tuple[list[int], list[int], Tensor]] = {}

    def tasks(self, subspace: int) -> list[int]:
        """The tasks with real prototypes in this subspace."""
        return self._of(subspace)[0]

    def gather(self, tasks: list[int], subspace: int) -> Tensor:
        """As `PrototypeBank.gather`."""
        there, starts, whole = self._of(subspace)
        first = len(there) - len(tasks)
        if tasks and first >= 0 and there[first] == tasks[0] and there[first:] == tasks:
            return whole[starts[first] :]
        return self.bank.gather(tasks, subspace)

    def _of(self, subspace: int) -> tuple[list[int], list[int], Tensor]:
        if subspace not in self._found:
            there = self.bank.with_real(subspace)
            cells = [self.bank.cells[task, subspace] for task in there]
            starts = [0, *accumulate(cell.shape[0] for cell in cells)]
            self._found[subspace] = (there, starts, torch.cat(cells) if cells else torch.empty(0))
        return self._found[subspace]


def diagonal(bank: PrototypeBank, subspaces: list[int], always: set[int]) -> Tensor:
    """A classifier with prototypes only in each task's own subspace (ablation) and in the subspaces in `always`."""
    full = complete(bank, subspaces, references=None)
    own = bank.own_of_class()
    for column, subspace in enumerate(subspaces):
        if subspace not in always:
            full[column, own != subspace] = 0
    return full


def cosines(features: Tensor, prototypes: Tensor, dot: bool = False) -> Tensor:
    """Similarities of features and prototypes in each subspace separately.

    Args:
        features: [S, N, d].
        prototypes: [S, C, d].
        dot: Plain dot products, as in the literal Eq. 12, in place of cosines.

    Returns:
        [S, N, C].
    """
    if dot:
        return torch.einsum("snd,scd->snc", features, prototypes)
    return torch.einsum("snd,scd->snc", F.normalize(features, dim=-1), F.normalize(prototypes, dim=-1))
