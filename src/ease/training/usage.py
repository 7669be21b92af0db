"""What a run has cost: passes through the backbone and seconds, by phase."""

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
    """Counts image x subspace passes and the time they took."""

    passes: dict[Phase, int] = field(default_factory=lambda: dict.fromkeys(PHASES, 0))
    seconds: dict[Phase, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    losses: list[tuple[float, float]] = field(default_factory=list)
    """Mean loss of the first and the last epoch of each training."""
    reused: int = 0
    """Training passes that were taken over from another run instead of being made."""
    waited: float = 0.0
    """Seconds of all phases in which the model waited for images."""
    notes: list[str] = field(default_factory=list)
    """What whoever reads the figures should know."""
    _timed: bool = False

    def count(self, phase: Phase, passes: int) -> None:
        """Note passes that were made."""
        self.passes[phase] += passes

    def take_over(self, seconds: float, passes: int) -> None:
        """Book a training that another run has made, as it was made."""
        self.passes["train"] += passes
        self.seconds["train"] += seconds
        self.reused += passes

    def waiting_for(self, things: Iterable[T]) -> Iterator[T]:
        """These things, adding the time it takes until each one is there."""
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
        """Add the time spent inside to a phase; inside another timing only the outer one counts."""
        start = time.perf_counter()
        outer, self._timed = self._timed, True
        try:
            yield
        finally:
            self._timed = outer
            if not outer:
                self.seconds[phase] += time.perf_counter() - start
