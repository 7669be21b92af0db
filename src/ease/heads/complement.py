"""Prototypes that old classes lack in new subspaces, synthesised from class similarity (Eq. 8-9)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.heads.prototypes import PrototypeBank

References = Literal["triangle", "newest"]
Synthesis = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(P[o,o], P[n,o], P[n,n]) -> estimate of P[o,n]."""


def semantic(old_in_old: Tensor, new_in_old: Tensor, new_in_new: Tensor) -> Tensor:
    """PPS: old classes as mixtures of new ones, weighted by similarity in the co-occurrence space.

    Args:
        old_in_old: P[o,o], [n_old, d], old classes in their own subspace.
        new_in_old: P[n,o], [n_new, d], reference classes in that same subspace.
        new_in_new: P[n,n], [n_new, d], reference classes in the target subspace.

    Returns:
        Estimate of P[o,n], [n_old, d].
    """
    similarity = F.normalize(old_in_old, dim=-1) @ F.normalize(new_in_old, dim=-1).mT
    return similarity.softmax(dim=-1) @ new_in_new


def complete(
    bank: PrototypeBank,
    subspaces: list[int],
    references: References | None = "triangle",
    synthesise: Synthesis = semantic,
) -> Tensor:
    """The full classifier (Eq. 10), [S, C, d]: real cells where there are any, synthesised ones elsewhere.

    Args:
        bank: the real cells.
        subspaces: the columns, in this order.
        references: `triangle` mixes all classes with a real cell in the target subspace, so that every estimate is
            renewed as tasks arrive (released); `newest` uses only the classes the target subspace was learned for, so
            that an estimate never changes (the paper's text); None leaves missing cells at zero.
        synthesise: how one cell is estimated.
    """
    sample = next(iter(bank.cells.values()))
    full = sample.new_zeros(len(subspaces), bank.classes, sample.shape[-1])
    for column, subspace in enumerate(subspaces):
        real = bank.with_real(subspace)
        sources = real if references == "triangle" else bank.learned_for(subspace)
        for task in range(bank.tasks):
            if task in real:
                full[column, bank.rows(task)] = bank.cells[task, subspace]
            elif references is not None:
                space = bank.own[task]
                full[column, bank.rows(task)] = synthesise(
                    bank.cells[task, space], bank.gather(sources, space), bank.gather(sources, subspace)
                )
    return full


def diagonal(bank: PrototypeBank, subspaces: list[int], always: set[int]) -> Tensor:
    """Only each task's own subspace filled (the ablation's task-specific adapters), and the subspaces in `always`."""
    full = complete(bank, subspaces, references=None)
    own = bank.own_of_class()
    for column, subspace in enumerate(subspaces):
        if subspace not in always:
            full[column, own != subspace] = 0
    return full


def cosines(features: Tensor, prototypes: Tensor, dot: bool = False) -> Tensor:
    """[S, N, d] and [S, C, d] -> [S, N, C], each subspace on its own; plain products for the literal Eq. 12."""
    if dot:
        return torch.einsum("snd,scd->snc", features, prototypes)
    return torch.einsum("snd,scd->snc", F.normalize(features, dim=-1), F.normalize(prototypes, dim=-1))
