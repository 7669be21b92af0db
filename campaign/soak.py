"""A server under disturbance: `python -m campaign.soak --minutes 30`.

Clients predict, teach, cancel, forget and disconnect at random against a real `ease serve` on 127.0.0.1, while the
server and its jobs are killed and their disk refuses to be written. Each class is a pattern of its own, so that every
answer can be judged: a class that the model knows must be recognised. What was acknowledged must stay: a class whose
job is done is there until it is forgotten, and one that was forgotten never comes back. The trial is bounded in time
and in requests, ends by itself, and talks to this machine only.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import io
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

CLIENTS = 6
BASE = ("base-a", "base-b", "base-c")
MOST_CLASSES = 12
MOST_REQUESTS = 500_000
FINE = (200, 202, 404, 409, 413, 422, 503, 507)
"""404 and 409 come of others' changes, 422 of a refused write, 503 and 507 of a busy server or a full disk."""
LEAK_BYTES = 96 * 2**20
"""How much more memory the server may have at the end than after it warmed up."""


def picture(name: str, draw: random.Random) -> bytes:
    """A PNG of the pattern of a class, with some noise."""
    own = np.random.default_rng(list(name.encode()))
    pattern = np.kron(own.integers(0, 256, (4, 4, 3)), np.ones((4, 4, 1))).astype(np.int16)
    noise = np.random.default_rng(draw.randrange(2**32)).integers(-8, 9, pattern.shape)
    pixels: npt.NDArray[np.uint8] = (pattern + noise).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def form(fields: dict[str, str], files: list[tuple[str, str, bytes]]) -> tuple[bytes, dict[str, str]]:
    """A multipart body and its head."""
    mark = "soak" + os.urandom(8).hex()
    parts = [
        f'--{mark}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()
        for name, value in fields.items()
    ]
    for name, file, data in files:
        head = f'--{mark}\r\nContent-Disposition: form-data; name="{name}"; filename="{file}"\r\n\r\n'
        parts += [head.encode(), data, b"\r\n"]
    parts.append(f"--{mark}--\r\n".encode())
    return b"".join(parts), {"Content-Type": f"multipart/form-data; boundary={mark}"}


@dataclass
class Ledger:
    """What was asked, what was answered, and what must therefore be true."""

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    there: dict[str, int] = field(default_factory=dict)
    """Classes that were acknowledged, by name; their ids."""
    leaving: set[str] = field(default_factory=set)
    """Classes that somebody asked to forget: they may be there or not until it is acknowledged."""
    gone: set[str] = field(default_factory=set)
    ids: dict[int, str] = field(default_factory=dict)
    generation: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, what: str) -> None:
        """One more of something."""
        with self.lock:
            self.counts[what] += 1

    def error(self, what: str) -> None:
        """One more error of a kind."""
        with self.lock:
            self.errors[what] += 1

    def fault(self, what: str) -> None:
        """Something that must not be."""
        with self.lock:
            if len(self.wrong) < 50:
                self.wrong.append(what)
        print(f"WRONG {what}", flush=True)


class Server:
    """`ease serve` as a process that can be killed and started again on the same port."""

    def __init__(self, model: Path, work: Path, log: Path) -> None:
        self.model, self._work, self._log = model, work, log
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready."""
        words = ["serve", "--model", str(self.model), "--port", str(self.port), "--work", str(self._work)]
        with open(self._log, "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "ease", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        end = time.monotonic() + 120
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.tail()}")
            with contextlib.suppress(OSError, http.client.HTTPException):
                if request(self.port, "GET", "/readyz")[0] == 200:
                    return
            time.sleep(0.1)
        raise RuntimeError(f"the server is not ready after two minutes: {self.tail()}")

    def tail(self) -> str:
        """The end of its log."""
        return self._log.read_bytes()[-2000:].decode("utf-8", "replace")

    def kill(self) -> None:
        """SIGKILL: no chance to tidy up."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """SIGTERM, as services are stopped; its exit code."""
        assert self.process is not None
        self.process.terminate()
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()
            return -9

    def jobs(self) -> list[int]:
        """Processes that learn for it."""
        assert self.process is not None
        found = []
        with contextlib.suppress(OSError, ValueError):
            for task in Path(f"/proc/{self.process.pid}/task").iterdir():
                found += [int(pid) for pid in (task / "children").read_text().split()]
        return found

    def memory(self) -> int:
        """Resident bytes."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/statm").read_text().split()
        return int(fields[1]) * resource.getpagesize()

    def resting_memory(self, seconds: float = 5) -> int:
        """The least resident bytes within some seconds: while it loads a generation it needs more for a moment."""
        samples, end = [self.memory()], time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1)
            samples.append(self.memory())
        return min(samples)


