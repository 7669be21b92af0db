"""Many runs as one piece of work: each cell once, several at a time, continued where they stopped."""

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
from typing import Any

import torch

from ease.config import RunConfig, validated
from ease.errors import EaseError
from ease.experiments.record import Record
from ease.experiments.run import Shelf, resume_run, start_run
from ease.filesystem import exists
from ease.methods import SharesTrainings, find_method
from ease.progress import Progress, Quiet
from ease.storage.files import check_folder_place, read_json
from ease.training.processes import begin_work

# They say how a run is carried out, or have been resolved into other values: no result hangs on them.
_CIRCUMSTANCES = {"preset", "feature_memory", "image_memory", "download"}


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        config: everything that decides its result.
        notes: how a preset was applied.
        shares: cells with the same word here train the same subspaces. Only the first does so; the others take them
            over, with the seconds they took.
        timed: its seconds will be told: test features are computed anew, not taken over.
        minutes: how long it takes, roughly; 0 if nobody knows.
        label: what its row is called, if not as its method; no part of its name.
    """

    config: RunConfig
    notes: list[str] = field(default_factory=list)
    shares: str | None = None
    timed: bool = False
    minutes: float = 0.0
    label: str | None = None

    @property
    def name(self) -> str:
        """Readable, safe as a folder name, and different for every configuration.

        Only what differs from the defaults counts: a version with one more setting finds the cells of the one before.
        """
        usual, method = RunConfig().model_dump(mode="json"), find_method(self.config.method)
        own = method.Settings().model_dump(mode="json")
        values = {k: v for k, v in _deciding(self.config).items() if k != "settings" and v != usual[k]}
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


def _deciding(config: RunConfig) -> dict[str, Any]:
    return {k: v for k, v in config.model_dump(mode="json").items() if k not in _CIRCUMSTANCES}


Outcome = tuple[Cell, EaseError | None]
"""A cell that was tried, and what went wrong."""


class Grid:
    """A folder of cells. What is finished there is read, what was interrupted is continued, the rest is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, cell: Cell) -> Path:
        """Where a cell's run lies."""
        return self.folder / "cells" / cell.name

    def record(self, cell: Cell) -> Record | None:
        """What a finished cell has found."""
        path = self.path(cell) / "record.json"
        if not exists(path):
            return None
        record = dict(read_json(path))
        _check_same(path, record.get("config"), cell.config)
        return record

    def run(
        self,
        cells: Sequence[Cell],
        jobs: int = 1,
        progress: Progress | None = None,
        *,
        shard: tuple[int, int] = (1, 1),
    ) -> None:
        """Finish all cells. One that fails does not stop the others; in the end the first failure is raised.

        Args:
            cells: what is wanted; the same cell may be named more than once.
            jobs: processes at a time.
            progress: where to show it.
            shard: (i, n) does the i-th of n shares, counted from 1, so that n machines can divide the work. Cells that
                share trainings are never divided.
        """
        check_folder_place(self.folder)
        progress = progress or Quiet()
        number, shards = shard
        mine = [cell for unit in _units(cells)[number - 1 :: shards] for cell in unit]
        unique = {cell.name: cell for cell in mine}
        left = [cell for cell in unique.values() if self.record(cell) is None]
        failures: dict[str, EaseError] = {}

        def finished(cell: Cell, error: EaseError | None) -> None:
            if error is not None:
                failures[cell.name] = error
            found = self.record(cell)
            what = (
                f"failed: {error}" if found is None else f"Ā {found['average']:.2f}  A_B {found['last']:.2f}"
            )
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
        units = _units(cells)
        if min(jobs, len(units)) < 2:
            for cell in cells:
                yield cell, self._attempt(cell, progress)
            return
        threads = max(1, torch.get_num_threads() // jobs)  # processes that all use all cores would crawl
        with (
            _environment(OMP_NUM_THREADS=str(threads)),
            ProcessPoolExecutor(jobs, get_context("spawn"), begin_work, (threads, os.getpid())) as pool,
        ):
            try:
                for future in as_completed([pool.submit(self._unit, unit) for unit in units]):
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

    def _unit(self, cells: Sequence[Cell]) -> list[Outcome]:
        return [(cell, self._attempt(cell)) for cell in cells]

    def _attempt(self, cell: Cell, progress: Progress | None = None) -> EaseError | None:
        path = self.path(cell)
        shelf = None if cell.shares is None else Shelf(self.folder / "shelf", features=not cell.timed)
        try:
            if exists(path / "run.json"):
                _check_same(path, read_json(path / "run.json").get("config"), cell.config)
                resume_run(path, progress, shelf=shelf)
            else:
                start_run(cell.config, path, cell.notes, progress, shelf=shelf)
        except EaseError as error:
            return error
        return None


def _check_same(path: Path, stored: Any, config: RunConfig) -> None:
    """A default that changed since would give the same name to something else."""
    before = validated(RunConfig, stored, str(path))
    method = find_method(before.method)
    settings = validated(method.Settings, before.settings, f"settings in {path}").model_dump(mode="json")
    old, new = (
        {**_deciding(c), **c.settings} for c in (before.model_copy(update={"settings": settings}), config)
    )
    for key in new:
        if key != "settings" and old.get(key) != new[key]:
            raise EaseError(
                f"{path} was made with {key} = {old.get(key)}, now it would be {new[key]}: "
                "choose another --out, or remove that folder"
            )


def _units(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Cells that share trainings go one after the other, in one process."""
    units: dict[str, list[Cell]] = {}
    for cell in cells:
        units.setdefault(cell.shares or cell.name, []).append(cell)
    return list(units.values())


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
