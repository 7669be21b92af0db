"""How the benchmarks measure: seconds taken in turns, the machine's matmul peak, the most memory a process held."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch

REPEATS = 7
TURN = 0.5
"""Seconds a turn of both lasts at least: shorter work is repeated within it, or the scheduler would be measured."""

Work = Callable[[], object]
Stopwatch = Callable[[Work], tuple[object, float]]
T = TypeVar("T")


class Pair(NamedTuple):
    """Seconds of the naive implementation and of ours, and how many times faster ours is."""

    naive: float
    ours: float
    ratio: float

    @classmethod
    def once(cls, naive: float, ours: float) -> Pair:
        """What was measured a single time."""
        return cls(naive, ours, naive / ours)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the seconds it took."""
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def cpu_timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and the seconds of all cores that this process spent on it: others on the machine do not count."""
    start = time.process_time()
    found = work()
    return found, time.process_time() - start


def alternating(naive: Work, ours: Work, repeats: int = REPEATS, watch: Stopwatch | None = None) -> Pair:
    """Medians over turns: of the seconds of each, and of the ratio within a turn.

    In a turn the two are called one after the other, and who is first changes, so that both meet the same machine.

    Args:
        naive: one side.
        ours: the other one.
        repeats: turns.
        watch: what takes the seconds; `timed` if None.
    """
    watch = watch or timed
    works, turns = (naive, ours), []
    both = sum(_warm(work) for work in works)
    calls = math.ceil(TURN / both)
    for turn in range(repeats):
        seconds = [0.0, 0.0]
        for call in range(calls):
            for which in (0, 1) if (turn + call) % 2 == 0 else (1, 0):
                seconds[which] += watch(works[which])[1]
        turns.append(Pair.once(seconds[0] / calls, seconds[1] / calls))
    return Pair(*(statistics.median(values) for values in zip(*turns, strict=True)))


def _warm(work: Work) -> float:
    """The seconds of a second call: the first may set things up."""
    work()
    return timed(work)[1]


def matmul_peak(size: int = 2048, repeats: int = REPEATS) -> float:
    """Floating-point operations per second of a large fp32 matrix product with torch's threads."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)

    def work() -> object:
        return torch.mm(left, right, out=out)

    work()
    return 2 * size**3 / statistics.median(timed(work)[1] for _ in range(repeats))


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
