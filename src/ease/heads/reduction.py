"""Fewer subspaces: which prototypes remain, and which subspace is a task's own from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.heads.prototypes import PrototypeBank

PTM = 0
"""Subspace 0 is the pre-trained model: it has no weights to lose and keeps its number."""


def regrouped(
    bank: PrototypeBank, groups: Sequence[Sequence[int]], prototypes: Mapping[int, Tensor]
) -> PrototypeBank:
    """The bank of fewer subspaces; the one given stays as it is.

    A group of one keeps its cells. In a larger group a task that had a real cell anywhere gets the mean over the
    members, synthesised where it has to be, and that counts as real: there is nothing to measure it on.

    Args:
        bank: the cells.
        groups: subspaces that become one, in the order of the new numbers from 1. Those in no group are lost.
        prototypes: [C, d] by old subspace, real and synthesised, for the members of larger groups.
    """
    new = PrototypeBank(counts=[count.clone() for count in bank.counts])
    number = {PTM: PTM, **{old: i for i, group in enumerate(groups, start=1) for old in group}}
    for group in ([PTM], *groups):
        if len(group) == 1:
            _copy(bank, new, group[0], number[group[0]])
        else:
            _mix(bank, new, group, number[group[0]], torch.stack([prototypes[s] for s in group]).mean(dim=0))
    for task, own in enumerate(bank.own):
        new.own.append(number[own] if own in number else best_own(new, task))
    return new


def _copy(bank: PrototypeBank, new: PrototypeBank, old: int, number: int) -> None:
    for source, target in ((bank.cells, new.cells), (bank.synthesised, new.synthesised)):
        target.update({(task, number): cell.clone() for (task, s), cell in source.items() if s == old})
    new.later.update({(task, number): dict(rows) for (task, s), rows in bank.later.items() if s == old})


def _mix(bank: PrototypeBank, new: PrototypeBank, group: Sequence[int], number: int, mean: Tensor) -> None:
    for task in range(bank.tasks):
        cell = mean[bank.rows(task)].clone()
        places = [(task, old) for old in group]
        if any(place in bank.cells for place in places):
            new.cells[task, number] = cell
            continue
        if any(place in bank.synthesised for place in places):
            new.synthesised[task, number] = cell
        shown = [rows for place in places for rows in bank.later.get(place, {}).items()]
        if shown:
            new.later[task, number] = {row: (cell[row], count) for row, (_, count) in shown}


def best_own(bank: PrototypeBank, task: int) -> int:
    """Where the task's real prototypes lie farthest from their nearest neighbours; the PTM if there is nothing else."""
    places = [s for (t, s) in bank.cells if t == task]
    learned = [s for s in places if s != PTM] or places
    return max(sorted(learned), key=lambda s: _apart(bank, task, s))


def _apart(bank: PrototypeBank, task: int, subspace: int) -> float:
    """Mean distance, as 1 - cosine, from a class of the task to the nearest other class with a real cell there."""
    tasks = bank.with_real(subspace)
    every = F.normalize(bank.gather(tasks, subspace), dim=-1)
    own = torch.cat([torch.full((len(bank.counts[t]),), t == task) for t in tasks])
    if not own.any() or len(every) < 2:
        return 0.0
    similar = every @ every.mT
    similar.fill_diagonal_(-1)
    return float((1 - similar[own].max(dim=1).values).mean())


def closeness(bank: PrototypeBank, one: int, other: int) -> float:
    """Mean cosine of the same classes' real prototypes in two subspaces, over the tasks that have them in both."""
    tasks = [task for task in bank.with_real(one) if (task, other) in bank.cells and len(bank.counts[task])]
    if not tasks:
        return -1.0
    return float(F.cosine_similarity(bank.gather(tasks, one), bank.gather(tasks, other), dim=-1).mean())
