"""A grid of runs (cells): each is run once, several at a time, and interrupted ones are continued."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path

import torch

from ease.config import RunConfig, validated
from ease.errors import EaseError
from ease.experiments.inputs import data_digests
from ease.experiments.record import RunInputs, RunRecord
from ease.experiments.run import resume_run, start_run
from ease.experiments.run_folder import RunFolder, RunStart, SharedFolder
from ease.filesystem import content_digest, exists
from ease.methods import SharesTrainings, find_method
from ease.progress import Progress, Quiet
from ease.storage.files import check_folder_place
from ease.training.processes import begin_work


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        config: the resolved configuration.
        notes: how a preset was applied.
        shares: cells with the same text here train the same subspaces. Only the first of them does so; the others
            take its subspaces over, with the seconds they took.
        timed: its seconds will be reported, so test features are computed and not taken over.
        minutes: a rough estimate of how long it takes; 0 if it is not known.
        label: what its row in tables is called, if not as its method; no part of its name.
    """

    config: RunConfig
    notes: list[str] = field(default_factory=list)
    shares: str | None = None
    timed: bool = False
    minutes: float = 0.0
    label: str | None = None

    @property
    def name(self) -> str:
        """Readable, safe as a folder name, and different for configurations with different results.

        Values of the role `result` count, and the content of the weights and the class order file. The data folder is
        not read for a name: `Grid.record` compares its content with what the cell has seen. Only what differs from the
        defaults counts, so that a version with one more setting finds the cells of the one before.
        """
        defaults, method = RunConfig().of_role("result"), find_method(self.config.method)
        own = method.Settings().model_dump(mode="json")
        result = self.config.of_role("result")
        values = {k: v for k, v in result.items() if k != "settings" and v != defaults[k]}
        for key in _FILES:
            path = getattr(self.config, key)
            if path is not None:
                values[key] = content_digest(path)
        settings = {k: v for k, v in self.config.settings.items() if v != own.get(k)}
        text = json.dumps([values, settings], sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
        protocol = self.config.protocol.lower().replace(" ", "")
        return f"{self.config.method}-{self.config.dataset}-{protocol}-{self.config.seed}-{digest}"


def same_subspaces(config: RunConfig) -> str | None:
    """What to put in a cell's `shares`: cells with equal values may reuse each other's trainings."""
    method = find_method(config.method)
    if not issubclass(method, SharesTrainings):
        return None
    parts = (config.dataset, config.protocol, config.seed, method.shared_trainings(config.settings))
    return " ".join(map(str, parts))


_FILES = ("weights", "class_order")
"""Locations that are single files."""

Outcome = tuple[Cell, EaseError | None]
"""A cell that was tried, and the error if it failed."""


class Grid:
    """A folder of cells. Finished cells are read, interrupted ones are continued, the others are run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

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
        jobs: int = 1,
        progress: Progress | None = None,
        *,
        shard: tuple[int, int] = (1, 1),
    ) -> None:
        """Finish all cells. One that fails does not stop the others; at the end the first failure is raised.

        Args:
            cells: what to run; the same cell may be named more than once.
            jobs: processes at a time.
            progress: where to show it.
            shard: (i, n) does the i-th of n shares, counted from 1, so that n machines can divide the work. Cells that
                share trainings are in the same share.
        """
        check_folder_place(self.folder)
        progress = progress or Quiet()
        number, shards = shard
        mine = [cell for group in _sharing_groups(cells)[number - 1 :: shards] for cell in group]
        unique = {cell.name: cell for cell in mine}
        left = [cell for cell in unique.values() if self.record(cell) is None]
        failures: dict[str, EaseError] = {}

        def finished(cell: Cell, error: EaseError | None) -> None:
            if error is not None:
                failures[cell.name] = error
            found = self.record(cell)
            what = f"failed: {error}" if found is None else f"Ā {found.average:.2f}  A_B {found.last:.2f}"
            progress.say(f"{cell.name}: {what}")

        with progress.bar("cells", len(unique), done=len(unique) - len(left)) as advance:
            for cell, error in self._outcomes(left, jobs, progress):
                finished(cell, error)
                advance(1)
        if failures:
            name, error = next(iter(failures.items()))
            raise EaseError(
                f"{len(failures)} of {len(unique)} cells failed; the first, {name}: {error} "
                "(the others are kept; the same command tries again)"
            )

    def _outcomes(self, cells: Sequence[Cell], jobs: int, progress: Progress) -> Iterator[Outcome]:
        groups = _sharing_groups(cells)
        if min(jobs, len(groups)) < 2:
            for cell in cells:
                yield cell, self._attempt(cell, progress)
            return
        threads = max(1, torch.get_num_threads() // jobs)  # processes that all use all cores would crawl
        with (
            _environment(OMP_NUM_THREADS=str(threads)),
            ProcessPoolExecutor(jobs, get_context("spawn"), begin_work, (threads, os.getpid())) as pool,
        ):
            try:
                for future in as_completed([pool.submit(self._attempt_all, group) for group in groups]):
                    yield from future.result()
            except BrokenProcessPool:
                raise EaseError(
                    "a process was killed from outside, perhaps because memory was short: "
                    "the same command goes on, with fewer --jobs if need be"
                ) from None
            except BaseException:  # Ctrl-C: do not wait for what is running, it can be continued
                for process in list(pool._processes.values()):
                    process.terminate()
                raise

    def _attempt_all(self, cells: Sequence[Cell]) -> list[Outcome]:
        return [(cell, self._attempt(cell)) for cell in cells]

    def _attempt(self, cell: Cell, progress: Progress | None = None) -> EaseError | None:
        folder = RunFolder(self.path(cell))
        shared = None if cell.shares is None else SharedFolder(self.folder / "shared", not cell.timed)
        try:
            if exists(folder.config):
                started = RunStart.read(folder.config)
                _check_same(folder.path, started.config, started.inputs, cell.config)
                resume_run(folder.path, progress, shared=shared, moved=cell.config)
            else:
                start_run(cell.config, folder.path, cell.notes, progress, shared=shared)
        except EaseError as error:
            return EaseError(str(error))  # the error itself would keep the cell's network in memory
        return None


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


def _sharing_groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that share trainings, which are run one after the other in one process."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.shares or cell.name, []).append(cell)
    return list(groups.values())


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
