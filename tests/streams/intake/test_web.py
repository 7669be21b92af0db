"""Addresses are fetched only where a person asked for it, and never more than that."""

from __future__ import annotations

import http.server
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ease.errors import EaseError
from ease.streams.intake import collect_images
from ease.streams.intake.sources import web
from ease.streams.intake.sources.web import fetch
from tests.streams.intake.test_shapes import CLASSES, contents, expected, picture, rows, write_csv


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        type(self).asked.append(self.path)
        redirects = {
            "/file": "file:///etc/passwd",
            "/ftp": "ftp://127.0.0.1/a",
            "/loop": "/loop",
            "/other": "/0.png",
            "/away": "http://10.1.2.3/a.png",
        }
        if self.path in redirects:
            self.send_response(302)
            self.send_header("Location", redirects[self.path])
            self.end_headers()
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(10_000))
            except OSError:
                pass
        elif self.path.startswith("/slow"):
            head = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"
            try:
                self.wfile.write(head if self.path == "/slow-head" else head + b"\r\n")
                while True:
                    self.wfile.write(b"x")
                    time.sleep(0.05)
            except OSError:
                pass
        elif self.path == "/large":
            self.send_response(200)
            self.send_header("Content-Length", str(10**12))
            self.end_headers()
        elif self.path.endswith(".png"):
            content = picture(int(self.path[1:-4]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        else:
            self.send_error(404)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Handler.asked = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_addresses_in_a_table_are_fetched_once_where_that_is_allowed(site: str, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "t.csv", rows(f"{site}/"), ("url", "label"))
    with pytest.raises(EaseError, match=r"row 2 of t\.csv.*is an address: fetch images with --allow-urls"):
        collect_images(table)
    with pytest.raises(EaseError, match=r"127\.0\.0\.1 is in a private network"):
        collect_images(table, allow_urls=True)
    assert Handler.asked == []
    assert contents(collect_images(table, allow_urls="private")) == expected()
    assert sorted(Handler.asked) == sorted(f"/{seed}.png" for seeds in CLASSES.values() for seed in seeds)


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/file", "not an http or https address"),
        ("/ftp", "not an http or https address"),
        ("/loop", "more than 5 redirects"),
        ("/none", "the server answers 404"),
        ("/large", "more than 50 MB"),
        ("/endless", "more than 50 MB"),
    ],
)
def test_what_is_no_image_at_an_address_is_one_error(site: str, path: str, problem: str) -> None:
    with pytest.raises(EaseError, match=problem):
        fetch(site + path, private=True)


def test_redirects_are_followed_and_checked_again(site: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fetch(f"{site}/other", private=True) == picture(0)
    # This machine counts as public here, so that only the address it redirects to is private.
    monkeypatch.setattr(web, "_is_public", lambda address: address == "127.0.0.1")
    with pytest.raises(EaseError, match=r"10\.1\.2\.3 is in a private network"):
        fetch(f"{site}/away")


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "0.0.0.0", "100.64.0.1", "224.0.0.1",
     "::1", "fe80::1%eth0", "fd00::1", "::ffff:10.0.0.1", "2002:0a00:0001::1", "::"],
)  # fmt: skip
def test_private_addresses_are_not_public(address: str) -> None:
    assert not web._is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946"])
def test_public_addresses_are_public(address: str) -> None:
    assert web._is_public(address)


@pytest.mark.parametrize(
    "url",
    ["file:///etc/passwd", "http://", "http://user:word@host/a", "http://host/a b", "http://host/\r\nX: 1",
     "http://host:99999/", "http://ho\u0455t/", "http://[::1/", "gopher://host/"],
)  # fmt: skip
def test_strange_addresses_are_refused_before_anything_is_asked(url: str) -> None:
    with pytest.raises(EaseError, match="cannot be fetched"):
        fetch(url)


def test_a_server_that_is_not_there_is_one_line() -> None:
    with pytest.raises(EaseError, match=r"cannot be fetched \(.*\): check the address"):
        fetch("http://127.0.0.1:1/a.png", private=True)


@pytest.mark.parametrize("path", ["/0.png", "/slow", "/slow-head"])
def test_a_slow_server_is_given_up(site: str, path: str) -> None:
    """Also one that sends a byte now and then."""
    began = time.monotonic()
    with pytest.raises(EaseError, match=r"cannot be fetched \(it takes too long\): check the address"):
        fetch(site + path, private=True, seconds=0 if path == "/0.png" else 0.3)
    assert time.monotonic() - began < 30
