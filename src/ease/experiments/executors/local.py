"""Runs cells in processes of this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context

import torch

from ease.errors import EaseError
from ease.experiments.cells import Cell, Outcome
from ease.experiments.executors import Work
from ease.progress import Progress
from ease.training.processes import begin_work


@dataclass(frozen=True)
class LocalProcesses:
    """Processes of this machine, which share its cores; one job runs in this process.

    Attributes:
        jobs: units at a time.
    """

    jobs: int = 1

    def outcomes(self, work: Work, units: Sequence[Sequence[Cell]], progress: Progress) -> Iterator[Outcome]:
        """See `Executor`."""
        if min(self.jobs, len(units)) < 2:
            for unit in units:
                for cell in unit:
                    yield cell, work.attempt(cell, progress)
            return
        threads = max(1, torch.get_num_threads() // self.jobs)  # processes that all use all cores would crawl
        with (
            _environment(OMP_NUM_THREADS=str(threads)),
            ProcessPoolExecutor(self.jobs, get_context("spawn"), begin_work, (threads, os.getpid())) as pool,
        ):
            try:
                for future in as_completed([pool.submit(_attempt_all, work, unit) for unit in units]):
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


def _attempt_all(work: Work, unit: Sequence[Cell]) -> list[Outcome]:
    return [(cell, work.attempt(cell)) for cell in unit]


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
