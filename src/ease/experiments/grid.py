"""A grid of runs (cells): each is run once, several at a time, and interrupted ones are continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ease.config import RunConfig, validated
from ease.errors import EaseError
from ease.experiments.cells import Cell, same_subspaces, sharing_units
from ease.experiments.executors import Executor
from ease.experiments.executors.local import LocalProcesses
from ease.experiments.inputs import data_digests
from ease.experiments.record import RunInputs, RunRecord
from ease.experiments.run import resume_run, start_run
from ease.experiments.run_folder import RunFolder, RunStart, SharedFolder
from ease.experiments.status import CellStatus, status_table
from ease.filesystem import exists
from ease.methods import find_method
from ease.progress import Advance, Progress, Quiet
from ease.storage.files import check_folder_place, fenced, make_folder, remove_empty
from ease.storage.lease import LEASE_SECONDS, Lease, LeaseHolder, discard_lease, lease_holder
from ease.storage.lock import BusyError

__all__ = ["Cell", "Grid", "same_subspaces"]


class Grid:
    """A folder of cells. Finished cells are read, interrupted ones are continued, the others are run.

    Several processes, on this or on other machines that share the folder, may run the same grid: a lease gives each
    cell one writer at a time, and a cell that somebody else works on is waited for.

    Args:
        folder: of the grid.
        lease_seconds: how long a process that works on a cell may be silent until another one goes on.
    """

    def __init__(self, folder: Path, lease_seconds: float = LEASE_SECONDS) -> None:
        self.folder, self.lease_seconds = folder, lease_seconds

    def path(self, cell: Cell) -> Path:
        """The folder of a cell's run."""
        return self.folder / "cells" / cell.name

    def record(self, cell: Cell) -> RunRecord | None:
        """The record of a cell, None if it is not finished. One of another experiment is an error."""
        path = RunFolder(self.path(cell)).record
        if not exists(path):
            return None
        record = RunRecord.read(path)
        if record.config is None:
            raise EaseError(f"{path} has no config: choose another --out, or remove that folder")
        _check_same(path, record.config, record.inputs, cell.config)
        return record

    def run(
        self,
        cells: Sequence[Cell],
        executor: Executor | None = None,
        progress: Progress | None = None,
        *,
        shard: tuple[int, int] = (1, 1),
    ) -> None:
        """Finish all cells. One that fails does not stop the others; at the end the first failure is raised.

        Args:
            cells: what to run; the same cell may be named more than once.
            executor: where to run them; one after the other in this process if None.
            progress: where to show it.
            shard: (i, n) does the i-th of n shares, counted from 1, so that n machines can divide the work. Cells that
                share trainings are in the same share.
        """
        check_folder_place(self.folder)
        executor, progress = executor or LocalProcesses(), progress or Quiet()
        number, shards = shard
        mine = [cell for unit in sharing_units(cells)[number - 1 :: shards] for cell in unit]
        unique = {cell.name: cell for cell in mine}
        left = [cell for cell in unique.values() if self.record(cell) is None]
        failures: dict[str, EaseError] = {}

        def finished(cell: Cell, error: EaseError | None) -> None:
            found = self.record(cell)
            if found is not None:
                progress.say(f"{cell.name}: {_scores(found)}")
                return
            failure = error or _not_shared(self.path(cell))
            if str(failure) not in map(str, failures.values()):  # one reason may concern a hundred cells
                progress.say(f"{cell.name}: failed: {failure}")
            failures[cell.name] = failure

        made = make_folder(self.folder) if left else []
        with progress.bar("cells", len(unique), done=len(unique) - len(left)) as advance:
            for cell, error in executor.outcomes(self, sharing_units(left), progress):
                finished(cell, error)
                advance(1)
        rows = [self._status(cell, failures.get(cell.name)) for cell in left]
        all_alike = len(failures) == len(rows) and len({str(error) for error in failures.values()}) == 1
        if (failures and not all_alike) or len({row.node for row in rows}) > 1:
            progress.say(status_table(rows))
        if failures:
            self._leave_nothing_of([unique[name] for name in failures])
            remove_empty(made)
            name, error = next(iter(failures.items()))
            kept = "the others are kept; " if len(failures) < len(unique) else ""
            which = "all alike" if all_alike and len(failures) > 1 else f"the first, {name}"
            raise EaseError(
                f"{len(failures)} of {len(unique)} cells failed; {which}: {error} "
                f"({kept}the same command tries again)"
            )

    def attempt(
        self, cell: Cell, progress: Progress | None = None, node: str | None = None
    ) -> EaseError | None:
        """Start or continue a cell, and return the error if it fails; see `Work`."""
        folder, said = RunFolder(self.path(cell)), progress or Quiet()
        lease = Lease(self._lease(cell), self.lease_seconds, node)

        def waiting(holder: LeaseHolder) -> None:
            said.say(f"{cell.name}: waiting for {holder.node}, which works on it")

        try:
            with lease.hold(lambda: exists(folder.record), waiting) as mine:
                if mine:
                    with fenced(folder.path, lease.check):
                        _patiently(lambda: self._run(cell, folder, _Told(said, lease)), lease)
        except EaseError as error:
            # Where it was raised, and what it was raised from, would keep the cell's network in memory.
            error.__cause__ = error.__context__ = None
            return error.with_traceback(None)
        return None

    def holder(self, cell: Cell) -> LeaseHolder | None:
        """Who works on a cell at the moment; see `Work`."""
        holder = lease_holder(self._lease(cell))
        return None if holder is None or holder.released or holder.is_gone else holder

    def _leave_nothing_of(self, failed: Sequence[Cell]) -> None:
        """Remove the leases of cells that failed before they wrote anything."""
        for cell in failed:
            if not exists(self.path(cell)):
                discard_lease(self._lease(cell))
        remove_empty([self.folder / "leases"])

    def _lease(self, cell: Cell) -> Path:
        return self.folder / "leases" / cell.name

    def _run(self, cell: Cell, folder: RunFolder, progress: Progress) -> None:
        shared = None if cell.shares is None else SharedFolder(self.folder / "shared", not cell.timed)
        if exists(folder.config):
            started = RunStart.read(folder.config)
            _check_same(folder.path, started.config, started.inputs, cell.config)
            resume_run(folder.path, progress, shared=shared, moved=cell.config)
        else:
            start_run(cell.config, folder.path, cell.notes, progress, shared=shared)

    def _status(self, cell: Cell, failure: EaseError | None) -> CellStatus:
        holder, record = lease_holder(self._lease(cell)), self.record(cell)
        return CellStatus(
            name=cell.name,
            node="" if holder is None else holder.node,
            stages="" if holder is None or not holder.total else f"{holder.done}/{holder.total}",
            outcome=_scores(record) if record is not None else f"failed: {failure}",
        )


