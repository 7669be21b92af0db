"""Prototypes of every class in every subspace (Eq. 7, Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.storage.precision import Packed, lossless

PTM = 0
"""The number of the pre-trained model among the subspaces; the i-th trained subspace has the number i."""


def class_means(features: Tensor, labels: Tensor, classes: range) -> tuple[Tensor, Tensor]:
    """Eq. 7: the mean feature of each class.

    Args:
        features: [S, N, d].
        labels: [N], values in `classes`.
        classes: The classes to average, one row each.

    Returns:
        Means [S, n, d] and image counts [n].

    Example:
        >>> class_means(torch.tensor([[[1.0], [3.0], [5.0]]]), torch.tensor([0, 0, 1]), range(2))
        (tensor([[[2.],
                 [5.]]]), tensor([2, 1]))
    """
    sums = features.new_zeros(features.shape[0], len(classes), features.shape[2], dtype=torch.float64)
    at = labels.to(features.device) - classes.start
    sums.index_add_(1, at, features.double())
    counts = torch.bincount(at, minlength=len(classes))
    return (sums / counts[None, :, None]).float(), counts


@dataclass
class PrototypeBank:
    """Real prototypes, by the task whose images they were measured on and by subspace.

    The classes of a task have real prototypes in every subspace that existed when the task was learned. Prototypes in
    later subspaces are synthesised by `ease.heads.complement`. Synthesised prototypes that are functions of the real
    ones are computed when needed and not kept. Those that depend on images (PIS) cannot be computed again and are kept
    in `synthesised`. A class of which more images are learned later has real prototypes in later subspaces as well.

    Attributes:
        cells: (task, subspace) -> real prototypes [classes of the task, d].
        counts: Per task, the number of images per class behind the real prototypes.
        own: Per task, the subspace that separates its classes best: the one trained on it, if there is one.
        synthesised: (task, subspace) -> prototypes [classes of the task, d] synthesised from images of the task that
            the subspace was trained on.
        later: (task, subspace) -> row of a class within the task -> its prototype [d] and image count, measured on
            images that were learned after the subspace.
        storages: Per task, the precision in which its prototypes are saved, unless it is fp32.
    """

    cells: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    counts: list[Tensor] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    synthesised: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    later: dict[tuple[int, int], dict[int, tuple[Tensor, int]]] = field(default_factory=dict)
    storages: dict[int, str] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return len(self.counts)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return sum(len(c) for c in self.counts)

    def rows(self, task: int) -> slice:
        """The positions of the task's classes among all classes."""
        start = sum(c.shape[0] for c in self.counts[:task])
        return slice(start, start + self.counts[task].shape[0])

    def all_rows(self) -> list[slice]:
        """The positions of every task's classes among all classes."""
        ends = list(accumulate(c.shape[0] for c in self.counts))
        return [slice(start, end) for start, end in pairwise([0, *ends])]

    def add_task(self, means: Tensor, counts: Tensor, subspaces: list[int], own: int) -> None:
        """Add the real prototypes of a new task: means [len(subspaces), n, d] in these subspaces."""
        task = self.tasks
        for subspace, cell in zip(subspaces, means, strict=True):
            self.cells[task, subspace] = cell.detach().clone()
        self.counts.append(counts.clone())
        self.own.append(own)

    def extend(self, position: int, means: Tensor, count: int, subspaces: list[int]) -> None:
        """Add more images of a class; every image counts the same.

        Args:
            position: Position of the class among all classes.
            means: Mean features of the new images, [len(subspaces), d].
            count: Number of new images.
            subspaces: All subspaces in use.
        """
        task, row = self.place(position)
        before = int(self.counts[task][row])
        for subspace, mean in zip(subspaces, means, strict=True):
            cell = self.cells.get((task, subspace))
            if cell is not None:
                cell[row] = _weighed(cell[row], before, mean, count)
                continue
            rows = self.later.setdefault((task, subspace), {})
            known, images = rows.get(row, (torch.zeros_like(mean), 0))
            rows[row] = (_weighed(known, images, mean, count), images + count)
        self.counts[task][row] = before + count

    def forget(self, position: int) -> None:
        """Remove a class. A task without classes stays in the list, because subspaces are numbered by task."""
        task, row = self.place(position)
        keep = torch.arange(len(self.counts[task])) != row
        self.counts[task] = self.counts[task][keep]
        for bank in (self.cells, self.synthesised):
            for key in (key for key in bank if key[0] == task):
                bank[key] = bank[key][keep]
        for key in [key for key in self.later if key[0] == task]:
            self.later[key] = {r - (r > row): value for r, value in self.later[key].items() if r != row}

    def place(self, position: int) -> tuple[int, int]:
        """The task of a class, and the row of the class within the task."""
        for task, rows in enumerate(self.all_rows()):
            if rows.start <= position < rows.stop:
                return task, position - rows.start
        raise IndexError(f"there is no class {position} among {self.classes}")

    def in_use(self, subspace: int) -> bool:
        """Whether any class has a real prototype in this subspace."""
        # The newest tasks first: they have prototypes in every subspace that is in use, so that the first look decides.
        for task in reversed(range(self.tasks)):
            cell = self.cells.get((task, subspace))
            if cell is not None and cell.shape[0]:
                return True
        return False

    def with_real(self, subspace: int) -> list[int]:
        """The tasks with real prototypes in this subspace."""
        return [task for task in range(self.tasks) if (task, subspace) in self.cells]

    def learned_for(self, subspace: int) -> list[int]:
        """The task that this subspace was trained on. Later tasks without a subspace may have it as their `own`."""
        return [self.own.index(subspace)]

    def gather(self, tasks: list[int], subspace: int) -> Tensor:
        """Real prototypes of these tasks in one subspace, [classes of the tasks, d]."""
        return torch.cat([self.cells[task, subspace] for task in tasks])

    def own_of_class(self) -> Tensor:
        """The own subspace of each class, [C]."""
        sizes = torch.tensor([c.shape[0] for c in self.counts], dtype=torch.int64)
        return torch.tensor(self.own, dtype=torch.int64).repeat_interleave(sizes)

    def states(self) -> list[dict[str, Tensor]]:
        """The tensors that each task added.

        These are its real prototypes, and kept synthesised ones of old classes in the subspace that it trained.
        """
        # One walk over all cells: to look for those of each task among all of them would take tasks^3 steps.
        states: list[dict[str, Tensor]] = [{} for _ in range(self.tasks)]
        for (task, subspace), cell in self.cells.items():
            states[task][f"subspace/{subspace:04d}"] = cell
        learned_for = {subspace: task for task, subspace in reversed(list(enumerate(self.own)))}
        for (old, subspace), cell in self.synthesised.items():
            states[learned_for[subspace]][f"synthesised/{old:04d}/{subspace:04d}"] = cell
        for (task, subspace), rows in self.later.items():
            if rows:
                means, images = zip(*rows.values(), strict=True)
                states[task][f"later/{subspace:04d}"] = torch.stack(means)
                states[task][f"later_rows/{subspace:04d}"] = torch.tensor([list(rows), images])
        for state, counts, own in zip(states, self.counts, self.own, strict=True):
            state |= {"counts": counts, "own": _number(own)}
        return states

    def state(self, task: int) -> dict[str, Tensor]:
        """The tensors that one task added."""
        return self.states()[task]

    @classmethod
    def of_states(cls, states: list[dict[str, Tensor]]) -> PrototypeBank:
        """Restore a bank from the states of all its tasks."""
        bank = cls()
        for task, tensors in enumerate(states):
            for name, cell in tensors.items():
                if name.startswith("subspace/"):
                    bank.cells[task, int(name.removeprefix("subspace/"))] = cell
                elif name.startswith("synthesised/"):
                    _, old, subspace = name.split("/")
                    bank.synthesised[int(old), int(subspace)] = cell
                elif name.startswith("later/"):
                    subspace = name.removeprefix("later/")
                    rows, counts = tensors[f"later_rows/{subspace}"].tolist()
                    bank.later[task, int(subspace)] = {
                        row: (mean, count) for row, mean, count in zip(rows, cell, counts, strict=True)
                    }
            bank.counts.append(tensors["counts"])
            bank.own.append(int(tensors["own"]))
        return bank

    def packed(self) -> list[Packed]:
        """The state of each task as it is saved."""
        return [lossless(state, self.storages.get(task, "fp32")) for task, state in enumerate(self.states())]

    @classmethod
    def of_packed(cls, tasks: list[Packed]) -> PrototypeBank:
        """Restore a bank from the saved states of all its tasks."""
        bank = cls.of_states([packed.unpacked() for packed in tasks])
        bank.storages = {t: packed.storage for t, packed in enumerate(tasks) if packed.storage != "fp32"}
        return bank

    def repacked(self, storage: str | None) -> PrototypeBank:
        """A copy whose prototypes are rounded to another precision; None rounds each task as it is saved."""
        storages = [storage or self.storages.get(task, "fp32") for task in range(self.tasks)]
        both = zip(self.states(), storages, strict=True)
        tasks = [Packed(state).repacked(wanted) for state, wanted in both]
        bank = self.of_states([{n: v.clone() for n, v in packed.unpacked().items()} for packed in tasks])
        bank.storages = {
            task: packed.storage for task, packed in enumerate(tasks) if packed.storage != "fp32"
        }
        return bank


