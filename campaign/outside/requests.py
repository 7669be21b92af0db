# ruff: noqa: E501
"""Requests of which every part may be wrong; server.py sends them."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from campaign.outside.archives import class_zips
from campaign.outside.fixtures import picture
from campaign.outside.images import FORMATS, bombs, encoded

if TYPE_CHECKING:
    from campaign.outside.server import Server

VALUES: list = [0, 1, -1, 2**63, 10**400, 1e308, 0.5, "", "x", "\x00", "\x1b[31m", "\ud800", "\u202e", "a" * 5000, "a" * 200000, [], {}, None, True, ["x"], {"name": "x"}, " ", "red", "../x", "/", "é", "e\u0301"]  # fmt: skip


def request(
    method: str | bytes,
    path: str | bytes,
    body: bytes = b"",
    kind: str | bytes | None = None,
    head: list[bytes] | None = None,
    length: bytes | None = b"auto",
    host: bytes | None = b"localhost",
) -> bytes:
    """A request of which every part may be wrong."""
    lines = [_b(method) + b" " + _b(path) + b" HTTP/1.1"]
    if host is not None:
        lines.append(b"Host: " + host)
    lines += [*(head or []), b"Connection: close"]
    if kind is not None:
        lines.append(b"Content-Type: " + _b(kind))
    if length == b"auto":
        length = str(len(body)).encode() if body or _b(method) in (b"POST", b"PATCH", b"PUT") else None
    if length is not None:
        lines.append(b"Content-Length: " + length)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _b(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")


def form(
    *fields: tuple[str | bytes, str | bytes | None, bytes], boundary: bytes = b"b0", end: bool = True
) -> bytes:
    """A multipart body: name, file name or none, content."""
    parts = b""
    for name, file, content in fields:
        parts += b"--" + boundary + b'\r\nContent-Disposition: form-data; name="' + _b(name) + b'"'
        if file is not None:
            parts += b'; filename="' + _b(file) + b'"'
        parts += b"\r\n\r\n" + content + b"\r\n"
    return parts + (b"--" + boundary + b"--\r\n" if end else b"")


KIND = "multipart/form-data; boundary=b0"
Item = tuple[str, Callable]


def _one(*pieces: bytes, **more) -> Callable[[Server], bytes]:
    return lambda server: server.talk(*pieces, **more)


def requests(seed: int) -> Iterator[Item]:
    """All requests but those that are made at the same time."""
    rng = random.Random(f"{seed}-http")
    buffer = io.BytesIO()
    picture("red", 50).save(buffer, "PNG")
    good = buffer.getvalue()
    routes = ["/", "/healthz", "/readyz", "/classes", "/thumbnails/0", "/metrics", "/predict", "/learn", "/jobs", "/jobs/x", "/jobs/x/cancel", "/classes/0", "/rollback", "/docs", "/openapi.json", "/assets/app.js", "/assets/", "/nothing"]  # fmt: skip
    for route in routes:
        for method in (
            "GET",
            "HEAD",
            "POST",
            "PUT",
            "PATCH",
            "DELETE",
            "OPTIONS",
            "TRACE",
            "CONNECT",
            "BREW",
            "get",
            "",
            "G" * 5000,
            "P\x01T",
        ):
            if (method, route) == ("DELETE", "/classes/0"):
                continue
            yield f"{method[:8]} {route}", _one(request(method, route))
        for kind, body in (("application/json", b"{}"), ("text/plain", b"x"), (KIND, form(("image", "a.png", good)) if route != "/learn" else b"--b0--\r\n"), ("application/x-www-form-urlencoded", b"name=x"), ("", b"x"), ("multipart/form-data", b"x"), ("\xff", b"\xff"), ("application/json; charset=utf-16", "{}".encode("utf-16"))):  # fmt: skip
            yield f"POST {route} as {kind[:20]}", _one(request("POST", route, body, kind))
    for route in ("/assets/", "/thumbnails/", "/jobs/", "/classes/", "/"):
        for name in ("../../etc/passwd", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/x", "....//x", "%00", "a%00.js", "/etc/passwd", "//etc/passwd", "\\..\\x", "%5c..%5cx", "-1", "999999999999999999999", "1e3", "1.0", "0x0", "٣", "%ff%fe", "%", "%zz", "x" * 9000, "null", "0/", "0?x=1", "0#x", ";", "app.js/", "app.js%00", "APP.JS", ".", "..", "%c0%ae%c0%ae/", "0%20", "+0", "00", "💥", "nul", "../server.py", "app.js?../..", "~root"):  # fmt: skip
            yield f"GET {route}{name[:24]}", _one(request("GET", route.encode() + name.encode()))
            if route in ("/jobs/", "/classes/"):
                yield (
                    f"cancel/patch {route}{name[:24]}",
                    _one(
                        request(
                            "POST" if route == "/jobs/" else "PATCH",
                            route.encode() + name.encode() + (b"/cancel" if route == "/jobs/" else b""),
                            b'{"name": "zz"}',
                            "application/json",
                        )
                    ),
                )
    for route, method, key in (
        ("/rollback", "POST", "generation"),
        ("/classes/0", "PATCH", "name"),
        ("/classes/999", "PATCH", "name"),
    ):
        for value in VALUES:
            for body in ({key: value}, {key: value, "x": 1}, {"x": value}, [value], value):
                if (method, value, isinstance(body, dict) and key in body) == ("POST", 1, True):
                    continue
                if (
                    route == "/classes/0"
                    and isinstance(body, dict)
                    and isinstance(body.get("name"), str)
                    and body["name"] not in ("", " ", "red", "\x00", "\x1b[31m", "\u202e")
                ):
                    continue
                yield (
                    f"{method} {route} {json.dumps(body)[:40]}",
                    _one(request(method, route, json.dumps(body).encode(), "application/json")),
                )
        for raw in (b"", b"{", b"[" * 100000, b'{"a":' * 20000, b"NaN", b'{"%s": NaN}' % key.encode(), b'{"%s": 1e999}' % key.encode(), b'{"%s": 99999999999999999999999}' % key.encode(), b"\xff\xfe", b"\xef\xbb\xbf{}", b'{"%s": "\\ud800"}' % key.encode(), b"9" * 10000, b" " * 100000, b'{"x": 1' + b', "x": 1' * 5000 + b"}", b"'x'", b"<xml/>"):  # fmt: skip
            for kind in ("application/json", "text/plain", None):
                yield f"{method} {route} raw {raw[:14]!r} {kind}", _one(request(method, route, raw, kind))
    for top in (
        "0",
        "-1",
        "1e9",
        "99999999999999999999",
        "x",
        "",
        "1&top=2",
        "%00",
        "nan",
        "1.5",
        "9" * 5000,
        "true",
        "[]",
        "1;2",
        "+1",
        "%F0%9F%92%A5",
    ):
        yield (
            f"top {top[:16]}",
            _one(request("POST", f"/predict?top={top}", form(("image", "a.png", good)), KIND)),
        )
    names = [
        "image",
        "IMAGE",
        "images",
        "",
        "name",
        "archive",
        "extend",
        "image[]",
        "\xff",
        "x" * 5000,
        'a"b',
        "a\\b",
        "a\r\nX: y",
        "image\0",
    ]
    for route in ("/predict", "/learn"):
        for name in names:
            for file in (
                None,
                "",
                "a.png",
                "../../x.png",
                "cat/a.png",
                "\x00.png",
                "a" * 5000 + ".png",
                "\u202e.png",
                "a.svg",
                "/abs.png",
                "C:\\x.png",
                "é.png",
            ):
                if rng.random() < 0.45:
                    content = (
                        good if route == "/predict" else rng.choice((b"", b"no image", b"\x89PNG\r\n\x1a\n"))
                    )
                    yield (
                        f"{route} field {name[:10]!r} file {str(file)[:16]!r}",
                        _one(request("POST", route, form((name, file, content)), KIND)),
                    )
        for body in (b"", b"--b0", b"--b0--", b"--b0\r\n", b"--b0\r\n\r\n", b"--b0\r\n\r\nx\r\n--b0--", b"--b0\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b0--\r\n", b"--b1\r\n\r\nx\r\n--b1--\r\n", form(("image", "a.png", good), end=False), form(("image", "a.png", good)) * 2, b"--b0\r\n" + b"X: y\r\n" * 20000 + b"\r\nx\r\n--b0--\r\n", b"--b0\r\nContent-Disposition: " + b"x" * 200000 + b"\r\n\r\n", b"\r\n" * 50000 + form(("image", "a.png", b"")), b"--b0\r\nContent-Disposition: form-data; name=image; filename*=utf-8''%ff%00\r\n\r\nx\r\n--b0--\r\n", b"--b0\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a.png\"\r\nContent-Transfer-Encoding: base64\r\n\r\nAAAA\r\n--b0--\r\n", b"--b0\nContent-Disposition: form-data; name=\"image\"\n\nx\n--b0--\n", form(*[("image", f"{i}.png", b"") for i in range(70)]), form(*[("x", None, b"y") for _ in range(12000)]), form(("image", "a.png", b"--b0" * 1000)), form(("name", None, b"x" * 3_000_000))):  # fmt: skip
            yield f"{route} body {body[:20]!r} of {len(body)}", _one(request("POST", route, body, KIND))
        for kind in ("multipart/form-data; boundary=", "multipart/form-data; boundary=" + "x" * 5000, 'multipart/form-data; boundary="b0', "multipart/form-data; boundary=b0; boundary=b1", "multipart/form-data; Boundary=b0", "multipart/mixed; boundary=b0", "multipart/form-data; boundary=\xff", "multipart/form-data, boundary=b0", "MULTIPART/FORM-DATA; BOUNDARY=b0", "multipart/form-data; boundary=b0\x00"):  # fmt: skip
            yield (
                f"{route} kind {kind[:40]}",
                _one(
                    request(
                        "POST", route, form(("image", "a.png", good if route == "/predict" else b"")), kind
                    )
                ),
            )
        yield (
            f"{route} two kinds",
            _one(
                request(
                    "POST",
                    route,
                    form(("image", "a.png", good if route == "/predict" else b"")),
                    KIND,
                    [b"Content-Type: text/plain"],
                )
            ),
        )
    for length in (
        b"-1",
        b"0",
        b"1",
        b"+5",
        b"1e3",
        b"x",
        b"",
        b"99999999999999999999",
        str(2**63).encode(),
        b"21000000",
        b"600000000",
        b"5, 5",
        b"0x10",
        b" 5",
        b"5 5",
        b"\xd9\xa3",
    ):
        for route in ("/predict", "/learn", "/rollback", "/classes/0", "/healthz"):
            yield (
                f"length {length[:12]!r} {route}",
                _one(request("POST", route, b"hello", KIND, length=length), wait=25),
            )
    for chunks in (b"5\r\nhello\r\n0\r\n\r\n", b"5\r\nhel", b"zz\r\n", b"-5\r\nhello", b"ffffffffffffffff\r\nx", b"5;ext=" + b"x" * 100000 + b"\r\nhello\r\n0\r\n\r\n", b"5\r\nhello0\r\n\r\n", b"0\r\nTrailer: x\r\n\r\n", b"1\r\na\r\n" * 20000 + b"0\r\n\r\n", b"5\nhello\n0\n\n", b"0000000000000005\r\nhello\r\n0\r\n\r\n", b""):  # fmt: skip
        for route in ("/predict", "/learn", "/rollback", "/healthz"):
            yield (
                f"chunks {chunks[:14]!r} {route}",
                _one(
                    request("POST", route, b"", KIND, [b"Transfer-Encoding: chunked"], None) + chunks, wait=25
                ),
            )
    yield (
        "length and chunks",
        _one(
            request("POST", "/predict", b"0\r\n\r\n", KIND, [b"Transfer-Encoding: chunked"], b"100"), wait=25
        ),
    )
    for coding in (b"gzip", b"chunked, chunked", b"chunked, gzip", b"identity", b"\x0bchunked", b"xchunked"):
        yield (
            f"coding {coding!r}",
            _one(
                request("POST", "/predict", b"0\r\n\r\n", KIND, [b"Transfer-Encoding: " + coding], None),
                wait=25,
            ),
        )
    hosts = [None, b"", b"evil.example", b"localhost:99999", b"localhost@evil", b"127.0.0.1.evil", b"[::1]", b"[::1", b"LOCALHOST", b"localhost.", b"127.1", b"0", b"0.0.0.0", b"\xff", b"x" * 9000, b"localhost, evil", b"127.0.0.1:abc", b"[::ffff:127.0.0.1]", b"2130706433", b"localhost\x00", b"a b", b"localhost/x", b"127.0.0.256"]  # fmt: skip
    for host in hosts:
        yield f"host {str(host)[:20]}", _one(request("GET", "/classes", host=host))
        yield (
            f"host {str(host)[:20]} predict",
            _one(request("POST", "/predict", form(("image", "a.png", good)), KIND, host=host)),
        )
    yield "two hosts", _one(request("GET", "/classes", head=[b"Host: evil.example"]))
    for origin in (b"null", b"http://evil.example", b"http://localhost", b"http://localhost:1", b"file://", b"", b"\xff", b"http://127.0.0.1.evil", b"http://[::1", b"http://localhost:99999999", b"x" * 9000, b"http://a@localhost", b"HTTP://LOCALHOST"):  # fmt: skip
        for extra in (
            [],
            [b"Sec-Fetch-Site: cross-site"],
            [b"Sec-Fetch-Site: same-origin"],
            [b"Sec-Fetch-Site: \xff"],
        ):
            yield (
                f"origin {origin[:20]!r} {extra}",
                _one(
                    request(
                        "POST",
                        "/rollback",
                        b'{"generation": 777}',
                        "application/json",
                        [b"Origin: " + origin, *extra],
                    )
                ),
            )
    for head in ([b"X: " + b"y" * 100000], [b"X%d: y" % i for i in range(5000)], [b"X" * 70000 + b": y"], [b"X : y"], [b": y"], [b"no colon"], [b" folded"], [b"X: a\r\n b"], [b"X: \x00"], [b"Expect: 100-continue"], [b"Expect: 200-ok"], [b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Key: x", b"Sec-WebSocket-Version: 13"], [b"Upgrade: h2c", b"HTTP2-Settings: x"], [b"Range: bytes=0-1,5-2,99999999999-"], [b"Range: bytes=" + b"0-," * 5000], [b"If-None-Match: " + b'"x",' * 3000], [b"If-Modified-Since: never"], [b"Accept-Encoding: " + b"gzip," * 2000], [b"Authorization: Bearer \xff"], [b"Authorization: Basic " + b"A" * 5000], [b"Cookie: " + b"a=b;" * 5000], [b"X-Forwarded-For: \x1b[31m"], [b"X-Forwarded-Proto: javascript"], [b"X-HTTP-Method-Override: DELETE"], [b"Content-Encoding: gzip"], [b"Forwarded: for=\"[::1]\""]):  # fmt: skip
        for route in ("/classes", "/assets/app.js", "/metrics"):
            yield (
                f"head {head[0][:24]!r} x{len(head)} {route}",
                _one(request("GET", route, head=head), wait=25),
            )
        yield (
            f"head {head[0][:24]!r} x{len(head)} predict",
            _one(request("POST", "/predict", form(("image", "a.png", good)), KIND, head), wait=25),
        )
    for line in (b"GET / HTTP/2.0", b"GET / HTTP/0.9", b"GET /", b"GET  /  HTTP/1.1", b"GET http://evil.example/ HTTP/1.1", b"GET * HTTP/1.1", b"OPTIONS * HTTP/1.1", b"PRI * HTTP/2.0", b"\x16\x03\x01\x02\x00", b"\0" * 100, b"GET /\xff\xfe HTTP/1.1", b"GET /?" + b"x" * 200000 + b" HTTP/1.1", b"GET / HTTP/1.1\nHost: localhost\n\n", b"", b"\r\n\r\n\r\nGET / HTTP/1.1", b"GET //evil.example/ HTTP/1.1", b"GET /\r HTTP/1.1", b"CONNECT x:1 HTTP/1.1", b"GET http://localhost:1/classes HTTP/1.1", b"GET ?x HTTP/1.1", b"GET classes HTTP/1.1"):  # fmt: skip
        yield f"line {line[:24]!r}", _one(line + b"\r\nHost: localhost\r\nConnection: close\r\n\r\n", wait=25)
    single = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    for count in (2, 20, 200):
        yield f"pipeline {count}", _one(single * count + request("GET", "/classes"), wait=25)
    yield (
        "pipeline after post",
        _one(
            request("POST", "/rollback", b"{}", "application/json").replace(b"Connection: close\r\n", b"")
            * 20
            + request("GET", "/classes"),
            wait=25,
        ),
    )
    yield (
        "smuggle",
        _one(
            b"POST /rollback HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /x HTTP/1.1\r\nHost: localhost\r\n\r\n",
            wait=25,
        ),
    )
    for at in range(6):
        yield f"slow head {at}", _one(*[bytes([c]) for c in single[: 5 * at + 3]], pause=0.02, wait=25)
        yield (
            f"slow body {at}",
            _one(
                request("POST", "/predict", b"", KIND, length=b"5000"), *[b"x"] * 20 * at, pause=0.02, wait=40
            ),
        )
        yield (
            f"half closed {at}",
            _one(
                request("POST", "/predict", form(("image", "a.png", good)), KIND, length=b"90000")[
                    : 200 + 100 * at
                ],
                half=True,
                wait=25,
            ),
        )
    pieces = [
        request("POST", "/predict", form(("image", "a.png", good)), KIND),
        request("POST", "/learn", form(("image", "gone/a.png", good)), KIND, length=b"99999"),
        request("GET", "/classes"),
    ]
    for at in range(40):
        whole = rng.choice(pieces)
        yield f"vanish {at}", _one(whole[: rng.randrange(1, len(whole) + 1)], close=True)
    for label, extension, content in bombs():
        if rng.random() < 0.5 and len(content) < 15_000_000 and content != b"SPARSE":
            yield (
                f"image {label}",
                _one(request("POST", "/predict", form(("image", f"x.{extension}", content)), KIND)),
            )
    for extension, format_ in FORMATS.items():
        content = encoded(picture("blue", 2), format_)
        if content:
            yield (
                f"format {format_}",
                _one(request("POST", "/predict", form(("image", f"x.{extension}", content)), KIND)),
            )
            yield (
                f"format {format_} cut",
                _one(
                    request(
                        "POST",
                        "/predict",
                        form(
                            ("image", f"x.{extension}", content[: rng.randrange(len(content))]),
                            ("image", "g.png", good),
                        ),
                        KIND,
                    )
                ),
            )
    for label, content in class_zips(rng):
        if rng.random() < 0.6:
            yield (
                f"archive {label}",
                _one(
                    request(
                        "POST", "/learn", form(("archive", "a.zip", content), ("extend", None, b"true")), KIND
                    ),
                    wait=60,
                ),
            )
    for extend in (b"", b"maybe", b"TRUE", b"1", b"\xff", b"x" * 5000):
        yield (
            f"extend {extend[:8]!r}",
            _one(
                request(
                    "POST",
                    "/learn",
                    form(("image", "a.png", b"x"), ("name", None, b"q"), ("extend", None, extend)),
                    KIND,
                )
            ),
        )
    for name in (
        "",
        " ",
        "a\nb",
        "\x1b[31m",
        "\u202e",
        "\u200b",
        "x" * 5000,
        "a/b",
        "../x",
        "red",
        "\x00",
        ".",
        "e\u0301",
        "\ud800",
        "[b]",
    ):
        yield (
            f"learn name {name[:10]!r}",
            _one(request("POST", "/learn", form(("image", "a.png", b"x"), ("name", None, _b(name))), KIND)),
        )
