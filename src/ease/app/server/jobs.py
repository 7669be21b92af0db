"""Learning jobs: one at a time, each in its own process, remembered across restarts."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

from ease.app.job_book import ENDED, JOB_BYTES, JOB_ID, without_unknown_names
from ease.app.server.answers import JobState
from ease.app.server.guard import without_paths
from ease.app.server.model import Model
from ease.app.server.refusals import RefusalError
from ease.app.server.telemetry import Log, Metrics
from ease.app.server.tracing import NoTracing
from ease.app.server.work_folder import private_folder
from ease.errors import EaseError
from ease.storage.contents import read_json, write_json
from ease.storage.files import remove, write_atomic
from ease.storage.model_directory import ModelDirectory

JOBS_KEPT = 200
"""Number of jobs that are remembered."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
LINE_BYTES = JOB_BYTES
TURN_PERIOD = 0.2
"""Seconds after which a job that waits for another model's job looks whether it was cancelled."""

_WHEN = "%Y%m%d-%H%M%S-%f"
"""Format of a job's id. Only one job can be submitted at a time, so ids are in the order of submission."""


@dataclass(frozen=True)
class LearningOrder:
    """What a job shall learn: files by class, relative to `folder`, and how.

    With `inbox`, it learns the photos of the inbox with these ids; `images` then has the names of their classes only.
    """

    folder: Path
    images: Mapping[str, list[str]]
    extend: bool
    tune: bool
    unreadable: str
    thumbnails: bool
    inbox: Sequence[str] | None = None


@dataclass
class Job:
    """One learning job, from its submission to its end."""

    id: str
    created: str
    classes: list[str]
    state: str = "queued"
    progress: float = 0.0
    message: str = "waiting for its process"
    base: int = 0
    generation: int | None = None
    learned: dict[str, Any] | None = None
    error: str | None = None
    ended: str | None = None

    def shown(self) -> dict[str, Any]:
        """The fields that clients see."""
        return {key: value for key, value in asdict(self).items() if key != "base"}


class Process(Protocol):
    """The process of a job; `subprocess.Popen` is one."""

    stdout: Any
    returncode: Any

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self) -> int: ...


Start = Callable[[Path], Process]
"""Starts the process for the order in this file."""


def start_process(order: Path) -> Process:
    """Start a new interpreter: forking a process that runs torch's threads is not safe."""
    threads = str(json.loads(order.read_text(encoding="utf-8"))["threads"])
    environment = {
        key: value for key, value in os.environ.items() if key not in ("EASE_TOKEN", "EASE_TOKENS")
    }
    return subprocess.Popen(
        [sys.executable, "-m", "ease.app.server.learning", str(order), str(os.getpid())],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, "OMP_NUM_THREADS": threads},
        start_new_session=True,  # Ctrl-C reaches the server only, which ends its job itself
    )


@dataclass
class _Running:
    job: Job
    folder: Path
    process: Process | None = None
    wanted: str | None = None
    """How it was asked to end: cancelled, interrupted, or failed because it took too long."""
    why: str = ""
    span: Any = None
    """The span of the request that submitted it."""
    over: threading.Event = field(default_factory=threading.Event)


