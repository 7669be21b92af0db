"""A small HTTP server for tests of sharing: plain PUT and GET, and the calls of the Hugging Face hub that we need."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Files by path, what was asked for, and how to misbehave."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.calls: list[tuple[str, str, str | None]] = []
        self.token: str | None = None
        self.redirect: str | None = None
        self.cut: int | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: FakeHub

    def log_message(self, *words: Any) -> None: ...

    def _begin(self) -> bytes:
        self.server.calls.append((self.command, self.path, self.headers.get("Authorization")))
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            with suppress(OSError):  # the client may have had enough
                self.wfile.write(content if self.server.cut is None else content[: self.server.cut])

    def _json(self, value: Any) -> None:
        self._answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def _refused(self) -> bool:
        wanted = self.server.token
        if wanted is None or self.headers.get("Authorization") == f"Bearer {wanted}":
            return False
        self._answer(401)
        return True

    def do_PUT(self) -> None:
        content = self._begin()
        if self._refused():
            return
        self.server.files[self.path] = content
        self._answer(201)

    def do_POST(self) -> None:
        content = self._begin()
        if self._refused():
            return
        if self.path == "/api/repos/create":
            self._json({"url": f"{self.server.url}/user/model"})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(content)["files"]]
            self._json(
                {"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]}
            )
        elif "/commit/" in self.path:
            repo = self.path.split("/api/models/")[1].split("/commit/")[0]
            for line in content.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    value = entry["value"]
                    self.server.files[f"/{repo}/resolve/main/{value['path']}"] = base64.b64decode(
                        value["content"]
                    )
            url = f"{self.server.url}/{repo}/commit/{COMMIT}"
            self._json({"success": True, "commitOid": COMMIT, "commitUrl": url, "pullRequestUrl": None})
        else:
            self._json({})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self._begin()
        if self._refused():
            return
        if self.server.redirect is not None:
            self._answer(302, Location=self.server.redirect)
            return
        path = self.path.split("?")[0].replace(f"/{COMMIT}/", "/main/")
        if path not in self.server.files:
            self._answer(404, X_Error_Code="EntryNotFound")
            return
        content = self.server.files[path]
        self._answer(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=COMMIT)


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
