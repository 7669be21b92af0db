"""The class x subspace bank of prototypes (Eq. 7, Eq. 10)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor


def class_means(features: Tensor, labels: Tensor, classes: range) -> tuple[Tensor, Tensor]:
    """Eq. 7: plain means of raw features.

    Args:
        features: [S, N, d].
        labels: [N], values in `classes`.
        classes: the classes to average, one row each.

    Returns:
        means [S, n, d] and image counts [n].
    """
    sums = features.new_zeros(features.shape[0], len(classes), features.shape[2], dtype=torch.float64)
    at = labels.to(features.device) - classes.start
    sums.index_add_(1, at, features.double())
    counts = torch.bincount(at, minlength=len(classes))
    return (sums / counts[None, :, None]).float(), counts


@dataclass
class PrototypeBank:
    """Real prototypes, by the task whose images they were measured on and the subspace they live in.

    A task's classes always have real cells in every subspace that existed when it was learned. Cells in later
    subspaces are synthesised by `ease.heads.complement`. As pure functions of the real ones they are not kept; those
    that need images (PIS) cannot be made again and are, apart from the real ones. A class that was shown again has real
    prototypes in later subspaces too, beside its task's synthesised ones.

    Attributes:
        cells: (task, subspace) -> [classes of the task, d], real.
        counts: per task, images per class behind the real cells.
        own: per task, the subspace that separates it best: the one learned for it, if there is one.
        synthesised: (task, subspace) -> [classes of the task, d], made from images of the task that the subspace was
            learned for.
        later: (task, subspace) -> row of the task's class -> its prototype [d] and image count, measured on images that
            came after the subspace.
    """

    cells: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    counts: list[Tensor] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    synthesised: dict[tuple[int, int], Tensor] = field(default_factory=dict)
    later: dict[tuple[int, int], dict[int, tuple[Tensor, int]]] = field(default_factory=dict)

    @property
    def tasks(self) -> int:
        """How many tasks have prototypes."""
        return len(self.counts)

    @property
    def classes(self) -> int:
        """How many classes have prototypes."""
        return sum(len(c) for c in self.counts)

    def rows(self, task: int) -> slice:
        """Where the task's classes stand among all classes."""
        start = sum(len(c) for c in self.counts[:task])
        return slice(start, start + len(self.counts[task]))

    def add_task(self, means: Tensor, counts: Tensor, subspaces: list[int], own: int) -> None:
        """Add a task's real cells: means [len(subspaces), n, d] in these subspaces."""
        task = self.tasks
        for subspace, cell in zip(subspaces, means, strict=True):
            self.cells[task, subspace] = cell.detach().clone()
        self.counts.append(counts.clone())
        self.own.append(own)

    def extend(self, position: int, means: Tensor, count: int, subspaces: list[int]) -> None:
        """More images of a class: means [len(subspaces), d] over `count` of them, weighed against those before.

        Args:
            position: of the class among all classes.
            means: in these subspaces.
            count: images behind them.
            subspaces: all that are in use.
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
        """Drop a class everywhere. A task without classes keeps its place: subspaces are counted by it."""
        task, row = self.place(position)
        keep = torch.arange(len(self.counts[task])) != row
        self.counts[task] = self.counts[task][keep]
        for bank in (self.cells, self.synthesised):
            for key in (key for key in bank if key[0] == task):
                bank[key] = bank[key][keep]
        for key in [key for key in self.later if key[0] == task]:
            self.later[key] = {r - (r > row): value for r, value in self.later[key].items() if r != row}

    def place(self, position: int) -> tuple[int, int]:
        """The task of a class, and its row there."""
        for task in range(self.tasks):
            rows = self.rows(task)
            if rows.start <= position < rows.stop:
                return task, position - rows.start
        raise IndexError(f"there is no class {position} among {self.classes}")

    def in_use(self, subspace: int) -> bool:
        """Whether any class has a real prototype there; else there is nothing to tell classes apart by."""
        return any(len(self.cells[task, subspace]) for task in self.with_real(subspace))

    def with_real(self, subspace: int) -> list[int]:
        """The tasks that have real cells in this subspace."""
        return [task for task in range(self.tasks) if (task, subspace) in self.cells]

    def learned_for(self, subspace: int) -> list[int]:
        """The task this subspace was learned for. Later tasks may call it their own without having shaped it."""
        return [self.own.index(subspace)]

    def gather(self, tasks: list[int], subspace: int) -> Tensor:
        """Real cells of these tasks in one subspace, [classes of the tasks, d]."""
        return torch.cat([self.cells[task, subspace] for task in tasks])

    def own_of_class(self) -> Tensor:
        """[C] own subspace of each class."""
        return torch.cat([torch.full((len(c),), own) for c, own in zip(self.counts, self.own, strict=True)])

    def state(self, task: int) -> dict[str, Tensor]:
        """The tensors one task added: its own real cells, and what old tasks got in the subspace learned for it."""
        cells = {f"subspace/{s:04d}": cell for (t, s), cell in self.cells.items() if t == task}
        for (old, subspace), cell in self.synthesised.items():
            if self.learned_for(subspace) == [task]:
                cells[f"synthesised/{old:04d}/{subspace:04d}"] = cell
        for (own, subspace), rows in self.later.items():
            if own == task and rows:
                means, counts = zip(*rows.values(), strict=True)
                cells[f"later/{subspace:04d}"] = torch.stack(means)
                cells[f"later_rows/{subspace:04d}"] = torch.tensor([list(rows), counts])
        return {**cells, "counts": self.counts[task], "own": torch.tensor(self.own[task])}

    @classmethod
    def of_states(cls, states: list[dict[str, Tensor]]) -> PrototypeBank:
        """The bank that wrote these states, one per task."""
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


def _weighed(first: Tensor, images: int, second: Tensor, more: int) -> Tensor:
    """The mean over all images, from two means."""
    return ((first.double() * images + second.double() * more) / (images + more)).to(first)


def best_separating(
    features: Tensor, labels: Tensor, classes: range, means: Tensor, bank: PrototypeBank, subspaces: list[int]
) -> int:
    """Which existing subspace tells these new classes best from all others.

    Scored by the mean margin, in cosine, between an image's own prototype and the nearest other one.

    Args:
        features: [S, N, d] of the new images.
        labels: [N], values in `classes`.
        classes: the new classes.
        means: [S, n, d], the new classes' prototypes.
        bank: the old classes' prototypes.
        subspaces: the S columns.

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