class Jobs:
    """The jobs of one model.

    Args:
        model: The model that learns.
        book: Folder in which jobs are remembered.
        work: Folder for the images of jobs.
        claim: Makes the book again, and locks it, if it was removed beneath the server.
        weights: Weights file of the backbone.
        seconds: Longest time that a job may take.
        threads: Number of threads of a job.
        log: Where changes of a job's state are logged.
        metrics: Where ended jobs are counted.
        start: Starts the process of a job.
        tracing: Where jobs are traced.
        turn: Taken while a job's process runs, if models share the machine; a job waits for it.
    """

    def __init__(
        self,
        model: Model,
        book: Path,
        work: Path,
        *,
        claim: Callable[[], None],
        weights: Path | None,
        seconds: float,
        threads: int,
        log: Log,
        metrics: Metrics,
        start: Start = start_process,
        tracing: NoTracing | None = None,
        turn: threading.Semaphore | None = None,
    ) -> None:
        self._tracing, self._turn = tracing or NoTracing(), turn or threading.Semaphore()
        self._model, self._book, self._work, self._weights = model, book, work, weights
        self._claim = claim
        self._seconds, self._threads, self._start = seconds, threads, start
        self._log, self._metrics = log, metrics
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._reserved = False
        self._running: _Running | None = None
        self._load_jobs()

    # --- looking ----------------------------------------------------------------------------------

    def all(self) -> list[dict[str, Any]]:
        """Every job, the newest first."""
        with self._lock:
            return [job.shown() for job in reversed(self._jobs.values())]

    def one(self, job_id: str) -> dict[str, Any]:
        """The job of this id."""
        with self._lock:
            if job_id not in self._jobs:
                raise RefusalError(404, "there is no such job: GET /jobs lists them")
            return self._jobs[job_id].shown()

    @property
    def active(self) -> bool:
        """Whether a job is queued, running, or being uploaded."""
        running = self._running
        # One that is shown as ended must not be in the way of the next, though its thread has not ended yet.
        return self._reserved or (running is not None and running.job.state not in ENDED)

    # --- starting ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[Path]:
        """Reserve the next job and a folder for its images; without `begin` both are released at the end."""
        with self._lock:
            if self.active:
                raise RefusalError(
                    409, "another job is being submitted or is running: wait until it ends, or cancel it"
                )
            self._reserved = True
        folder = self._work / f"{datetime.now(timezone.utc):{_WHEN}}"
        try:
            private_folder(self._work)
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            try:
                if folder.name not in self._jobs:  # thousands of files may take a while
                    await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            finally:
                self._reserved = False

    def begin(self, folder: Path, order: LearningOrder) -> dict[str, Any]:
        """Start the job whose images are in this folder."""
        served = self._model.served
        job = Job(
            id=folder.name,
            created=_now(),
            classes=list(order.images),
            base=0 if served is None else served.generation,
        )
        written = {
            "model": str(self._model.path),
            "weights": None if self._weights is None else str(self._weights),
            "precision": self._model.precision,
            "folder": str(order.folder),
            "images": dict(order.images),
            "extend": order.extend,
            "tune": order.tune,
            "unreadable": order.unreadable,
            "thumbnails": order.thumbnails,
            "inbox": order.inbox if order.inbox is None else list(order.inbox),
            "threads": self._threads,
        }
        write_atomic(folder / "order.json", json.dumps(written).encode(), durable=False)
        running = _Running(job, folder, span=self._tracing.here())
        with self._lock:
            self._write(job)
            self._jobs[job.id] = job
            self._running = running
        threading.Thread(target=self._run, args=(running,), name="job", daemon=True).start()
        return job.shown()

    # --- ending -----------------------------------------------------------------------------------

    def cancel(self, job_id: str) -> dict[str, Any]:
        """Cancel this job if it has not ended; returns the job."""
        self.one(job_id)
        self._end(job_id, "cancelled", "the job was cancelled: the model is unchanged")
        return self.one(job_id)

    def forget_others(self, known: Collection[str]) -> None:
        """Remove the names of classes that do not exist from jobs that have ended: one of them was forgotten."""
        with self._lock:
            for job in self._jobs.values():
                changed = without_unknown_names(asdict(job), known)
                if job.state in ENDED and changed is not None:
                    for key, value in changed.items():
                        setattr(job, key, value)
                    self._try_to_write(job)

    def stop(self) -> None:
        """End the running job because the server stops."""
        running = self._running
        if running is not None:
            why = "the server was stopped while the job was learning: the model is unchanged, submit the job again"
            self._end(running.job.id, "interrupted", why)

    def _end(self, job_id: str, state: str, why: str, wait: bool = True) -> None:
        with self._lock:
            running = self._running
            if running is None or running.job.id != job_id:
                return
            if running.wanted is None:
                running.wanted, running.why = state, why
            process = running.process
        if process is not None:
            process.terminate()
        if wait and not running.over.wait(GRACE):
            if running.process is not None:
                running.process.kill()
            running.over.wait(GRACE)

    # --- the thread beside the process ------------------------------------------------------------

    def _run(self, running: _Running) -> None:
        with self._tracing.span("job", links=[running.span], id=running.job.id) as span:
            self._work_in_turn(running)
            self._tracing.mark(span, state=running.job.state)

    def _work_in_turn(self, running: _Running) -> None:
        """Wait for the job's turn, unless it is asked to end before, then carry it out."""
        taken = False
        while not taken and running.wanted is None:
            taken = self._turn.acquire(timeout=TURN_PERIOD)
        try:
            self._carry_out(running)
        finally:
            if taken:
                self._turn.release()

    def _carry_out(self, running: _Running) -> None:
        job, result = running.job, {}
        clock = threading.Timer(self._seconds, self._too_long, (job.id,))
        clock.daemon = True
        try:
            clock.start()
            with self._lock:
                if running.wanted is None:
                    running.process = self._start(running.folder / "order.json")
                    self._set_state(job, "running", message="starting")
            if running.process is not None:
                result = self._listen(running)
                running.process.wait()
        except Exception as error:
            self._log.failure(f"job {job.id}", error)
            result = {"error": "the job's process could not be started: see the server's log"}
        finally:
            clock.cancel()
            shutil.rmtree(running.folder, ignore_errors=True)
            try:
                self._conclude(running, result)
            finally:
                with self._lock:
                    if self._running is running:
                        self._running = None
                running.over.set()

    def _listen(self, running: _Running) -> dict[str, Any]:
        """Follow the messages of the process; returns its last one, the result."""
        assert running.process is not None
        last: dict[str, Any] = {}
        while line := running.process.stdout.readline(LINE_BYTES):
            with suppress(ValueError):
                said = json.loads(line)
                if "progress" in said:
                    running.job.progress = float(said["progress"])
                    running.job.message = self._plain(str(said["message"]))
                else:
                    last = said
        return last

    def _too_long(self, job_id: str) -> None:
        why = f"the job took longer than {self._seconds:.0f} seconds: send fewer images, or raise job_seconds"
        self._end(job_id, "failed", why)

    def _conclude(self, running: _Running, result: dict[str, Any]) -> None:
        job = running.job
        learned = result.get("learned") or _learned_since(self._model.path, job)
        if learned is not None:
            self._serve_result(job)
            self._done(job, learned)
        elif "error" in result:
            if "detail" in result:
                self._log.event("error", what=f"job {job.id}", detail=result["detail"])
            self._set_state(job, "failed", message="failed", error=self._plain(result["error"]))
        elif running.wanted is not None:
            self._set_state(job, running.wanted, message=running.wanted, error=running.why)
        else:
            code = running.process.returncode if running.process is not None else None
            why = f"the job's process ended unexpectedly (code {code}), perhaps for lack of memory: try again"
            self._set_state(job, "failed", message="failed", error=why)

    def _done(self, job: Job, learned: dict[str, Any]) -> None:
        notes = [self._plain(str(note)) for note in learned.get("notes", [])]
        shown = {**learned, "notes": notes}
        self._set_state(
            job, "done", message="learned", progress=1.0, generation=learned["generation"], learned=shown
        )

    def _serve_result(self, job: Job) -> None:
        """Serve the new generation before the job is shown as done."""
        try:
            self._model.refresh()
        except Exception as error:
            self._log.failure(f"serving what job {job.id} learned", error)

    def _plain(self, text: str) -> str:
        return without_paths(text, {str(self._model.path): self._model.path.name})

    def _set_state(self, job: Job, state: str, **fields: Any) -> None:
        with self._lock:
            for key, value in fields.items():
                setattr(job, key, value)
            job.ended = _now() if state in ENDED else None
            job.state = state
            self._try_to_write(job)
        if state in ENDED:
            self._metrics.job(state)
        self._log.event("job", id=job.id, state=state, generation=job.generation, error=job.error)

    # --- remembering ------------------------------------------------------------------------------

    def _write(self, job: Job) -> None:
        self._claim()
        write_json(self._book / f"{job.id}.json", asdict(job))
        while len(self._jobs) > JOBS_KEPT:
            oldest = next(iter(self._jobs))
            del self._jobs[oldest]
            remove(self._book / f"{oldest}.json")

    def _try_to_write(self, job: Job) -> None:
        """Write what has happened to a job already: it stays so, whether or not the file can be written."""
        try:
            self._write(job)
        except EaseError as error:
            self._log.failure(f"writing the file of job {job.id}", error)

    def _load_jobs(self) -> None:
        """Load the jobs of earlier servers. One that had not ended was interrupted, unless its result was written."""
        for path in sorted(self._book.glob("*.json")):
            if not JOB_ID.fullmatch(path.stem):
                continue
            try:
                job = Job(**read_json(path, LINE_BYTES))
                JobState.model_validate(job.shown())
            except (EaseError, TypeError, ValueError) as error:
                self._log.event("error", what=f"the file of job {path.stem}", error=str(error))
                continue
            self._jobs[job.id] = job
            if job.state in ENDED:
                continue
            learned = _learned_since(self._model.path, job)
            if learned is not None:
                self._done(job, learned)
            else:
                why = "the server ended while the job was learning: the model is unchanged, submit the job again"
                self._set_state(job, "interrupted", message="interrupted", error=why)


def _learned_since(model: Path, job: Job) -> dict[str, Any] | None:
    """What this job learned, if its generation was written: a process may end before it reports its result."""
    with suppress(EaseError):
        for entry in ModelDirectory(model).manifest().history[-1:]:
            names = {*entry.classes, *entry.extended}
            if entry.generation > job.base and names == set(job.classes) and entry.date >= job.created:
                return entry.as_json()
    return None


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
