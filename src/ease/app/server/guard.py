"""Checks that every request passes: access, sizes and headers; and what every answer must or must not contain."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import re
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

from h11 import LocalProtocolError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from ease.app.server.exchange import Arrivals, Exchange, known_method, route_path, too_much
from ease.app.server.limits import MB, Limits
from ease.app.server.refusals import RefusalError, refusal, refusal_of_disk, stopping
from ease.app.server.telemetry import Log, Metrics
from ease.documents import whole_number
from ease.errors import EaseError

__all__ = ["MB", "Guard", "Limits", "RefusalError", "check_token", "is_loopback", "refusal", "without_paths"]

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
CHANGES_NOTHING = {"/predict", "/explain", "/check"}
"""POST requests that do not change the model. All others that are not read-only are taken for changes."""

PRIVATE = "/inbox"
"""What is below this address are photos of people: where the server has a token, reading them needs it, too."""

_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\s\[\]:/?#@\\]+)(:[0-9]{0,5})?")
"""A host name or address, with an optional port."""


def is_loopback(host: str) -> bool:
    """Whether a server bound to this host can be reached from this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Refuse a host that other machines can reach if there is no token."""
    if token is not None and not (token.strip() and token.isascii() and token.isprintable()):
        raise EaseError("the token must be printable ASCII text: choose another (--token or EASE_TOKEN)")
    if token is None and not is_loopback(host):
        raise EaseError(
            f"host {host} can be reached from other machines: give a token (--token or EASE_TOKEN), "
            "or serve on 127.0.0.1"
        )


def without_paths(text: str, known: Mapping[str, str]) -> str:
    """A message without paths of this machine. `known` is path -> name to show; other paths lose their folders."""
    for path in sorted(known, key=len, reverse=True):
        text = text.replace(path, known[path])
    return re.sub(r"(?<![\w./])(?:[A-Za-z]:\\|/)(?:[^\s'\"/\\:,]+[/\\])+([^\s'\"/\\:,]+)", r"\1", text)


class Guard:
    """The outermost layer of the application.

    Args:
        app: The application behind it.
        limits: Limits of sizes and times.
        host: Address that the server listens on.
        token: Token that changes need; None if only this machine can reach the server.
        log: Where requests are logged.
        metrics: Where requests are counted.
        arrivals: Requests whose bodies are being received, of other models too; its own if None.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: Limits,
        host: str,
        token: str | None,
        log: Log,
        metrics: Metrics,
        arrivals: Arrivals | None = None,
    ) -> None:
        self.app, self.limits, self.log, self.metrics = app, limits, log, metrics
        self._is_local = is_loopback(host)
        self._token = None if token is None else _digest(token)
        self._arrivals = arrivals or Arrivals(limits.receiving)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, self.limits, self._arrivals)
        started = time.perf_counter()
        try:
            await self._answer(scope, exchange)
        finally:
            exchange.close()
            self._report(scope, exchange.status, time.perf_counter() - started)

    async def _answer(self, scope: Scope, exchange: Exchange) -> None:
        try:
            self._check(scope)
            await self.app(scope, exchange.receive, exchange.send)
        except HTTPException as error:
            await self._refuse(scope, exchange, error)
        except (ClientDisconnect, LocalProtocolError):
            # The client has left, or broke the protocol in the middle of its body: uvicorn has refused that already.
            exchange.status = exchange.status or 499
        except asyncio.CancelledError:
            await self._refuse(scope, exchange, stopping())
        except Exception as error:
            self.log.failure(f"{known_method(scope)} {scope['path']}", error)
            sentence = "something went wrong in the server: try again, and see its log if it happens again"
            await self._refuse(scope, exchange, refusal_of_disk(error) or RefusalError(500, sentence))

    async def _refuse(self, scope: Scope, exchange: Exchange, error: HTTPException) -> None:
        if not exchange.status:
            await refusal(error)(scope, exchange.receive, exchange.send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        host, origin = _authority(headers.get("host", ""), "Host"), _origin(headers.get("origin"))
        self._check_host(host, headers)
        self._check_access(scope["method"] in SAFE_METHODS, route_path(scope), host, origin, headers)
        declared = whole_number(headers.get("content-length", "0"))
        limit = self.limits.bytes_of(route_path(scope))
        if declared is None or declared > limit:
            raise too_much(limit)

    def _check_access(self, reads: bool, path: str, host: str, origin: str | None, headers: Headers) -> None:
        if reads and not _is_private(path):
            return
        if self._token is not None:
            if path not in CHANGES_NOTHING and not self._has_token(headers):
                sentence = "this needs the server's token: send it as 'Authorization: Bearer TOKEN'"
                raise RefusalError(401, sentence, {"WWW-Authenticate": "Bearer"})
        elif not reads:
            _check_page(host, origin, headers)
        if not reads:
            _check_kind(headers)

    def _check_host(self, host: str, headers: Headers) -> None:
        """Refuse other host names than this machine's if only this machine can reach the server, also for reading.

        To a browser, a foreign page whose host name was made to point to this machine (DNS rebinding) has the same
        origin as the server: it could read every answer, and only the name in the request reveals it. A server that
        other machines can reach does not know its own names, so that any is accepted.
        """
        found = _AUTHORITY.fullmatch(host)
        name = found[1] if found else ""
        if self._is_local and not is_loopback(name) and not self._has_token(headers):
            raise RefusalError(
                403, "this server answers requests to localhost only: open it as localhost, or send its token"
            )

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        known = self._token
        return (
            known is not None
            and kind.lower() == "bearer"
            and hmac.compare_digest(_digest(given.strip()), known)
        )

    def _report(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        method = known_method(scope)
        self.metrics.request(route, method if route != "other" else "any", status)
        state = scope.get("state", {})
        self.log.event(
            "request",
            method=method,
            path=scope["path"],
            status=status,
            ms=round(seconds * 1000, 1),
            generation=state.get("generation"),
            images=state.get("images", 0),
        )


def _is_private(path: str) -> bool:
    return path == PRIVATE or path.startswith(f"{PRIVATE}/")


def _authority(given: str, header: str) -> str:
    """Check a host with an optional port, as given by a header."""
    if given and not _AUTHORITY.fullmatch(given):
        raise RefusalError(400, f"the {header} header is malformed: send a host with an optional port")
    return given


def _origin(given: str | None) -> str | None:
    """The host and port of the requesting page; "" if it has none."""
    if given is None:
        return None
    try:
        return _authority(urlsplit(given).netloc, "Origin")
    except ValueError as error:
        raise RefusalError(400, "the Origin header is malformed: send the origin of a page") from error


def _check_page(host: str, origin: str | None, headers: Headers) -> None:
    """Without a token, refuse pages of other sites that are open in a browser on this machine."""
    site = headers.get("sec-fetch-site", "none")
    if (origin is not None and origin != host) or site not in ("same-origin", "none"):
        raise RefusalError(403, "pages of other sites may not use this model: use the server's own page")


def _check_kind(headers: Headers) -> None:
    """Accept JSON and multipart only: an HTML form of another site can send other types."""
    kind = headers.get("content-type", "").split(";")[0].strip().lower()
    empty = headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers
    if kind not in ("application/json", "multipart/form-data") and not (empty and not kind):
        raise RefusalError(415, "send multipart/form-data or application/json")


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