def request(
    port: int, method: str, path: str, body: bytes | None = None, head: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, head or {})
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content[:1] in b"{[" else content
    finally:
        connection.close()


class Client(threading.Thread):
    """Does something at random until it is told to stop."""

    def __init__(self, number: int, server: Server, ledger: Ledger, stop: threading.Event, seed: int) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self._number, self._server, self._ledger, self._over = number, server, ledger, stop
        self._draw = random.Random(seed * 1000 + number)
        self._taught = 0

    def run(self) -> None:
        actions = {self.predict: 70, self.teach: 8, self.forget: 5, self.disconnect: 8, self.look: 9}
        while not self._over.is_set() and self._ledger.counts["requests"] < MOST_REQUESTS:
            (action,) = self._draw.choices(list(actions), list(actions.values()))
            try:
                action()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._ledger.error(type(error).__name__)
                time.sleep(0.3)

    def _ask(
        self, method: str, path: str, body: bytes | None = None, head: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        self._ledger.count("requests")
        status, answer = request(self._server.port, method, path, body, head)
        self._ledger.count(f"answer {status}")
        if status not in FINE:
            self._ledger.fault(f"{method} {path}: {status} {answer}")
        elif status >= 400:
            self._ledger.error(f"{status}")
            if not isinstance(answer, dict) or list(answer) != ["error"] or "Traceback" in answer["error"]:
                self._ledger.fault(f"{method} {path}: a refusal that is not one sentence: {answer}")
        return status, answer

    def predict(self) -> None:
        """Images of classes that should be known, and sometimes of one that is not."""
        with self._ledger.lock:
            known = [*self._ledger.there]
        names = [self._draw.choice([*known, *BASE, "nobody"]) for _ in range(self._draw.randint(1, 4))]
        body, head = form({}, [("image", f"{i}.png", picture(n, self._draw)) for i, n in enumerate(names)])
        status, answer = self._ask("POST", "/predict?top=99", body, head)
        if status != 200:
            return
        self._ledger.count("predictions")
        for name, found in zip(names, answer["predictions"], strict=True):
            guesses = [one["name"] for one in found["classes"]]
            sure = [one["confidence"] for one in found["classes"]]
            if not all(0 <= value <= 1 for value in sure) or abs(sum(sure) - 1) > 1e-3:
                self._ledger.fault(f"confidences {sure}")
            if name in guesses and guesses[0] != name:
                self._ledger.fault(f"{name} was taken for {guesses[0]} in generation {answer['generation']}")

    def teach(self) -> None:
        """A new class, or more images of an old one; sometimes the job is cancelled."""
        with self._ledger.lock:
            if len(self._ledger.there) >= MOST_CLASSES:
                return
        self._taught += 1
        name = f"soak-{self._number}-{self._taught}-{self._draw.randrange(10**6)}"
        extend = self._draw.random() < 0.2
        if extend:
            name = self._draw.choice(BASE)
        images = [("image", f"{i}.png", picture(name, self._draw)) for i in range(self._draw.randint(3, 8))]
        body, head = form({"name": name, "extend": str(extend).lower()}, images)
        status, answer = self._ask("POST", "/learn", body, head)
        if status != 202:
            return
        self._ledger.count("jobs")
        cancel_at = self._draw.uniform(0, 6) if self._draw.random() < 0.3 else None
        self._follow(answer["job"], name, extend, cancel_at)

    def _follow(self, job: str, name: str, extend: bool, cancel_at: float | None) -> None:
        started, state = time.monotonic(), ""
        while time.monotonic() - started < 120 and not self._over.is_set():
            time.sleep(0.25)
            try:
                if cancel_at is not None and time.monotonic() - started > cancel_at:
                    cancel_at = None
                    self._ledger.count("cancellations")
                    self._ask("POST", f"/jobs/{job}/cancel")
                status, answer = self._ask("GET", f"/jobs/{job}")
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._ledger.error(type(error).__name__)
                continue
            if status == 404:
                self._ledger.error("a job that a full disk did not remember")
                return
            state = answer.get("state", "") if status == 200 else ""
            if state in ("done", "failed", "cancelled", "interrupted"):
                self._ledger.count(f"job {state}")
                if state == "done" and not extend:
                    with self._ledger.lock:
                        self._ledger.there[name] = -1
                return

    def forget(self) -> None:
        """A class that somebody taught."""
        with self._ledger.lock:
            names = sorted(set(self._ledger.there) - self._ledger.leaving)
        if len(names) < 2:
            return
        name = self._draw.choice(names)
        status, answer = self._ask("GET", "/classes")
        if status != 200:
            return
        number = next((entry["id"] for entry in answer["classes"] if entry["name"] == name), None)
        with self._ledger.lock:
            if name in self._ledger.leaving:
                return
            self._ledger.leaving.add(name)
        if number is None:
            self._ledger.fault(f"{name} was learned and is not there in generation {answer['generation']}")
            return
        status, _ = self._ask("DELETE", f"/classes/{number}")
        with self._ledger.lock:
            if status == 200:
                self._ledger.there.pop(name, None)
                self._ledger.gone.add(name)
                self._ledger.counts["forgotten"] += 1
            elif status in (404, 409):
                self._ledger.leaving.discard(name)

    def disconnect(self) -> None:
        """Go away in the middle of a request, or of an answer."""
        self._ledger.count("disconnections")
        body, head = form({}, [("image", "a.png", picture(BASE[0], self._draw))])
        lines = [f"POST /{self._draw.choice(['predict', 'learn'])} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{key}: {value}" for key, value in head.items()] + [f"Content-Length: {len(body)}", "", ""]
        data = "\r\n".join(lines).encode() + body
        with socket.create_connection(("127.0.0.1", self._server.port), 10) as connection:
            connection.sendall(data[: self._draw.randint(1, len(data))])
            time.sleep(self._draw.uniform(0, 0.3))

    def look(self) -> None:
        """Read; what /classes says is compared with what was acknowledged."""
        path = self._draw.choice(["/classes", "/classes", "/jobs", "/metrics", "/healthz"])
        with self._ledger.lock:
            expected = set(self._ledger.there) - self._ledger.leaving
            gone = set(self._ledger.gone)
        status, answer = self._ask("GET", path)
        if path == "/classes" and status == 200:
            compare(self._ledger, answer, expected, gone)


def compare(ledger: Ledger, answer: dict[str, Any], expected: set[str], gone: set[str]) -> None:
    """What the server knows, against what must be there and what must not."""
    names = {entry["name"] for entry in answer["classes"]}
    with ledger.lock:
        leaving = set(ledger.leaving)
        ledger.generation = max(ledger.generation, answer["generation"])
        for entry in answer["classes"]:
            if ledger.ids.setdefault(entry["id"], entry["name"]) != entry["name"]:
                ledger.wrong.append(f"id {entry['id']} was {ledger.ids[entry['id']]} and is {entry['name']}")
    for lost in (expected | set(BASE)) - leaving - names:
        ledger.fault(f"{lost} is lost in generation {answer['generation']}")
    for back in gone & names:
        ledger.fault(f"{back} was forgotten and is back in generation {answer['generation']}")


class Disturber(threading.Thread):
    """Kills the server and its jobs, stalls it, and takes its disk away."""

    def __init__(
        self, server: Server, ledger: Ledger, stop: threading.Event, seed: int, calm_at: float
    ) -> None:
        super().__init__(name="disturber", daemon=True)
        self._server, self._ledger, self._over = server, ledger, stop
        self._draw, self._calm_at = random.Random(seed), calm_at
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            self._disturb()
        except BaseException as error:
            self.failure = error
            self._over.set()

    def _disturb(self) -> None:
        while not self._over.wait(self._draw.uniform(2, 8)):
            choices = {self.kill_job: 4, self.full_disk: 4, self.stall: 2}
            if time.monotonic() < self._calm_at:
                choices[self.kill_server] = 3
            (action,) = self._draw.choices(list(choices), list(choices.values()))
            action()

    def kill_server(self) -> None:
        """Then start it again."""
        self._server.kill()
        self._ledger.count("server kills")
        self._server.start()
        self._ledger.count("restarts")

    def kill_job(self) -> None:
        """The process that is learning, if there is one."""
        for pid in self._server.jobs() if self._draw.random() < 0.5 else []:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self._ledger.count("job kills")

    def full_disk(self) -> None:
        """For a while no file can be written beyond some bytes, by the server or by its jobs."""
        assert self._server.process is not None
        self._ledger.count("full disks")
        size, end = self._draw.choice([0, 500, 3000, 20_000]), time.monotonic() + self._draw.uniform(0.5, 3)
        limited: set[int] = set()
        while time.monotonic() < end and not self._over.is_set():
            for pid in {self._server.process.pid, *self._server.jobs()} - limited:
                with contextlib.suppress(ProcessLookupError):
                    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
                    limited.add(pid)
            time.sleep(0.05)
        for pid in {self._server.process.pid, *self._server.jobs()} | limited:
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def stall(self) -> None:
        """The machine has no time for the server."""
        assert self._server.process is not None
        self._ledger.count("stalls")
        os.kill(self._server.process.pid, signal.SIGSTOP)
        time.sleep(self._draw.uniform(0.2, 1.5))
        os.kill(self._server.process.pid, signal.SIGCONT)


def soak(minutes: float, seed: int, folder: Path) -> dict[str, Any]:
    """The trial; its counts."""
    from ease import Classifier

    draw = random.Random(seed)
    model = folder / "model"
    made = Classifier.create(model, input_size=16, augment="gentle")
    made.learn({name: [picture(name, draw) for _ in range(8)] for name in BASE})
    ledger, stop = Ledger(), threading.Event()
    server = Server(model, folder / "work", folder / "server.log")
    server.start()
    first_memory = server.resting_memory()
    started, length = time.monotonic(), minutes * 60
    disturber = Disturber(server, ledger, stop, seed, calm_at=started + length * 0.6)
    threads = [disturber, *(Client(number, server, ledger, stop, seed) for number in range(CLIENTS))]
    for thread in threads:
        thread.start()
    warm = most = 0
    try:
        while time.monotonic() - started < length and not stop.is_set():
            time.sleep(0.5)
            with contextlib.suppress(OSError, IndexError):  # killed at this moment
                most = max(most, server.memory())
            if not warm and time.monotonic() - started > length * 0.75:
                warm = server.resting_memory()
            if ledger.counts["requests"] >= MOST_REQUESTS:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)
    if disturber.failure is not None:
        server.kill()
        raise disturber.failure
    last = server.resting_memory()
    _, answer = request(server.port, "GET", "/classes")
    compare(ledger, answer, set(ledger.there) - ledger.leaving, set(ledger.gone))
    code = server.stop()
    if code not in (0, 130):
        ledger.fault(f"the server left with {code} when it was asked to: {server.tail()}")
    _judge_files(model, ledger, answer)
    if warm and last - warm > LEAK_BYTES:
        ledger.fault(f"memory grew from {warm} to {last} bytes in the last quarter")
    return {
        "minutes": round((time.monotonic() - started) / 60, 1),
        "seed": seed,
        **dict(sorted(ledger.counts.items())),
        "errors": dict(sorted(ledger.errors.items())),
        "generation": answer["generation"],
        "classes": len(answer["classes"]),
        "memory MB at start, warm, end, most": [round(b / 2**20) for b in (first_memory, warm, last, most)],
        "tracebacks in the log": (folder / "server.log").read_text(errors="replace").count("Traceback"),
        "wrong or lost": ledger.wrong,
    }


def _judge_files(model: Path, ledger: Ledger, answer: dict[str, Any]) -> None:
    """The model opens, knows what the server knew, and its next write leaves nothing behind."""
    from campaign.faults import check_tidy, temporaries
    from ease import Classifier

    opened = Classifier.open(model)
    if opened.classes != [entry["name"] for entry in answer["classes"]]:
        ledger.fault(f"on disk there are {opened.classes}")
    opened.rename(BASE[0], "renamed")
    try:
        check_tidy(model)
    except AssertionError as error:
        ledger.fault(str(error))
    for left in temporaries(model.parent):
        ledger.fault(f"{left} was left")
    for name in ledger.gone:
        for path in model.rglob("*"):
            if path.is_file() and name.encode() in path.read_bytes():
                ledger.fault(f"{path.relative_to(model)} still names {name}, which was forgotten")


def main() -> int:
    """Run the trial and print its counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--folder", type=Path, help="keep everything here; a temporary folder by default")
    words = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.ExitStack() as stack:
        folder = words.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ease-soak-")))
        folder.mkdir(parents=True, exist_ok=True)
        found = soak(words.minutes, words.seed, folder)
    print(json.dumps(found, indent=1))
    return 1 if found["wrong or lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
