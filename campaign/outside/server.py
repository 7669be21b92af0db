# ruff: noqa: E501
"""HTTP: a real `ease serve` on 127.0.0.1, spoken to over raw sockets, and watched while it is."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from campaign.outside.fixtures import Fixtures, picture
from campaign.outside.models import changed, write
from campaign.outside.requests import KIND, form, request, requests

LIMITS = {"slow_seconds": 3, "idle_seconds": 3, "head_seconds": 3, "linger_seconds": 2, "keep_alive_seconds": 5, "unpacked_bytes": 100_000_000, "learn_bytes": 50_000_000, "job_seconds": 60}  # fmt: skip


class Server:
    """A server process, its memory, and a way to speak to it."""

    def __init__(
        self, fixtures: Fixtures, source: Path, model: str = "strata", forge: Callable | None = None
    ) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="second-http-"))
        fixtures.model(model, self.root / "m")
        if forge:
            forge(self.root / "m")
        (self.root / "limits.json").write_text(json.dumps(LIMITS))
        (self.root / "work").mkdir()
        self.log = (self.root / "log").open("wb")
        environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        environment.pop("EASE_TOKEN", None)
        code = "import sys; from ease.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", code, "serve", "--model", "m", "--port", "0", "--limits", "limits.json", "--work", "work"]  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=self.root, env=environment, stdout=subprocess.PIPE, stderr=self.log
        )
        line = self.process.stdout.readline().decode()
        found = re.search(r":(\d+)/", line)
        if not found:
            raise RuntimeError(f"the server did not start: {line}{(self.root / 'log').read_text()}")
        self.port = int(found.group(1))
        self.peak = 0
        threading.Thread(target=self._watch, daemon=True).start()
        for _ in range(300):
            if self.ask(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")[:1] == [200]:
                break
            time.sleep(0.2)

    def memory(self) -> int:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{self.process.pid}/status").read_text()
            found = re.search(r"VmRSS:\s+(\d+)", text)
            return int(found.group(1)) * 1024 if found else 0
        return 0

    def _watch(self) -> None:
        while self.process.poll() is None:
            self.peak = max(self.peak, self.memory())
            time.sleep(0.1)

    def talk(
        self, *pieces: bytes, pause: float = 0, wait: float = 40, close: bool = False, half: bool = False
    ) -> bytes:
        """Send pieces and return all that comes back until the server closes, or nothing comes any more."""
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.port), timeout=wait) as line,
        ):
            try:
                for piece in pieces:
                    line.sendall(piece)
                    time.sleep(pause)
                if close:
                    return b""
                if half:
                    line.shutdown(socket.SHUT_WR)
            except OSError:
                pass
            while True:
                data = line.recv(65536)
                if not data:
                    break
                answer += data
                if len(answer) > 1 << 24:
                    break
        return answer

    def ask(self, *pieces: bytes, **more) -> list[int]:
        """The status numbers of all answers."""
        return [int(code) for code in re.findall(rb"HTTP/1\.[01] (\d{3})", self.talk(*pieces, **more))]

    def idle(self, cancel: bool = False, seconds: float = 120) -> None:
        """Wait until no job runs; cancel it, if asked to."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            jobs = self.talk(request("GET", "/jobs")).partition(b"\r\n\r\n")[2]
            active = re.findall(rb'"id":"([^"]+)","state":"(?:queued|running)"', jobs)
            if not active:
                return
            for job in active if cancel else []:
                self.talk(request("POST", b"/jobs/" + job + b"/cancel"))
            time.sleep(0.3)

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()


def judge(label: str, answer: bytes) -> list[str]:
    """What is wrong with an answer."""
    wrong = []
    for code in re.findall(rb"HTTP/1\.[01] (\d{3})", answer):
        if int(code) >= 500 and int(code) not in (503, 507):
            wrong.append(f"status {code.decode()}")
    head, _, body = answer.partition(b"\r\n\r\n")
    if re.match(rb"HTTP/1\.1 4", head) and b"application/json" in head and answer.count(b"HTTP/1.1 ") == 1:
        try:
            document = json.loads(body)
            if (
                set(document) != {"error"}
                or not isinstance(document["error"], str)
                or "\n" in document["error"]
            ):
                wrong.append(f"not one sentence: {body[:200]!r}")
            elif len(document["error"]) > 1000:
                wrong.append(f"error of {len(document['error'])} characters")
            elif re.search(
                r"/tmp/|/home/|site-packages|Errno|Traceback|NoneType|\w+Error\b", document["error"]
            ):
                wrong.append(f"speaks of paths or internals: {document['error'][:200]}")
        except (ValueError, TypeError):
            if body:
                wrong.append(f"error is no JSON: {body[:100]!r}")
    if b"root:x:0" in answer:
        wrong.append("the answer holds /etc/passwd")
    return wrong


