"""A stand-in for `ease serve`: the same addresses and answers, none of the learning.

Jobs move one step each time they are asked about, so nothing here depends on the clock. To look at the page by hand:
`python -m tests.app.fake_server`. The model is in `fake_model.py`, what belongs to the daily loop in `fake_daily.py`.
"""

from __future__ import annotations

import json
import mimetypes
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlsplit

import ease
from tests.app.fake_daily import Refused
from tests.app.fake_model import FakeModel

PAGE = Path(ease.__file__).parent / "app" / "page"
CSP = "default-src 'self'; img-src 'self' blob: data:"


def form_parts(content_type: str, body: bytes) -> list[tuple[str, str | None, bytes]]:
    """(field, file name, content) of a multipart form."""
    boundary = re.search(r'boundary="?([^";]+)', content_type)
    if not boundary:
        raise Refused(415, "send a multipart form")
    parts = []
    for chunk in body.split(b"--" + boundary[1].encode())[1:-1]:
        head, _, content = chunk.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        names = dict(re.findall(r'; (name|filename)="([^"]*)"', head.decode()))
        parts.append((names["name"], names.get("filename"), content.removesuffix(b"\r\n")))
    return parts


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else the end of each answer waits 40 ms for the browser
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path).removeprefix(self.server.prefix)
        self.server.seen.append(f"{self.command} {path}")
        try:
            with self.server.lock:
                self._send(200, *self._route(path, body))
        except Refused as refused:
            self._json(refused.status, {"error": str(refused)})

    do_GET = do_POST = do_PATCH = do_DELETE = _answer  # noqa: N815

    def _send(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(202 if kind == "accepted" else status)
        self.send_header("Content-Type", "application/json" if kind == "accepted" else kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", CSP)
        self.end_headers()
        self.wfile.write(content)

    def _json(self, status: int, value: Any) -> None:
        self._send(status, "application/json", json.dumps(value).encode())

    def _route(self, path: str, body: bytes) -> tuple[str, bytes]:
        if self.command == "GET" and (path == "/" or path.startswith("/assets/")):
            file = PAGE / (Path(path).name or "index.html")
            if not file.is_file():
                raise Refused(404, f"there is no {path}")
            return mimetypes.guess_type(file.name)[0] or "application/octet-stream", file.read_bytes()
        model = self.server.model
        if path.startswith("/thumbnails/"):
            return "image/png", model.thumbnails[int(path.rpartition("/")[2])]
        if (self.command != "GET" and path not in ("/predict", "/explain")) or path.startswith("/inbox"):
            self._check_token()
        if self.command == "GET" and path.startswith("/inbox/"):
            content, kind = model.pictures[model.photo(path.split("/")[2])["id"]]
            return kind, content
        answer = self._daily(path, body) if model.optional else None
        if answer is None:
            answer = self._model(path, body)
        if path in ("/learn", "/inbox/learn"):
            return "accepted", json.dumps(answer).encode()
        return "application/json", json.dumps(answer).encode()

    def _check_token(self) -> None:
        token = self.server.model.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            raise Refused(
                401, "changing this model needs its token: send it as 'Authorization: Bearer TOKEN'"
            )

    def _model(self, path: str, body: bytes) -> Any:
        model, kind = self.server.model, self.headers.get("Content-Type", "")
        match [self.command, *path.strip("/").split("/")]:
            case ["GET", "classes"]:
                images = {str(number): f"/thumbnails/{number}" for number in model.thumbnails}
                return {
                    "generation": model.generation,
                    "method": "strata",
                    "backbone": "ease-vit",
                    "tunable": not model.tasks,
                    "passes_per_image": 1,
                    "bytes": 1_830_000 + 412_000 * len(model.tasks),
                    "calibrated": model.calibrated,
                    "classes": model.classes,
                    "tasks": model.tasks,
                    "thumbnails": {"on": bool(images), "images": images},
                }
            case ["POST", "predict"]:
                photos = [
                    (file or "", data) for name, file, data in form_parts(kind, body) if name == "image"
                ]
                return {
                    "generation": model.generation,
                    "calibrated": model.calibrated,
                    "predictions": [model.predict(*photo) for photo in photos],
                }
            case ["POST", "learn"]:
                return self._learn(form_parts(kind, body))
            case ["GET", "jobs"]:
                return {"jobs": model.jobs[::-1]}
            case ["GET", "jobs", number]:
                return model.step(self._job(number))
            case ["POST", "jobs", number, "cancel"]:
                job = self._job(number)
                job["state"] = "cancelled"
                return job
            case ["DELETE", "classes", number]:
                entry = model.entry(number)
                model.classes.remove(entry)
                model.generation += 1
                return {"generation": model.generation, "name": entry["name"], "moved": 0.0}
            case ["PATCH", "classes", number]:
                return self._rename(model.entry(number), json.loads(body)["name"])
            case ["POST", "rollback"]:
                return model.go_back(json.loads(body)["generation"])
        raise Refused(404, f"there is no {path}")

    def _daily(self, path: str, body: bytes) -> Any:
        """The routes of the daily loop; None for any other."""
        model, kind = self.server.model, self.headers.get("Content-Type", "")
        match [self.command, *path.strip("/").split("/")]:
            case ["GET", "inbox"]:
                return model.inbox()
            case ["POST", "inbox", "learn"]:
                return self._begin(model.named_counts(), inbox=True)
            case ["PATCH", "inbox", number]:
                wanted = json.loads(body)
                return model.name(number, wanted["name"], wanted.get("confirm", False))
            case ["DELETE", "inbox", number]:
                return model.discard(number)
            case ["POST", "feedback" | "explain" as what]:
                parts = {name: (file or "", data) for name, file, data in form_parts(kind, body)}
                file, content = parts["image"]
                fields = {name: data.decode() for name, (_, data) in parts.items() if name != "image"}
                if what == "feedback":
                    return model.feedback(content, fields["name"], fields.get("confirm") == "true")
                return model.explain(model.predict(file, content), fields.get("name"))
            case ["POST", "check"]:
                return model.check(
                    [file for name, file, _ in form_parts(kind, body) if name == "image" and file]
                )
            case ["GET", "history"]:
                return model.history()
            case ["GET", "activity"]:
                return model.activity()
        return None

    def _rename(self, entry: dict[str, Any], name: str) -> dict[str, Any]:
        model = self.server.model
        if any(other["name"] == name for other in model.classes):
            raise Refused(409, f"there is a class '{name}' already: choose another name")
        entry["name"] = name
        model.generation += 1
        return {"generation": model.generation, "name": name}

    def _job(self, number: str) -> dict[str, Any]:
        for job in self.server.model.jobs:
            if job["id"] == number:
                return job
        raise Refused(404, f"there is no job {number}")

    def _learn(self, parts: list[tuple[str, str | None, bytes]]) -> dict[str, Any]:
        model = self.server.model
        if any(job["state"] in ("queued", "running") for job in model.jobs):
            raise Refused(409, "the model is learning already: wait for that job, or cancel it")
        fields = {name: content.decode() for name, file, content in parts if file is None}
        files = [file for name, file, _ in parts if name == "image" and file]
        counts: dict[str, int] = {}
        for file in files:
            counts[file.rpartition("/")[0]] = counts.get(file.rpartition("/")[0], 0) + 1
        if len(set(files)) < len(files) or not files:
            raise Refused(400, "send images, each under a name of its own")
        known = [entry["name"] for entry in model.classes if entry["name"] in counts]
        if (fields.get("tune") == "true") > (not model.tasks):
            raise Refused(409, "this model cannot be tuned: it has learned already")
        model.tuned = fields.get("tune") == "true"
        if known and fields["extend"] != "true":
            raise Refused(409, f"class '{known[0]}' is known already: rename it, or extend it")
        return self._begin(counts)

    def _begin(self, counts: dict[str, int], *, inbox: bool = False) -> dict[str, Any]:
        model = self.server.model
        job = {
            "id": f"job{len(model.jobs) + 1}",
            "state": "queued",
            "progress": 0.0,
            "message": "waiting",
            "created": "2026-11-16T04:10:00+00:00",
            "classes": list(counts),
            "generation": None,
            "learned": None,
            "error": None,
            "counts": counts,
            "inbox": inbox,
            "at": 0,
        }
        model.jobs.append(job)
        return {"job": job["id"], "state": "queued"}


class FakeServer(ThreadingHTTPServer):
    """`with FakeServer(model) as server:` answers at `server.url` until the block ends; `seen` lists what was asked."""

    daemon_threads = True

    def __init__(self, model: FakeModel, port: int = 0, prefix: str = "") -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model, self.lock, self.seen, self.prefix = model, threading.Lock(), list[str](), prefix
        self.url = f"http://127.0.0.1:{self.server_address[1]}{prefix}/"

    def __enter__(self) -> FakeServer:
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


if __name__ == "__main__":
    with FakeServer(
        FakeModel({"apple": 40, "bicycle": 38, "cup": 25, "lamp": 31, "otter": 22}), 8000
    ) as here:
        print(here.url)
        threading.Event().wait()
