"""A server in this process with a client, for the tests of what clients see."""

from __future__ import annotations

import io
import json
import os
import struct
import subprocess
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from ease import Classifier
from ease.app.server import learning
from ease.app.server.api import make_app
from ease.app.server.limits import Limits
from ease.app.server.service import Service
from ease.app.server.telemetry import Log

TOKEN = "correct-horse-battery"
ROOM = Limits(predict_bytes=2_000_000, learn_bytes=2_000_000, learn_files=40, unpacked_bytes=200_000)


class InThread:
    """Learns as the process would, without the seconds that a new interpreter takes to load torch."""

    def __init__(self, order: Path) -> None:
        reading, writing = os.pipe()
        self.stdout, self.returncode = os.fdopen(reading, "rb"), 0
        self._order = json.loads(order.read_text())
        self._thread = threading.Thread(target=self._work, args=(os.fdopen(writing, "w"),))
        self._thread.start()

    def _work(self, lines: Any) -> None:
        before = Path.cwd()
        os.chdir(self._order["folder"])
        try:
            with lines:
                learning.learn(self._order, lambda line: print(json.dumps(line), file=lines, flush=True))
        finally:
            os.chdir(before)

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self) -> int:
        self._thread.join()
        return 0


def script(text: str) -> Callable[[Path], Any]:
    """A process that does something else than learning."""
    return lambda order: subprocess.Popen([sys.executable, "-S", "-c", text], stdout=subprocess.PIPE)


ENDLESS = script("import time; time.sleep(60)")


class World:
    """A service with a client, and what it logged."""

    def __init__(self, service: Service, client: TestClient, lines: io.StringIO) -> None:
        self.service, self.client, self.lines = service, client, lines

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def job(
        self, job_id: str, until: tuple[str, ...] = ("done", "failed", "cancelled", "interrupted")
    ) -> Any:
        for _ in range(3000):
            job = self.get(f"/jobs/{job_id}")
            if job["state"] in until:
                return job
            time.sleep(0.02)
        raise AssertionError(job)

    def learn(self, files: list[tuple[str, tuple[str, bytes]]], **fields: str) -> Any:
        return self.client.post("/learn", files=files, data=fields)

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines.getvalue().splitlines()]

    def litter(self) -> list[str]:
        """Files of uploads that still lie about."""
        return [str(path) for path in self.service.folder.rglob("*") if path.is_file()]


@contextmanager
def serving(model: Path, called: str = "127.0.0.1", **options: Any) -> Iterator[World]:
    """A service whose client calls it so; options are those of `Service`."""
    lines = io.StringIO()
    options = {"start": InThread, "limits": ROOM, "log": Log(lines), **options}
    with ExitStack() as stack:
        service = stack.enter_context(Service(model, **options))
        client = stack.enter_context(
            TestClient(make_app(service), base_url=f"http://{called}", raise_server_exceptions=False)
        )
        for _ in range(3000):
            if client.get("/readyz").status_code == 200:
                break
            assert service.model.failure is None
            time.sleep(0.01)
        yield World(service, client, lines)


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def bomb() -> bytes:
    """A PNG of 20,000 x 20,000 pixels in a few bytes."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def images(*pixels: np.ndarray, name: str = "{}.png") -> list[tuple[str, tuple[str, bytes]]]:
    return [("image", (name.format(i), png(each))) for i, each in enumerate(pixels)]


def sentence(answer: Any, status: int) -> str:
    """The one sentence of a refusal, which tells nothing of this machine."""
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    text = str(answer.json()["error"])
    assert text
    assert "\n" not in text
    assert "Traceback" not in text
    assert "/tmp" not in text
    return text


def state_of(model: Path) -> dict[str, bytes]:
    """Every byte of a model directory."""
    return {str(p.relative_to(model)): p.read_bytes() for p in sorted(model.rglob("*")) if p.is_file()}


def check_same_as_offline(found: Any, path: Path, pixels: list[np.ndarray]) -> None:
    check_same_as(Classifier.open(path), found, pixels)


def check_same_as(offline: Classifier, found: Any, pixels: list[np.ndarray]) -> None:
    assert found["generation"] == offline.generation
    for got, expected in zip(found["predictions"], offline.predict(pixels, top_k=99), strict=True):
        sure = {one["name"]: one["confidence"] for one in got["classes"]}
        assert sure == pytest.approx(dict(zip(expected.names, expected.confidences, strict=True)), abs=1e-5)
        assert got["is_unknown"] == expected.is_unknown
        assert got["unknown"] == pytest.approx(expected.unknown, abs=1e-5)


GOOD = png(np.zeros((8, 8, 3), np.uint8))
