"""Where the cells of a grid are run: in processes of this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from ease.errors import EaseError
from ease.experiments.cells import Cell, Outcome
from ease.progress import Progress
from ease.storage.lease import LeaseHolder


class Work(Protocol):
    """What is done for a grid."""

    def attempt(
        self, cell: Cell, progress: Progress | None = None, node: str | None = None
    ) -> EaseError | None:
        """Start or continue a cell, and return the error if it fails. May be called in any process, on any node."""
        ...

    def holder(self, cell: Cell) -> LeaseHolder | None:
        """Who works on a cell at the moment, and how far it has come."""
        ...


class Executor(Protocol):
    """Runs cells somewhere."""

    def outcomes(self, work: Work, units: Sequence[Sequence[Cell]], progress: Progress) -> Iterator[Outcome]:
        """Attempt all cells and yield what became of each.

        Args:
            work: attempts a cell; it can be pickled.
            units: cells that share trainings are in the same unit and are run one after the other.
            progress: where to show it.
        """
        ...
