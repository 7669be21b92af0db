"""The costs of a run: passes through the backbone and seconds, by phase."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, TypeVar

T = TypeVar("T")
Phase = Literal["train", "prototypes", "evaluation"]
PHASES: tuple[Phase, ...] = ("train", "prototypes", "evaluation")


@dataclass
class Ledger:
    """Counts passes (one image in one subspace) and the time they took."""

    passes: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Mean loss of the first and the last epoch of each training."""
    reused: int = 0
    """Training passes whose result was reused from another run."""
    waited: float = 0.0
    """Seconds, over all phases, in which the model waited for images."""
    notes: list[str] = field(default_factory=list)
    """Notes for readers of the figures."""
    _timed: bool = False

    def count(self, phase: Phase, passes: int) -> None:
        """Count passes that were made."""
        self.passes[phase] += passes

    def add_reused(self, seconds: float, passes: int) -> None:
        """Count a training that was reused from another run, with the seconds it took there."""
        self.passes["train"] += passes
        self.seconds["train"] += seconds
        self.reused += passes

    def waiting_for(self, things: Iterable[T]) -> Iterator[T]:
        """Yield the items and add the time spent waiting for each of them to `waited`."""
        them = iter(things)
        while True:
            start = time.perf_counter()
            try:
                thing = next(them)
            except StopIteration:
                return
            finally:
                self.waited += time.perf_counter() - start
            yield thing

    @contextmanager
    def timing(self, phase: Phase) -> Iterator[None]:
        """Add the time spent in the context to a phase. Of nested contexts only the outermost counts."""
        start = time.perf_counter()
        outer, self._timed = self._timed, True
        try:
            yield
        finally:
            self._timed = outer
            if not outer:
                self.seconds[phase] += time.perf_counter() - start