class _Told:
    """Shows progress where it is shown, and tells the lease how many stages are done."""

    def __init__(self, shown: Progress, lease: Lease) -> None:
        self._shown, self._lease, self._depth = shown, lease, 0

    @contextmanager
    def bar(self, label: str, total: int | None, done: int = 0) -> Iterator[Advance]:
        stages = self._depth == 0  # the outermost bar of a run counts its stages
        if stages:
            self._lease.done, self._lease.total = done, total or 0
        self._depth += 1
        try:
            with self._shown.bar(label, total, done) as advance:

                def both(steps: int) -> None:
                    advance(steps)
                    if stages:
                        self._lease.done += steps

                yield both
        finally:
            self._depth -= 1

    def say(self, line: str) -> None:
        self._shown.say(line)


def _patiently(run: Callable[[], None], lease: Lease) -> None:
    """A file server may hold the lock of a process for a while after its machine was lost."""
    until = time.monotonic() + 3 * lease.seconds
    while True:
        try:
            return run()
        except BusyError:
            if not lease.taken_over or time.monotonic() > until:
                raise
            time.sleep(min(1.0, lease.seconds / 20))


def _scores(record: RunRecord) -> str:
    return f"Ā {record.average:.2f}  A_B {record.last:.2f}"


def _not_shared(path: Path) -> EaseError:
    return EaseError(f"it was finished elsewhere, but {path} has no record: all nodes must share that folder")


def _check_same(path: Path, before: RunConfig, inputs: RunInputs | None, config: RunConfig) -> None:
    """Refuse a cell that was made with other values or other images than the configuration asks for.

    The name of a cell does not show a default that has changed since, nor the content of the data folder.
    """
    method = find_method(before.method)
    settings = validated(method.Settings, before.settings, f"settings in {path}").model_dump(mode="json")
    old, new = before.of_role("result"), config.of_role("result")
    old, new = {**old, **settings}, {**new, **config.settings}
    for key in new:
        if key != "settings" and old.get(key) != new[key]:
            raise EaseError(
                f"{path} was made with {key} = {old.get(key)}, now it would be {new[key]}: "
                "choose another --out, or remove that folder"
            )
    # The same path is taken for the same data. At another path the data may be a copy on another machine.
    moved = before.data_root != config.data_root
    if moved and (inputs is None or (inputs.train, inputs.test) != data_digests(config)):
        raise EaseError(
            f"{path} was made with other images, from data_root = {before.data_root}: "
            "choose another --out, or remove that folder"
        )
