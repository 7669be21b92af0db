"""Requests that a model is answering, so that it can be closed without breaking them off."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any


class Visits:
    """The requests under way in a model of several, which are on the event loop; another thread closes the model."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._now: set[asyncio.Task[Any]] = set()
        self._closed = False

    @contextlib.contextmanager
    def one(self) -> Iterator[bool]:
        """Around a request; False if the model is closed, so that the request must not enter it."""
        task = asyncio.current_task()
        assert task is not None
        with self._change:
            enters = not self._closed
            if enters:
                self._now.add(task)
        try:
            yield enters
        finally:
            with self._change:
                self._now.discard(task)
                self._change.notify_all()

    def close(self, seconds: float) -> None:
        """Let no request in any more, and return when the last one has left.

        Those that are not answered within these seconds are cancelled, and answered by the guard.
        """
        with self._change:
            self._closed = True
            self._change.wait_for(self._none, seconds)
            for task in self._now:
                with contextlib.suppress(RuntimeError):  # the server has ended, and its loop is closed
                    task.get_loop().call_soon_threadsafe(task.cancel)
            self._change.wait_for(self._none, seconds)

    def _none(self) -> bool:
        return not self._now
