"""What every request passes: who may change the model, how much may be sent, and what no answer may lack or tell."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ease.app.server.telemetry import Log, Metrics
from ease.errors import EaseError

MB = 1_000_000
JSON_BYTES = 64 * 1024

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
CHANGES_NOTHING = {"/predict"}
"""POST, but the model stays as it is. Any other route that is not read-only is taken for a change."""

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


@dataclass(frozen=True)
class Limits:
    """How much one request, one job, and all of them may take.

    Attributes:
        predict_bytes: of a request for predictions,
        predict_files: and images in it.
        learn_bytes: of a request to learn,
        learn_files: and images in it, or members of its archive.
        unpacked_bytes: of an archive.
        pixels: of an image.
        job_seconds: that learning may take.
        waiting: predictions at a time; further ones are told to come again.
        idle_seconds: without a byte of a request that has begun.
        predict_seconds: that a request for predictions may take to arrive,
        learn_seconds: and one to learn.
    """

    predict_bytes: int = 20 * MB
    predict_files: int = 64
    learn_bytes: int = 500 * MB
    learn_files: int = 10_000
    unpacked_bytes: int = 2000 * MB
    pixels: int = 50_000_000
    job_seconds: float = 3600.0
    waiting: int = 64
    idle_seconds: float = 30.0
    predict_seconds: float = 60.0
    learn_seconds: float = 1800.0

    def bytes_of(self, path: str) -> int:
        """How large a request to this path may be."""
        return {"/predict": self.predict_bytes, "/learn": self.learn_bytes}.get(path, JSON_BYTES)

    def seconds_of(self, path: str) -> float:
        """How long it may take to arrive."""
        return self.learn_seconds if path == "/learn" else self.predict_seconds


class RefusalError(HTTPException):
    """An answer that is a refusal: a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, sentence, headers)


def refusal(error: HTTPException) -> JSONResponse:
    """As it is sent."""
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound there."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Whoever can be reached from elsewhere needs a token."""
    if token is not None and not (token.strip() and token.isascii() and token.isprintable()):
        raise EaseError("the token must be printable ASCII text: choose another (--token or EASE_TOKEN)")
    if token is None and not is_loopback(host):
        raise EaseError(
            f"host {host} can be reached from other machines: give a token (--token or EASE_TOKEN), "
            "or serve on 127.0.0.1"
        )


def without_paths(text: str, known: Mapping[str, str]) -> str:
    """A message without places of this machine. `known` is path -> what to call it; other paths lose their folders."""
    for path in sorted(known, key=len, reverse=True):
        text = text.replace(path, known[path])
    return re.sub(r"(?<![\w./])(?:[A-Za-z]:\\|/)(?:[^\s'\"/\\:,]+[/\\])+([^\s'\"/\\:,]+)", r"\1", text)


class Guard:
    """The outermost layer of the application.

    Args:
        app: what it guards.
        limits: sizes and times.
        token: which changes need it; None on a machine that serves itself alone.
        log: a line per request.
        metrics: counted there.
    """

    def __init__(
        self, app: ASGIApp, *, limits: Limits, token: str | None, log: Log, metrics: Metrics
    ) -> None:
        self.app, self.limits, self.log, self.metrics = app, limits, log, metrics
        self._token = None if token is None else _digest(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self.limits)
        started = time.perf_counter()
        try:
            await self._answer(scope, exchange)
        finally:
            self._tell(scope, exchange.status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, exchange: _Exchange) -> None:
        try:
            self._check(scope)
            await self.app(scope, exchange.receive, exchange.send)
        except HTTPException as error:
            await self._refuse(scope, exchange, error)
        except ClientDisconnect:
            exchange.status = exchange.status or 499  # nobody is there to be answered
        except Exception as error:
            self.log.failure(f"{scope['method']} {scope['path']}", error)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                full = RefusalError(507, "the server's disk is full: free some space there and send it again")
                return await self._refuse(scope, exchange, full)
            sentence = (
                "something went wrong in the server: try again, and look at its log if it happens again"
            )
            await self._refuse(scope, exchange, RefusalError(500, sentence))

    async def _refuse(self, scope: Scope, exchange: _Exchange, error: HTTPException) -> None:
        if not exchange.status:
            await refusal(error)(scope, exchange.receive, exchange.send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if scope["method"] in SAFE_METHODS:
            return
        if scope["path"] not in CHANGES_NOTHING:
            self._check_sender(headers)
        _check_kind(headers)
        declared, limit = headers.get("content-length", "0"), self.limits.bytes_of(scope["path"])
        if not declared.isdecimal() or int(declared) > limit:
            raise _too_much(limit)

    def _check_sender(self, headers: Headers) -> None:
        if self._token is not None:
            kind, _, given = headers.get("authorization", "").partition(" ")
            if kind.lower() != "bearer" or not hmac.compare_digest(_digest(given.strip()), self._token):
                sentence = "this needs the server's token: send it as 'Authorization: Bearer TOKEN'"
                raise RefusalError(401, sentence, {"WWW-Authenticate": "Bearer"})
            return
        # Without a token a page from elsewhere, open in a browser on this machine, must not get through.
        host = headers.get("host", "")
        if not is_loopback(urlsplit(f"//{host}").hostname or ""):
            raise RefusalError(
                403, "changes are taken from this machine only: open it as localhost, or serve with a token"
            )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        if (origin is not None and urlsplit(origin).netloc != host) or site not in ("same-origin", "none"):
            raise RefusalError(
                403, "another site's page may not change this model: use the server's own page"
            )

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.request(route, scope["method"] if route != "other" else "any", status)
        state = scope.get("state", {})
        self.log.event(
            "request",
            method=scope["method"],
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 1),
            generation=state.get("generation"),
            images=state.get("images", 0),
        )


class _Exchange:
    """Both directions of one request, counted."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, limits: Limits) -> None:
        self._receive, self._send = receive, send
        self._limit, self._idle = limits.bytes_of(scope["path"]), limits.idle_seconds
        self._until = time.monotonic() + limits.seconds_of(scope["path"])
        headers = Headers(scope=scope)
        self._received = 0
        self._whole = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
        self.status = 0

    async def receive(self) -> Message:
        """The next piece of the body, unless it is too much or does not come."""
        if self._whole:
            return await self._receive()
        try:
            seconds = min(self._idle, self._until - time.monotonic())
            message = await asyncio.wait_for(self._receive(), seconds)
        except asyncio.TimeoutError:
            raise RefusalError(
                408, "the upload stopped or is too slow: send it again, or less of it"
            ) from None
        self._received += len(message.get("body", b""))
        self._whole = not message.get("more_body", False)
        if self._received > self._limit:
            raise _too_much(self._limit)
        return message

    async def send(self, message: Message) -> None:
        """Pass an answer on, with the headers none may lack."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await self._send(message)


def _check_kind(headers: Headers) -> None:
    """JSON and multipart only: what an HTML form of another site could send besides is refused."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if kind not in ("application/json", "multipart/form-data") and not (empty and not kind):
        raise RefusalError(415, "send multipart/form-data or application/json")


def _too_much(limit: int) -> RefusalError:
    size = f"{limit // MB} MB" if limit >= MB else f"{limit // 1024} KB"
    return RefusalError(413, f"the request is larger than {size}: send fewer or smaller files")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
