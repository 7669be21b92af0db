"""Limits of connections: their number, and how long each may wait for its client."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ease.app.server.limits import Limits

SPARE_HANDLES = 128
"""Files and sockets that the process needs in addition to its connections."""

LEAVING = {"refused": 0, "head": 1, "answer": 1, "idle": 2}
"""Which connections are closed first for a newcomer. One whose request is being answered is not closed: clients would
not know whether it was carried out. One that was answered before it has sent all has lost nothing."""


def bounded_connections(limits: Limits) -> type[H11Protocol]:
    """The HTTP protocol class for uvicorn, with these limits."""
    most = max(1, min(limits.connections, _file_handles() - SPARE_HANDLES))
    return type("BoundedConnection", (Connection,), {"limits": limits, "most": most})


def shortage() -> str | None:
    """A warning if the system allows so few open files that the server itself may lack some; None if not."""
    if (files := _file_handles()) > SPARE_HANDLES:
        return None
    return f"only {files} files may be open, the server needs more than {SPARE_HANDLES}: raise ulimit -n"


class Connection(H11Protocol):
    """A connection that is closed if its client does not send or read in time.

    uvicorn limits the time between two requests only. An incomplete head (the lines before the body), the rest of a
    refused body, or an answer that the client does not read would keep a connection open for ever.
    """

    limits: ClassVar[Limits]
    most: ClassVar[int]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client has connected."""
        super().connection_made(transport)
        self._seen, self._since = self._state(), self.loop.time()
        self._period = min(1.0, self.limits.head_seconds / 4)
        self._timer = self.loop.call_later(self._period, self._check)
        if len(self.connections) > self.most:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP. Where an answer has begun already, no second one can follow: the connection ends."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _make_room(self) -> None:
        """Close a connection that is not being answered, the first by `LEAVING`, and among equals the oldest."""
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        waiting = [(one, one._state()[0]) for one in others]
        ranked = [(LEAVING[state], one._since, one) for one, state in waiting if state in LEAVING]
        first = min(ranked, key=lambda each: each[:2], default=(0, 0.0, self))[2]
        self.connections.discard(first)
        first.transport.abort()

    def _check(self) -> None:
        """Close the connection if its state has not changed for longer than allowed."""
        now, state = self.loop.time(), self._state()
        if state != self._seen:
            self._seen, self._since = state, now
        if now - self._since > self._allowed(state[0]):
            self.transport.abort()
            return
        self._timer = self.loop.call_later(self._period, self._check)

    def _state(self) -> tuple[str, object, int]:
        """What the connection waits for; equal to an earlier state only if there was no progress since."""
        buffered = self.transport.get_write_buffer_size()
        if buffered:
            return "answer", self.cycle, buffered
        if self.cycle is not None and not self.cycle.response_complete and not self._is_answered():
            return "request", self.cycle, 0
        if self.conn.their_state is h11.SEND_BODY:
            return "refused", self.cycle, 0
        if self.cycle is None or self.conn.trailing_data[0]:
            return "head", self.cycle, 0
        return "idle", self.cycle, 0

    def _is_answered(self) -> bool:
        """Whether the answer has been sent already, and only the rest of the request is read; see `Exchange.send`."""
        return bool(self.cycle.response_started and self.cycle.more_body)

    def _allowed(self, state: str) -> float:
        """Seconds that a state may last. The time for answering a request is limited elsewhere."""
        return {
            "answer": self.limits.idle_seconds,
            "refused": self.limits.linger_seconds,
            "head": self.limits.head_seconds,
            "idle": self.limits.keep_alive_seconds + 2 * self._period,  # uvicorn closes it earlier
        }.get(state, float("inf"))


def _file_handles() -> int:
    """Number of files and sockets that this process may have open."""
    try:
        import resource
    except ImportError:  # Windows
        return 8192
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**20 if soft == resource.RLIM_INFINITY else soft
