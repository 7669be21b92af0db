"""What waits in the server: pieces of work, and the order in which they are done."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")

OLDEST_EVERY = 4
"""Of so many that are taken, one is the oldest, whatever its size."""


class Turn(NamedTuple):
    """The turn of a request among those that wait: small ones come first, and of equal ones the earlier."""

    images: float
    arrival: int


class FairQueue(queue.Queue[tuple[Turn, T]]):
    """What waits, by turn: a request of one image is not held up by large ones, and of these, one is finished first.

    One in four that are taken is the oldest, so that small requests do not hold up a large one for ever.
    """

    def _init(self, maxsize: int) -> None:
        self.queue: list[tuple[Turn, T]] = []
        self._taken = 0

    def put_back(self, item: tuple[Turn, T]) -> None:
        """Undo the last `get`: what does not fit now is not passed over when it is the oldest's turn."""
        with self.mutex:
            self._taken -= 1
            self.queue.append(item)
            self.not_empty.notify()

    def _qsize(self) -> int:
        return len(self.queue)

    def _put(self, item: tuple[Turn, T]) -> None:
        self.queue.append(item)

    def _get(self) -> tuple[Turn, T]:
        self._taken += 1
        turns = [turn for turn, _ in self.queue]
        oldest = self._taken % OLDEST_EVERY == 0
        first = min(turns, key=lambda turn: turn.arrival) if oldest else min(turns)
        return self.queue.pop(turns.index(first))


@dataclass(frozen=True)
class PendingWork:
    """A piece of work for a thread of the server, and the future that has its result."""

    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        """Do it, unless it was cancelled."""
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            self.future.set_result(self.work())
        except BaseException as error:  # the caller gets it from the future
            self.future.set_exception(error)
