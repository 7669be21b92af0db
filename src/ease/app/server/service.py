"""Everything that runs while a model is served, independent of HTTP."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ease.app.activity import Activity
from ease.app.inbox import Inbox
from ease.app.job_book import job_book
from ease.app.server.decoding import Decoders
from ease.app.server.guard import check_token, without_paths
from ease.app.server.jobs import Jobs, Start, start_process
from ease.app.server.limits import Limits
from ease.app.server.model import Model, Served
from ease.app.server.refusals import RefusalError
from ease.app.server.scoring import Scorer
from ease.app.server.shared import SharedResources
from ease.app.server.telemetry import Log, Metrics, resident_bytes
from ease.app.server.tracing import NoTracing
from ease.app.server.watching import activity_text
from ease.app.server.work_folder import private_folder
from ease.app.unsure import Groups
from ease.errors import EaseError
from ease.storage.contents import read_json, write_json
from ease.storage.files import make_folder
from ease.storage.lock import BusyError, WriterLock
from ease.storage.model_directory import ModelDirectory
from ease.training.hardware import AskedPrecision, app_precision

PREFIX = "ease-serve-"
DECODERS = min(4, os.cpu_count() or 1)
"""Threads that decode images for predictions; as many check images for learning."""
EXPLAINERS = 2
"""Threads that explain; the passes through the model are made by the thread that predicts, one at a time."""
WRITERS = 4
"""Threads that write uploads to disk."""


class Service:
    """A served model with its jobs; a context manager.

    The folder MODEL.jobs beside the model holds the list of jobs, and the path of the work folder, so that the next
    server can remove the images that a killed one left there.

    Args:
        model: Model directory.
        weights: Weights file of the backbone, if it is not the embedded one.
        budget: Passes per image when predicting; all that the model has if None.
        precision: What the backbone computes in, as for `Classifier.open`; learning, too.
        host: Address that the server listens on.
        token: Token that changes need; without one, the host must be this machine.
        work: Folder for uploads while they are needed; the system's temporary folder if None.
        limits: Limits of requests and jobs.
        inbox: Keep photos whose answers are corrected in the folder MODEL.inbox, until they are learned.
        collect_unsure: Photos that the model is unsure of and that are kept there per UTC day.
        log: Where events are logged.
        start: Starts the process of a job.
        tracing: Where requests, batches and jobs are traced.
        shared: What it has in common with other models of the process.
        scorer: Where batches are scored; in this process if None.
    """

    def __init__(
        self,
        model: Path,
        *,
        weights: Path | None = None,
        budget: int | None = None,
        precision: AskedPrecision | None = None,
        host: str = "127.0.0.1",
        token: str | None = None,
        work: Path | None = None,
        limits: Limits | None = None,
        inbox: bool = False,
        collect_unsure: int = 0,
        log: Log | None = None,
        start: Start = start_process,
        tracing: NoTracing | None = None,
        shared: SharedResources | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        check_token(host, token)
        self.path = model.resolve()
        self.host, self.token, self.limits = host, token, limits or Limits()
        self.log, self.metrics = log or Log(), Metrics()
        self.tracing, self.shared = tracing or NoTracing(), shared or SharedResources(self.limits)
        self._weights = None if weights is None else weights.resolve()
        self._budget = budget
        self._precision = app_precision(precision)
        self._work, self._start, self._scorer = work, start, scorer
        if collect_unsure and not inbox:
            raise EaseError("collecting unsure photos (--collect-unsure) needs the inbox: add --inbox")
        self.keeps, self.collect_unsure = inbox, collect_unsure
        self.inbox, self.groups = Inbox(self.path), Groups()
        self._life = contextlib.ExitStack()
        self.book = job_book(self.path)
        self._lock = WriterLock(self.book)

    def __enter__(self) -> Service:
        ModelDirectory(self.path).manifest()  # a wrong path is reported before anything is created
        with contextlib.ExitStack() as life:
            self._claim(life)
            if self.keeps:
                self.inbox.open()
            self.inbox.settle()
            self.folder = self._own_folder()
            life.callback(shutil.rmtree, self.folder, ignore_errors=True)
            self.uploads = self.folder / "predict"
            private_folder(self.uploads)
            # Separate pools, so that a prediction waits for predictions only.
            self.decoders = Decoders(DECODERS)
            life.callback(self.decoders.stop)
            self.checkers = self._threads(life, DECODERS, "check")
            self.explainers = self._threads(life, EXPLAINERS, "explain")
            self.writers = self._threads(life, WRITERS, "write")
            self.model = Model(
                self.path,
                self._weights,
                budget=self._budget,
                precision=self._precision,
                log=self.log,
                metrics=self.metrics,
                tracing=self.tracing,
                backbones=self.shared.backbones,
                scorer=self._scorer,
            )
            self.jobs = Jobs(
                self.model,
                self.book,
                self.folder / "jobs",
                claim=self._lock.renew,
                weights=self._weights,
                seconds=self.limits.job_seconds,
                threads=max(1, torch.get_num_threads() - 1),
                log=self.log,
                metrics=self.metrics,
                start=self._start,
                tracing=self.tracing,
                turn=self.shared.turn,
            )
            self.model.when_cleared = self.jobs.forget_others
            self.activity = Activity(
                self.book / "activity.json", lambda line: self.log.event("error", what="activity", error=line)
            )
            self.activity.start()
            life.callback(self.activity.stop)
            self.model.start()
            life.callback(self.model.stop)
            life.callback(self.jobs.stop)
            self._life = life.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._life.close()

    @staticmethod
    def _threads(life: contextlib.ExitStack, count: int, name: str) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(count, name)
        life.callback(pool.shutdown, cancel_futures=True)
        return pool

    def _claim(self, life: contextlib.ExitStack) -> None:
        """Allow one server per model: a second one would remove the images that the first one learns from."""
        try:
            life.enter_context(self._lock.hold())
        except BusyError as error:
            raise EaseError(f"another server is serving {self.path}: stop it first, or use it") from error

    def _own_folder(self) -> Path:
        """Create a private folder, and note its path so that the next server can remove it if this one is killed."""
        record = self.book / "work.json"
        with contextlib.suppress(EaseError, KeyError, TypeError, OSError):
            left = Path(read_json(record)["folder"])
            if left.name.startswith(PREFIX) and left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)
        try:
            if self._work is not None:
                make_folder(self._work)
            folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=self._work)).resolve()
        except OSError as error:
            raise EaseError(f"cannot make a folder for uploads ({error}): choose one with --work") from error
        try:
            write_json(record, {"folder": str(folder)})
        except BaseException:
            folder.rmdir()
            raise
        return folder

    def ready(self) -> Served:
        """The generation that answers now; refuses the request if the model is not loaded yet."""
        served = self.model.served
        if served is None:
            raise RefusalError(503, "the model is being loaded: try again in a moment", {"Retry-After": "1"})
        return served

    def open_inbox(self) -> Inbox:
        """The inbox; refuses the request if it is off."""
        if not self.keeps:
            raise RefusalError(409, "the inbox is off: start the server with --inbox")
        return self.inbox

    def inbox_summary(self) -> dict[str, Any]:
        """How many photos are kept, for everybody to see."""
        return {"on": self.keeps, "photos": len(self.inbox), "bytes": self.inbox.total_bytes}

    def plain(self, error: EaseError) -> str:
        """The message of an error without paths of this machine."""
        known = {str(self.path): self.path.name}
        if self._weights is not None:
            known[str(self._weights)] = self._weights.name
        return without_paths(str(error), known)

    def metrics_text(self) -> str:
        """All metrics in the text format of Prometheus."""
        served = self.model.served
        manifest = None if served is None else served.manifest
        return self.metrics.text(self.gauges()) + activity_text(self.activity, manifest)

    def gauges(self) -> dict[str, tuple[str, float]]:
        """Present values for the metrics."""
        served = self.model.served
        found: dict[str, tuple[str, Any]] = {
            "ease_ready": ("1 once the model is loaded", served is not None),
            "ease_predictions_waiting": (
                "requests for predictions that are not answered yet",
                self.model.waiting,
            ),
            "ease_resident_bytes": ("memory used by the server", resident_bytes()),
        }
        if served is not None:
            found["ease_generation"] = ("generation of the model that answers", served.generation)
            found["ease_classes"] = ("number of classes of the model", len(served.classifier.classes))
        return {name: (about, float(value)) for name, (about, value) in found.items()}
