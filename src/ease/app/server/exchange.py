"""One request and its answer: how fast the request must arrive, its size, and whether the client still waits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from ease.app.server.limits import MB, Limits
from ease.app.server.refusals import RefusalError

CSP = (
    "default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Content-Security-Policy": CSP,
}
MODEL_ROOT = "ease.model_root"
"""Entry of a scope: the address of a model that cannot answer itself, so that its requests are judged all the same."""
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"}
GRACE_PERIOD = 1.0
"""Seconds that receiving a body may take before it can be given up for another request."""
REST_TIMEOUT = 5.0
"""Seconds without a byte after which the server stops reading the rest of a refused request."""

T = TypeVar("T")


class Arrivals:
    """Requests whose bodies are being received. If there are too many, the slowest one is given up.

    If new requests were refused instead, a few clients that send nothing could block the server.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now: set[Exchange] = set()

    def __len__(self) -> int:
        return len(self._now)

    def join(self, exchange: Exchange) -> None:
        """Add a request, if it is not there yet."""
        if exchange in self._now:
            return
        if len(self._now) >= self._most:
            late = [one for one in self._now if one.age >= GRACE_PERIOD]
            if not late:
                sentence = "too many requests are being received: try again in a moment"
                raise RefusalError(503, sentence, {"Retry-After": "1"})
            slowest = min(late, key=lambda one: one.pace)
            slowest.give_up()
            self.leave(slowest)
        self._now.add(exchange)

    def leave(self, one: Exchange) -> None:
        """Remove a request: its body has arrived, or is not waited for."""
        self._now.discard(one)


class Exchange:
    """Both directions of one request.

    Args:
        scope: ASGI scope of the request.
        receive: Gives its body.
        send: Takes the answer.
        limits: Limits of sizes and times.
        arrivals: All requests whose bodies are being received.
    """

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, limits: Limits, arrivals: Arrivals
    ) -> None:
        self._receive, self._send, self._limits, self._arrivals = receive, send, limits, arrivals
        self._path = route_path(scope)
        headers = Headers(scope=scope)
        self._whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        self._received, self._started = 0, time.monotonic()
        self._given_up = asyncio.get_running_loop().create_future()
        self.status = 0

    @property
    def age(self) -> float:
        """Seconds since the request began."""
        return time.monotonic() - self._started

    @property
    def pace(self) -> float:
        """Bytes of the body received per second."""
        return self._received / max(self.age, 1e-6)

    def give_up(self) -> None:
        """Stop waiting for the body."""
        if not self._given_up.done():
            self._given_up.set_result(None)

    def close(self) -> None:
        """End the exchange."""
        self._arrivals.leave(self)

    async def receive(self) -> Message:
        """The next part of the body; refuses a body that is too large or too slow."""
        if self._whole:
            return await self._receive()
        self._arrivals.join(self)
        left = self._limits.seconds_of(self._path, self._received) - self.age
        message = await self._next(min(self._limits.idle_seconds, left))
        if message is None:
            # The connection is closed, since otherwise the rest of the body would have to be read.
            sentence = "the upload stopped or is too slow: send it again, or send less"
            raise RefusalError(408, sentence, {"Connection": "close"})
        limit = self._limits.bytes_of(self._path)
        if self._received > limit:
            raise too_much(limit)
        return message

    async def send(self, message: Message) -> None:
        """Send an answer, with the headers that every answer has."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and not self._whole and self.status != 408:
            # The answer is sent before the request has arrived. If the connection were closed now, the client, which
            # is still sending, would see a broken connection instead of the answer.
            await self._send({**message, "more_body": True})
            with contextlib.suppress(asyncio.CancelledError):  # the server stops: the answer ends here
                await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    async def _next(self, seconds: float) -> Message | None:
        """A part of the body, if it arrives within these seconds."""
        piece = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait(
                {piece, self._given_up}, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED
            )
            if not piece.done():
                return None
            message = piece.result()
        finally:
            piece.cancel()
        self._received += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._whole:
            self._arrivals.leave(self)
        return message

    async def _linger(self) -> None:
        """Read and drop the rest of the body."""
        self._arrivals.leave(self)
        until = time.monotonic() + self._limits.linger_seconds
        while not self._whole and (left := until - time.monotonic()) > 0:
            if await self._next(min(REST_TIMEOUT, left)) is None:
                return


def route_path(scope: Scope) -> str:
    """The path of a request below the address of its model, such as /predict for /m/NAME/predict."""
    path, root = str(scope["path"]), str(scope.get(MODEL_ROOT) or scope.get("root_path", ""))
    return path[len(root) :] if root and path.startswith(f"{root}/") else path


def known_method(scope: Scope) -> str:
    """The method of a request, as logs, metrics and traces name it.

    A client can invent any number of others, of any length: they are "other".
    """
    return str(scope["method"]) if scope["method"] in METHODS else "other"


def too_much(limit: int) -> RefusalError:
    """The error for a request that is larger than this."""
    size = f"{limit // MB} MB" if limit >= MB else f"{limit // 1024} KB"
    return RefusalError(413, f"the request is larger than {size}: send fewer or smaller files")


async def while_connected(request: Request, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
    """Return what `work` returns. It is cancelled if the client disconnects, or after `seconds`.

    Args:
        request: The request; all of its body has been read.
        work: What computes the answer.
        seconds: Time limit; none if None.
    """
    task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({task, leaving}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if leaving.done():
            raise ClientDisconnect()
        sentence = (
            f"the answer took longer than {seconds:g} seconds: send fewer or smaller images, or try later"
        )
        raise RefusalError(503, sentence, {"Retry-After": "1"})
    finally:
        leaving.cancel()
        task.cancel()
        await asyncio.wait({task})


async def _left(request: Request) -> None:
    """Return once the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