@cache
def _number(value: int) -> Tensor:
    """The same tensor each time, so that whoever saves it recognises it; it is never changed."""
    return torch.tensor(value)


def _weighed(first: Tensor, images: int, second: Tensor, more: int) -> Tensor:
    """The mean over all images, from the means of two sets of images."""
    return ((first.double() * images + second.double() * more) / (images + more)).to(first)


def best_separating(
    features: Tensor, labels: Tensor, classes: range, means: Tensor, bank: PrototypeBank, subspaces: list[int]
) -> int:
    """Find the existing subspace that separates the new classes best from all other classes.

    The score is the mean cosine margin between an image's own prototype and the nearest other prototype.

    Args:
        features: Features of the new images, [S, N, d].
        labels: [N], values in `classes`.
        classes: The new classes.
        means: Prototypes of the new classes, [S, n, d].
        bank: Prototypes of the old classes.
        subspaces: The S subspaces.

    Returns:
        A position in `subspaces`.
    """
    margins = []
    at = labels - classes.start
    for column, subspace in enumerate(subspaces):
        old = bank.with_real(subspace)
        known = torch.cat([means[column], *([bank.gather(old, subspace)] if old else [])])
        scores = F.normalize(features[column], dim=-1) @ F.normalize(known, dim=-1).mT
        mine = scores.gather(1, at[:, None])[:, 0]
        scores.scatter_(1, at[:, None], -torch.inf)
        margins.append(float((mine - scores.max(dim=1).values).mean()) if known.shape[0] > 1 else 0.0)
    return int(torch.tensor(margins).argmax())
