"""How the benchmarks measure: seconds taken in turns, the machine's matmul peak, the most memory a process held."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

REPEATS = 7
SHORTEST = 0.03
"""Seconds one sample lasts at least: shorter work is repeated within it, or the scheduler would be measured."""

Work = Callable[[], object]
T = TypeVar("T")


class Pair(NamedTuple):
    """Seconds of the naive implementation and of ours."""

    naive: float
    ours: float

    @property
    def ratio(self) -> float:
        """How many times faster ours is."""
        return self.naive / self.ours


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the seconds it took."""
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def alternating(naive: Work, ours: Work, repeats: int = REPEATS) -> Pair:
    """Median seconds of each, taken in turns so that both meet the same machine; each goes first every other time."""
    works = (naive, ours)
    calls = [_calls(work) for work in works]
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(repeats):
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds[which].append(_sample(works[which], calls[which]))
    return Pair(statistics.median(seconds[0]), statistics.median(seconds[1]))


def _calls(work: Work) -> int:
    """How often a sample calls it. This warms it up as well, so what seems short is asked a second time."""
    seconds = _sample(work, 1)
    if seconds < SHORTEST:
        seconds = _sample(work, 1)
    return max(1, round(SHORTEST / max(seconds, 1e-6)))


def _sample(work: Work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        work()
    return (time.perf_counter() - start) / calls


def matmul_peak(size: int = 2048, repeats: int = REPEATS) -> float:
    """Floating-point operations per second of a large fp32 matrix product with torch's threads."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)

    def work() -> object:
        return torch.mm(left, right, out=out)

    work()
    return 2 * size**3 / statistics.median(_sample(work, 1) for _ in range(repeats))


def peak_memory() -> int:
    """Bytes this process has held at most.

    Linux's own figure where there is one: `ru_maxrss` of a started process begins at what its parent held.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
