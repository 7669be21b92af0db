"""Dropping subspaces: which prototypes remain, and which subspace a task has as its own afterwards."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from ease.heads.prototypes import PTM, PrototypeBank


def with_subspaces(bank: PrototypeBank, kept: Sequence[int]) -> PrototypeBank:
    """Return a bank with fewer subspaces; the given one is left unchanged.

    Args:
        bank: Prototypes in all subspaces.
        kept: The trained subspaces to keep, which are numbered anew from 1 in this order. The pre-trained model always
            stays.

    Returns:
        The prototypes in the subspaces that are left. A task whose own subspace was dropped gets the remaining one in
        which its classes are farthest from other classes.
    """
    new = PrototypeBank(counts=[count.clone() for count in bank.counts], storages=dict(bank.storages))
    number = {PTM: PTM, **{old: i for i, old in enumerate(kept, start=1)}}
    for old, current in number.items():
        for source, target in ((bank.cells, new.cells), (bank.synthesised, new.synthesised)):
            target.update({(task, current): cell.clone() for (task, s), cell in source.items() if s == old})
        new.later.update({(task, current): dict(rows) for (task, s), rows in bank.later.items() if s == old})
    for task, own in enumerate(bank.own):
        new.own.append(number[own] if own in number else best_own(new, task))
    return new


def best_own(bank: PrototypeBank, task: int) -> int:
    """The subspace in which the task's real prototypes are farthest from their nearest neighbours.

    The pre-trained model is chosen only if there is no other subspace.
    """
    places = [s for (t, s) in bank.cells if t == task]
    trained = [s for s in places if s != PTM] or places
    return max(sorted(trained), key=lambda s: _separation(bank, task, s))


def _separation(bank: PrototypeBank, task: int, subspace: int) -> float:
    """Mean distance, as 1 - cosine, of the task's classes to the nearest other class with a real prototype."""
    tasks = bank.with_real(subspace)
    every = F.normalize(bank.gather(tasks, subspace), dim=-1)
    own = torch.cat([torch.full((len(bank.counts[t]),), t == task) for t in tasks])
    if not own.any() or len(every) < 2:
        return 0.0
    similar = every @ every.mT
    similar.fill_diagonal_(-1)
    return float((1 - similar[own].max(dim=1).values).mean())
