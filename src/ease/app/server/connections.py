"""Connections: how many there may be, and how long each may wait for its client."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ease.app.server.limits import Limits

SPARE_HANDLES = 128
"""Files and sockets that the process needs besides its connections."""


def bounded_connections(limits: Limits) -> type[H11Protocol]:
    """The protocol that uvicorn shall speak."""
    most = max(1, min(limits.connections, _file_handles() - SPARE_HANDLES))
    return type("BoundedConnection", (Connection,), {"limits": limits, "most": most})


class Connection(H11Protocol):
    """A connection that is given up if its client does not do its part in time.

    uvicorn bounds the time between two requests only: half a head (the lines before the body), a body that nobody
    reads any more, and an answer that the client does not read would keep a connection for ever.
    """

    limits: ClassVar[Limits]
    most: ClassVar[int]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._seen, self._since = self._state(), self.loop.time()
        self._period = min(1.0, self.limits.head_seconds / 4)
        self._timer = self.loop.call_later(self._period, self._look)
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by whomever."""
        self._timer.cancel()
        super().connection_lost(exc)

    def _make_room(self) -> None:
        """Give one up that is not being answered: rather one with half a request than one between two requests."""
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        waiting = [one for one in others if one._state()[0] != "request"]
        first = min(waiting, key=lambda one: (one._state()[0] == "idle", one._since), default=self)
        self.connections.discard(first)
        first.transport.abort()

    def _look(self) -> None:
        """Give it up if nothing has changed for longer than it may."""
        now, state = self.loop.time(), self._state()
        if state != self._seen:
            self._seen, self._since = state, now
        if now - self._since > self._allowed(state[0]):
            self.transport.abort()
            return
        self._timer = self.loop.call_later(self._period, self._look)

    def _state(self) -> tuple[str, object, int]:
        """What it is waiting for; equal to an earlier state only if there was no request and no progress since."""
        buffered = self.transport.get_write_buffer_size()
        if buffered:
            return "answer", self.cycle, buffered
        if self.cycle is not None and not self.cycle.response_complete:
            return "request", self.cycle, 0
        if self.conn.their_state is h11.SEND_BODY:
            return "refused", self.cycle, 0
        if self.cycle is None or self.conn.trailing_data[0]:
            return "head", self.cycle, 0
        return "idle", self.cycle, 0

    def _allowed(self, state: str) -> float:
        """Seconds that a state may last. How long a request may take is decided where it is answered."""
        return {
            "answer": self.limits.idle_seconds,
            "refused": self.limits.linger_seconds,
            "head": self.limits.head_seconds,
            "idle": self.limits.keep_alive_seconds + 2 * self._period,  # uvicorn closes it before
        }.get(state, float("inf"))


def _file_handles() -> int:
    """How many files and sockets this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 8192
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**20 if soft == resource.RLIM_INFINITY else soft