def right(server: Server, known: dict[str, str]) -> list[str]:
    """Whether the server still names the pictures that it knew at the start, where the class is still there."""
    classes = json.loads(server.talk(request("GET", "/classes")).partition(b"\r\n\r\n")[2])
    names = {entry["name"] for entry in (classes["classes"] if isinstance(classes, dict) else classes)}
    wrong = []
    for name in sorted(known):
        buffer = io.BytesIO()
        picture(name, 1).save(buffer, "PNG")
        answer = server.talk(request("POST", "/predict", form(("image", "a.png", buffer.getvalue())), KIND))
        try:
            best = json.loads(answer.partition(b"\r\n\r\n")[2])["predictions"][0]["classes"][0]["name"]
        except (ValueError, LookupError):
            return [f"no prediction: {answer[:200]!r}"]
        if best != name and name in names:
            wrong.append(f"a {name} picture is named {best}")
    return wrong


def together(server: Server, rng: random.Random) -> list[tuple[str, list[str], bytes]]:
    """Changes at the same time, by eight clients; then very many small requests."""
    rows: list[tuple[str, list[str], bytes]] = []
    lock = threading.Lock()
    buffer = io.BytesIO()
    picture("green", 1).save(buffer, "PNG")

    def client(number: int, own: random.Random) -> None:
        for at in range(60):
            time.sleep(0.25)
            what = own.choice(
                (
                    "learn",
                    "forget",
                    "rename",
                    "rollback",
                    "predict",
                    "predict",
                    "classes",
                    "jobs",
                    "cancel",
                    "vanish",
                    "metrics",
                )
            )
            new = io.BytesIO()
            picture(f"n{own.randrange(5)}", at).save(new, "PNG")
            raw = {
                "learn": request("POST", "/learn", form(("image", "a.png", new.getvalue()), ("name", None, b"n%d" % own.randrange(5)), ("extend", None, b"true")), KIND),
                "forget": request("DELETE", f"/classes/{own.randrange(4, 30)}"), "rename": request("PATCH", f"/classes/{own.randrange(4, 30)}", b'{"name": "r%d"}' % own.randrange(9), "application/json"),
                "rollback": request("POST", "/rollback", b'{"generation": %d}' % own.randrange(1, 20), "application/json"), "predict": request("POST", "/predict", form(("image", "a.png", buffer.getvalue())), KIND),
                "classes": request("GET", "/classes"), "jobs": request("GET", "/jobs"), "cancel": request("POST", f"/jobs/{own.randrange(9)}/cancel"), "vanish": b"POST /predict HTTP/1.1\r\nHost: loc", "metrics": request("GET", "/metrics"),
            }[what]  # fmt: skip
            answer = server.talk(raw, close=what == "vanish", wait=60)
            wrong = judge(what, answer)
            if what != "vanish" and not answer:
                wrong.append("no answer")
            with lock:
                rows.append((f"together: {what} by {number}", wrong, answer[:300]))

    def hammer(number: int) -> None:
        for _ in range(150):
            answer = server.talk(request("GET", "/healthz"), wait=30)
            with lock:
                rows.append(
                    (
                        f"many: {number}",
                        judge("healthz", answer) or ([] if answer else ["no answer"]),
                        answer[:300],
                    )
                )

    for target in (client, hammer):
        threads = [
            threading.Thread(
                target=target, args=(n, random.Random(rng.random())) if target is client else (n,)
            )
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    idle = []
    for _ in range(400):
        with contextlib.suppress(OSError):
            idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
    answer = server.talk(request("GET", "/healthz"))
    rows.append(("400 idle connections", [] if b" 200 OK" in answer else ["not answered"], answer[:300]))
    for line in idle:
        line.close()
    return rows


FORGED: tuple[tuple[str, tuple, object], ...] = (
    ("trained", ("subspaces", 0, "config", "scale"), "x"),
    ("ridge", ("subspace", "config", "dropout"), "x"),
    ("ridge", ("ridge",), None),
    ("compacted", ("subspaces",), []),
)


def forged_models(fixtures: Fixtures, source: Path) -> Iterator[tuple[str, list[str], bytes]]:
    """Servers of forged models: they do not start, or answer below 500."""
    buffer = io.BytesIO()
    picture("red", 1).save(buffer, "PNG")
    for model, path, value in FORGED:
        label = f"forged {model}: learner/{'/'.join(map(str, path))} = {value!r}"
        manifest = json.loads((fixtures.root / model / "manifest.json").read_bytes())
        false = changed(manifest, ("learner", *path), value)
        try:
            server = Server(fixtures, source, model, lambda folder, false=false: write(folder, false))
        except RuntimeError:
            yield label, [], b""
            continue
        answer = server.talk(request("POST", "/predict", form(("image", "a.png", buffer.getvalue())), KIND))
        server.stop()
        shutil.rmtree(server.root, ignore_errors=True)
        yield label, judge(label, answer), answer


def campaign(seed: int, fixtures: Fixtures, source: Path, only: str = "") -> list[dict]:
    """Run the family against one server and give the rows of the summary."""
    server = Server(fixtures, source)
    known = {name: name for name in ("red", "green", "blue", "yellow")}
    start = server.memory()
    rows: list[dict] = []

    def row(label: str, wrong: list[str], seconds: float = 0, answer: bytes = b"") -> None:
        code = re.match(rb"HTTP/1\.[01] (\d{3})", answer)
        rows.append({"family": "http", "name": f"http/{len(rows)}", "label": label, "inputs": 1, "command": label, "code": code.group(1).decode() if code else "closed", "memory": server.memory(), "seconds": round(seconds, 2), "violations": wrong, "stderr": answer[:300].decode("latin-1")})  # fmt: skip

    try:
        row("untouched", right(server, known))
        silent = ("vanish", "slow head", "line b''", "half closed")
        work = list(requests(seed))
        for label, send in [item for item in work if only in item[0]]:
            if label.startswith(("archive", "learn name", "extend", "/learn")):
                server.idle(cancel=len(rows) % 8 > 0)
            began = time.monotonic()
            answer = send(server)
            wrong = judge(label, answer)
            seconds = time.monotonic() - began
            if server.process.poll() is not None:
                row(label, [*wrong, f"the server ended with {server.process.returncode}"], seconds, answer)
                break
            if (
                not answer
                and not label.startswith(silent)
                and server.ask(request("GET", "/healthz")) != [200]
            ):
                wrong.append("no answer, and none to /healthz")
            if seconds > 45:
                wrong.append(f"{seconds:.0f} s")
            row(label, wrong, seconds, answer)
        middle = server.memory()
        if not only:
            for label, wrong, answer in together(server, random.Random(seed)):
                row(label, wrong, 0, answer)
            server.idle()
            for label, wrong, answer in forged_models(fixtures, source):
                row(label, wrong, 0, answer)
        row("still right", right(server, known))
        time.sleep(5)
        end = server.memory()
        log = (server.root / "log").read_text(errors="replace")
        traces = re.findall(r"Traceback[^\n]*", log)
        plain = [line for line in log.splitlines() if not line.startswith("{")]
        row(
            "log lines",
            [f"{len(plain)} lines of the log are no JSON: {sorted(set(plain))[:5]}"] if plain else [],
        )
        row("log", [f"{len(traces)} tracebacks in the log: see {server.root / 'log'}"] if traces else [])
        left = [
            str(path) for path in (server.root / "work").rglob("*") if path.is_file() and path.name != ".lock"
        ]
        row("uploads", [f"uploads left: {left[:4]}"] if left else [])
        row(
            "memory",
            [f"memory grew from {middle >> 20} to {end >> 20} MB"] if end > middle + (400 << 20) else [],
        )
        print(json.dumps({"http memory MB": {"start": start >> 20, "after single requests": middle >> 20, "peak": server.peak >> 20, "end": end >> 20}}), file=sys.stderr)  # fmt: skip
        keep = bool(traces)
    finally:
        server.stop()
        if not locals().get("keep", True):
            shutil.rmtree(server.root, ignore_errors=True)
    return rows
