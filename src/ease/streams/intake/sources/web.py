"""Images at http and https addresses, which are fetched only where a person has asked for it.

A name is resolved once, each of its addresses is checked, and the connection is made to a checked address: a name
server that answers differently the second time gains nothing. Proxies of the environment are not used.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import ipaddress
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit

from ease.documents import reason_of
from ease.errors import EaseError
from ease.streams.intake.limits import MB, too_large
from ease.streams.intake.names import display_name
from ease.streams.intake.stored import StoredImage

MAX_BYTES = 50 * MB
"""Size of an image at an address."""
MAX_SECONDS = 60.0
"""Time for one image, redirects included."""
WAIT_SECONDS = 15.0
"""Time without a byte after which a server is given up."""
MAX_REDIRECTS = 5
_PIECE = 64 * 1024
_LATE = "it takes too long"
_REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class WebImage(StoredImage):
    """An image at an address.

    Attributes:
        url: The address.
        private: Whether addresses of private networks and of this machine are allowed.
        keep: Whether the image is kept in a temporary folder until the process ends, and fetched only once.
    """

    url: str
    private: bool = False
    keep: bool = True

    def read(self, name: str) -> bytes:
        """See `StoredImage`."""
        if not self.keep:
            return fetch(self.url, private=self.private)
        path = Path(_folder().name) / hashlib.sha256(self.url.encode()).hexdigest()
        if not path.exists():
            content = fetch(self.url, private=self.private)
            fresh = path.with_suffix(f".{time.monotonic_ns()}")
            fresh.write_bytes(content)
            fresh.replace(path)
        return path.read_bytes()


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="ease-urls-")


def fetch(url: str, *, private: bool = False, limit: int = MAX_BYTES, seconds: float = MAX_SECONDS) -> bytes:
    """Fetch what lies at an address.

    Args:
        url: An http or https address. Redirects are followed to such addresses only.
        private: Whether private networks and this machine may be asked.
        limit: The largest answer, in bytes.
        seconds: Time for all of it.

    Raises:
        EaseError: There is no such answer; the message names the address.
    """
    until, first = time.monotonic() + seconds, url
    for _ in range(MAX_REDIRECTS + 1):
        try:
            answer = _ask(url, private, limit, until)
        except EaseError:
            raise
        except (OSError, http.client.HTTPException, ValueError) as error:
            late = time.monotonic() >= until
            reason = _LATE if late else reason_of(error, "no answer that can be used")
            raise _failed(first, reason) from error
        if isinstance(answer, bytes):
            return answer
        url = answer
    raise _failed(first, f"more than {MAX_REDIRECTS} redirects")


def _ask(url: str, private: bool, limit: int, until: float) -> bytes | str:
    """The content at an address, or the address to which it redirects."""
    parts = host_of(url)
    connection = _connection(parts, _checked_address(parts, url, private), until)
    with contextlib.closing(connection), _cut_off(connection.sock, until):
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "ease"})
        answer = connection.getresponse()
        if answer.status in _REDIRECTS and (to := answer.getheader("Location")):
            return urljoin(url, to)
        if answer.status != 200:
            raise _failed(url, f"the server answers {answer.status}")
        if int(answer.getheader("Content-Length") or 0) > limit:
            raise too_large(display_name(url), f"has more than {limit // MB} MB")
        pieces, size = [], 0
        while piece := answer.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise too_large(display_name(url), f"has more than {limit // MB} MB")
        if time.monotonic() >= until:
            raise _failed(url, _LATE)
        return b"".join(pieces)


@contextlib.contextmanager
def _cut_off(channel: socket.socket, until: float) -> Iterator[None]:
    """End a connection when its time is over, also while it waits: a server may send one byte at a time."""

    def cut() -> None:
        with contextlib.suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, until - time.monotonic()), cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def host_of(url: str) -> SplitResult:
    """The parts of an http or https address; anything else is an error."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise _failed(url, "it is not an address") from error
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise _failed(url, "it is not an http or https address")
    if parts.username or parts.password or not url.isascii() or any(c <= " " for c in url):
        raise _failed(url, "it has a password, a space or other signs that an address cannot have")
    return parts


def _checked_address(parts: SplitResult, url: str, private: bool) -> tuple[str, int]:
    """An address of the host that may be asked, and the port."""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = [str(each[4][0]) for each in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)]
    for address in found:
        if not private and not _is_public(address):
            raise _failed(
                url, f"{address} is in a private network; --allow-private-urls allows that", "check it"
            )
    return found[0], port


def _is_public(address: str) -> bool:
    found = ipaddress.ip_address(address.partition("%")[0])
    inner = getattr(found, "ipv4_mapped", None) or getattr(found, "sixtofour", None) or found
    return inner.is_global and not inner.is_multicast and found.is_global


def _connection(parts: SplitResult, address: tuple[str, int], until: float) -> http.client.HTTPConnection:
    """A connection to a checked address, under the name of the host."""
    left = until - time.monotonic()
    if left <= 0:
        raise _failed(parts.geturl(), _LATE)
    wait, host = min(WAIT_SECONDS, left), str(parts.hostname)
    channel: socket.socket = socket.create_connection(address, timeout=wait)
    if parts.scheme == "https":
        try:
            channel = ssl.create_default_context().wrap_socket(channel, server_hostname=host)
        except BaseException:
            channel.close()
            raise
    connection = http.client.HTTPConnection(host, address[1], timeout=wait)
    connection.sock = channel
    return connection


def _failed(url: str, reason: str, remedy: str = "check the address or remove it") -> EaseError:
    return EaseError(f"image '{display_name(url)}' cannot be fetched ({reason}): {remedy}")
