"""Connections as real sockets: clients that send slowly, stop, do not read, or are still sending when refused."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
import uvicorn

from ease.app.server import connections, exchange
from ease.app.server.limits import Limits
from ease.app.server.run import make_server
from tests.app.serving import GOOD, World, serving

FORM = "Content-Type: multipart/form-data; boundary=b\r\n"
BODY = (
    b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n' + GOOD + b"\r\n--b--\r\n"
)
WHILE = 20.0
"""Seconds after which a test gives up; what is tested takes fractions of one."""


class Listening:
    """A server behind a real socket."""

    def __init__(self, world: World, server: uvicorn.Server, port: int) -> None:
        self.world, self.server, self.port = world, server, port

    @property
    def open(self) -> int:
        """How many connections it holds."""
        return len(self.server.server_state.connections)

    def connect(self, text: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=WHILE)
        client.sendall(text)
        return client

    def get(self, path: str = "/healthz") -> int:
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=WHILE).status_code

    def predict(self) -> int:
        files = [("image", ("a.png", GOOD))]
        return httpx.post(f"http://127.0.0.1:{self.port}/predict", files=files, timeout=WHILE).status_code


@contextmanager
def listening(model: Path, **limits: Any) -> Iterator[Listening]:
    with serving(model, limits=Limits(**limits)) as world, socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        server = make_server(world.service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            until(lambda: server.started)
            yield Listening(world, server, bound.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


def until(true: Callable[[], object]) -> None:
    for _ in range(int(WHILE / 0.01)):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError("it never became true")


def head(path: str, length: int, *more: str) -> bytes:
    lines = "".join(f"{line}\r\n" for line in more)
    return (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{FORM}Content-Length: {length}\r\n{lines}\r\n".encode()
    )


def everything(client: socket.socket) -> bytes:
    """What comes until the server closes the connection; b"" also if it broke it."""
    found = b""
    try:
        while piece := client.recv(65536):
            found += piece
    except ConnectionResetError:
        pass
    return found


def is_broken_off(client: socket.socket, pieces: list[bytes], pause: float) -> bool:
    """Send piece by piece; whether the connection broke before the last one."""
    try:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(pause)
    except ConnectionError:
        return True
    return False


# --- heads ----------------------------------------------------------------------------------------


def test_half_a_head_is_not_waited_for(model: Path) -> None:
    with listening(model, head_seconds=0.2) as server:
        first = server.connect()
        second = server.connect(b"GET /healthz HTTP/1.1\r\nHost: 12")
        third = server.connect(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answered = b""
        while b"ok" not in answered:
            answered += third.recv(65536)
        third.sendall(b"GET /heal")  # of the next request on the same connection
        for client in (first, second, third):
            assert everything(client) == b""
            client.close()
        until(lambda: server.open == 0)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for(model: Path) -> None:
    with listening(model, head_seconds=0.2) as server, closing(server.connect()) as client:
        text = b"GET /healthz HTTP/1.1\r\nX: " + b"a" * 1000
        assert is_broken_off(client, [bytes([letter]) for letter in text], 0.02)
        assert server.get() == 200


def test_there_are_so_many_connections_and_no_more_and_newcomers_are_answered(model: Path) -> None:
    with listening(model, connections=8) as server:
        waiting = [server.connect(b"GET /healthz HTTP/1.1\r\nHost: 12") for _ in range(30)]
        assert server.get() == 200
        assert server.open <= 8
        assert server.predict() == 200
        for client in waiting:
            client.close()


@pytest.mark.parametrize(
    "request_line", ["GET /healthz", "POST /predict", "POST /nowhere"], ids=["read", "refused", "unknown"]
)
def test_who_was_answered_and_does_not_finish_the_body_makes_room_for_newcomers(
    model: Path, request_line: str
) -> None:
    with listening(model, connections=8) as server:
        kept = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WHILE)
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
        own = kept.sock
        lines = "Host: 127.0.0.1\r\nOrigin: http://elsewhere\r\nContent-Length: 1000"
        waiting = []
        for _ in range(20):
            client = server.connect(f"{request_line} HTTP/1.1\r\n{lines}\r\n\r\nx".encode())
            assert client.recv(65536).startswith(b"HTTP/1.1 ")
            waiting.append(client)
        assert server.open <= 8
        for _ in range(3):
            assert server.predict() == 200
        kept.request("GET", "/healthz")
        assert kept.getresponse().read()
        assert kept.sock is own  # they went before a connection that only waits for its next request
        kept.close()
        for client in waiting:
            client.close()


def test_a_system_that_allows_too_few_open_files_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connections.shortage() is None
    monkeypatch.setattr(connections, "_file_handles", lambda: 64)
    assert "ulimit -n" in str(connections.shortage())


def test_a_connection_in_use_is_kept(model: Path) -> None:
    with listening(model, head_seconds=0.1) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WHILE)
        connection.connect()
        own = connection.sock
        for _ in range(20):  # for longer than a head may take
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
            time.sleep(0.02)
        assert connection.sock is own
        connection.close()


# --- bodies ---------------------------------------------------------------------------------------


def test_a_body_on_its_way_takes_no_place_among_the_predictions(model: Path) -> None:
    with listening(model, waiting=1) as server:
        slow = [server.connect(head("/predict", len(BODY)) + BODY[:50]) for _ in range(3)]
        until(lambda: len(list(server.world.service.uploads.iterdir())) == 3)
        assert server.world.service.model.waiting == 0
        assert server.predict() == 200
        for client in slow:
            client.sendall(BODY[50:])
            assert client.recv(65536).startswith(b"HTTP/1.1 200")
            client.close()


def test_the_slowest_body_makes_room_for_another(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "GRACE_PERIOD", 0.05)
    with listening(model, receiving=2) as server:
        places = server.world.service.uploads
        slow = server.connect(head("/predict", 100_000) + BODY[:10])
        fast = server.connect(head("/predict", 100_000) + BODY[:-6] + bytes(50_000))
        until(lambda: len(list(places.iterdir())) == 2)
        time.sleep(0.1)
        assert server.predict() == 200
        answer = everything(slow)
        assert answer.startswith(b"HTTP/1.1 408")
        assert b"too slow" in answer
        assert len(list(places.iterdir())) == 1
        slow.close()
        fast.close()
        until(lambda: not list(places.iterdir()))


def test_too_many_bodies_at_the_same_moment_are_told_to_come_again(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "GRACE_PERIOD", 1000.0)
    with listening(model, receiving=1) as server:
        first = server.connect(head("/predict", len(BODY)) + BODY[:50])
        until(lambda: list(server.world.service.uploads.iterdir()))
        assert server.predict() == 503
        first.sendall(BODY[50:])
        assert first.recv(65536).startswith(b"HTTP/1.1 200")
        first.close()


@pytest.mark.parametrize("path", ["/predict", "/learn"])
def test_a_body_that_comes_byte_by_byte_is_not_waited_for(model: Path, path: str) -> None:
    with listening(model, slow_seconds=0.2) as server, closing(server.connect()) as client:
        client.sendall(head(path, len(BODY)))
        is_broken_off(client, [bytes([letter]) for letter in BODY[:100]], 0.02)
        found = everything(client)
        assert found == b"" or found.startswith(b"HTTP/1.1 408")
        until(lambda: not list(server.world.service.uploads.iterdir()))
        until(lambda: not server.world.service.jobs.active)
        statuses = [e["status"] for e in server.world.events() if e.get("path") == path]
        assert statuses == [408]


def test_a_body_has_more_time_the_more_of_it_has_come() -> None:
    limits = Limits()
    assert limits.seconds_of("/learn", 0) == limits.seconds_of("/predict", 0) == 20
    assert limits.seconds_of("/learn", 16_000_000) == 1020
    assert limits.seconds_of("/learn", 500_000_000) == 1800
    assert limits.seconds_of("/predict", 20_000_000) == 60


# --- answers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [(), ("Connection: close",)], ids=["keep-alive", "close"])
def test_who_is_still_sending_sees_the_refusal_not_a_broken_connection(
    model: Path, more: tuple[str, ...]
) -> None:
    with listening(model, predict_bytes=1000) as server:
        for path, status in (("/predict", b"413"), ("/nowhere", b"413"), ("/classes/0/0", b"413")):
            with closing(server.connect(head(path, 8_000_000, *more))) as client:
                for _ in range(80):
                    client.sendall(bytes(100_000))
                assert client.recv(65536).split()[1] == status


def test_a_refused_body_is_not_read_for_ever(model: Path) -> None:
    with listening(model, linger_seconds=0.2) as server:
        with closing(server.connect(head("/predict", 10**12))) as client:
            assert is_broken_off(client, [bytes(1000)] * 5000, 0.002)
        until(lambda: server.open == 0)


def test_an_answer_that_nobody_reads_is_given_up(model: Path) -> None:
    with listening(model, idle_seconds=0.2, head_seconds=0.2) as server:
        with closing(socket.socket()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(WHILE)
            client.connect(("127.0.0.1", server.port))
            request = b"GET /openapi.json HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            client.settimeout(0.5)
            try:
                for _ in range(2000):
                    client.sendall(request * 10)
            except OSError:  # the server does not read on, or has broken it off
                pass
            until(lambda: server.open == 0)
        assert server.get() == 200


def test_clients_close_idle_connections_before_the_server_does(model: Path) -> None:
    """If the server closed first, a client could send its next request on a connection that is just being closed."""
    with listening(model) as server:
        pool = httpx.Limits().keepalive_expiry
        assert pool is not None
        assert server.server.config.timeout_keep_alive > 60 > pool


@pytest.mark.parametrize("chunk", [b"zz\r\n", b"-5\r\nhello", b"5\r\nhello0\r\n\r\n"])
def test_a_broken_chunk_is_refused_without_a_traceback(model: Path, chunk: bytes) -> None:
    begun = b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    failures: list[str] = []
    with (
        listening(model) as server,
        patch("asyncio.base_events.logger.error", lambda line, *_, **__: failures.append(line)),
        closing(server.connect(begun)) as client,
    ):
        client.recv(65536)  # the refusal of the method is sent while the body is still expected
        client.sendall(chunk)
        until(lambda: server.open == 0)
        until(lambda: server.world.events()[-1]["path"] == "/healthz")
        assert "Traceback" not in server.world.lines.getvalue()
    assert failures == []
