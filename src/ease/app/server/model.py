"""The served model: one thread predicts in batches, and a new generation is exchanged between two batches."""

from __future__ import annotations

import itertools
import math
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from ease.app.classifier import Classifier
from ease.app.prediction import Prediction
from ease.app.server.pending import FairQueue, PendingWork, Turn
from ease.app.server.refusals import stopping
from ease.app.server.scoring import OwnScorer, Scorer
from ease.app.server.shared import Backbones
from ease.app.server.telemetry import Log, Metrics, return_memory
from ease.app.server.tracing import NoTracing
from ease.errors import EaseError
from ease.experiments.predictor import PredictionCancelledError
from ease.storage.manifest import Manifest
from ease.storage.model_directory import ModelDirectory
from ease.training.hardware import Precision

BATCH = 64
LAST = math.inf
"""The size of the signal to stop: it comes after all that waits."""
BATCH_WAIT = 0.002
"""Seconds to wait for requests that are still being decoded, so that they share a batch."""
WATCH_PERIOD = 1.0
"""Seconds between two checks whether another process wrote a generation."""

T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """One generation of the model, which never changes while it is used."""

    classifier: Classifier
    manifest: Manifest

    @property
    def generation(self) -> int:
        """Its number."""
        return self.classifier.generation


@dataclass(frozen=True)
class Answer:
    """Predictions, and the generation that made them."""

    served: Served
    predictions: list[Prediction]


@dataclass(frozen=True)
class PendingPrediction:
    """Images that wait for the prediction thread.

    Attributes:
        pixels: [N, 3, s, s], as the backbone reads them.
        top: Number of classes to name for each image.
        digests: Content hash of each image, by which photos that people have named are found; none are if empty.
        future: Where the answer goes.
        abandoned: Set when the client has left, so that its images need not be scored.
        span: The span of its request, if there are traces.
    """

    pixels: Tensor
    top: int
    digests: Sequence[str]
    future: Future[Answer]
    abandoned: threading.Event
    span: Any = None


Pending = PendingPrediction | PendingWork | None
"""What waits for the prediction thread; None is the signal to stop."""


class Model:
    """A model directory that is served.

    Args:
        path: The model directory.
        weights: Weights file of the backbone, if it is not the embedded one.
        budget: Passes per image; all that the model has if None.
        precision: What the backbone computes in, as for `Classifier.open`.
        log: Where new generations are logged.
        metrics: Where batches are counted.
        batch: Largest number of images that go through the model together.
        tracing: Where batches are traced.
        backbones: Those that are loaded already, of other models too; its own if None.
        scorer: Where batches are scored; in this process if None.
    """

    def __init__(
        self,
        path: Path,
        weights: Path | None = None,
        *,
        budget: int | None = None,
        precision: Precision | None = None,
        log: Log,
        metrics: Metrics,
        batch: int = BATCH,
        tracing: NoTracing | None = None,
        backbones: Backbones | None = None,
        scorer: Scorer | None = None,
    ) -> None:
        self.path = path
        self._scorer: Scorer = scorer or OwnScorer()
        self.failure: EaseError | None = None
        self.when_failed: Callable[[], None] = lambda: None
        self.when_cleared: Callable[[Collection[str]], None] = lambda known: None
        """Called with the names of the classes there are once earlier generations are gone: a class was forgotten."""
        self._weights, self._budget, self.precision = weights, budget, precision
        self._log, self._metrics, self._batch = log, metrics, batch
        self._tracing, self._backbones = tracing or NoTracing(), backbones or Backbones()
        self._directory = ModelDirectory(path)
        self._served: Served | None = None
        self._queue: FairQueue[Pending] = FairQueue()
        self._arrivals = itertools.count()
        self._count = threading.Lock()
        self._waiting = 0  # admitted and not answered yet
        self._decoding = 0  # of these, not yet in the queue
        self._changes = threading.RLock()
        self._stopped = threading.Event()
        self._assembling = threading.Lock()
        self._threads = [
            *(
                threading.Thread(target=self._predict_all, name="predict", daemon=True)
                for _ in range(self._scorer.lanes)
            ),
            threading.Thread(target=self._watch, name="watch", daemon=True),
        ]

    def start(self) -> None:
        """Load the model in the background, then answer."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Answer the requests that wait, end, and free the model: FastAPI keeps its routes and what they refer to."""
        self._stopped.set()
        self._put(LAST, None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        self._served = None

    @property
    def served(self) -> Served | None:
        """The generation that answers now; None until it is loaded."""
        return self._served

    # --- predicting -------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests for predictions that are not answered yet."""
        return self._waiting

    @contextmanager
    def admitted(self, most: int) -> Iterator[bool]:
        """Around one request for predictions, from its arrival to its answer. False if there are too many already."""
        with self._count:
            free = self._waiting < most
            self._waiting += free
        try:
            yield free
        finally:
            with self._count:
                self._waiting -= free

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Around what comes before `submit`."""
        with self._count:
            self._decoding += 1
        try:
            yield
        finally:
            with self._count:
                self._decoding -= 1

    def submit(
        self,
        pixels: Tensor,
        top: int,
        abandoned: threading.Event | None = None,
        digests: Sequence[str] = (),
    ) -> Future[Answer]:
        """Queue images that `Classifier.pixels` prepared, [N, 3, s, s]; set `abandoned` if the client has left."""
        future: Future[Answer] = Future()
        self._put(
            len(pixels),
            PendingPrediction(
                pixels, top, digests, future, abandoned or threading.Event(), self._tracing.here()
            ),
        )
        return future

    def between(self, work: Callable[[], T]) -> T:
        """Do a short piece of work on the prediction thread, between two batches, and wait for its result.

        Longer work calls this for each of its pieces: predictions that arrive meanwhile wait for one piece only, and
        nothing else uses the model at the same time.
        """
        one = PendingWork(work)
        self._put(self._batch, one)  # it takes about as long as a full batch
        while not wait([one.future], timeout=1).done:
            if not self._threads[0].is_alive():
                raise stopping()
        result: T = one.future.result()
        return result

    def _put(self, images: float, pending: Pending) -> None:
        self._queue.put((Turn(images, next(self._arrivals)), pending))

    def _predict_all(self) -> None:
        while (pending := self._assembled()) is not None:
            pending = [one for one in pending if one.future.set_running_or_notify_cancel()]
            if not pending:
                continue
            try:
                self._predict(pending)
            except BaseException as error:  # the next batch may be fine
                for one in pending:
                    if not one.future.done():
                        one.future.set_exception(error)

    def _predict(self, pending: list[PendingPrediction]) -> None:
        served = self._served
        if served is None:
            raise EaseError("the model is not loaded yet: try again in a moment")
        with self._tracing.span(
            "batch",
            links=[one.span for one in pending],
            requests=len(pending),
            images=sum(len(one.pixels) for one in pending),
            generation=served.generation,
        ):
            logits = self._scorer.logits(
                served.classifier,
                served.manifest.checksum,
                torch.cat([one.pixels for one in pending]),
                lambda: all(one.abandoned.is_set() for one in pending),
            )
        self._metrics.batches.observe(len(logits))
        for one, own in zip(pending, logits.split([len(one.pixels) for one in pending]), strict=True):
            one.future.set_result(Answer(served, served.classifier.predictions(own, one.top, one.digests)))

    def _assembled(self) -> list[PendingPrediction] | None:
        """The next batch. Several threads that predict at the same time take turns in putting one together."""
        with self._assembling:
            batch = self._next_batch()
            if batch is None:
                self._put(LAST, None)  # for the other threads
            return batch

    def _next_batch(self) -> list[PendingPrediction] | None:
        """Requests that fit into one batch, at least one; waits for the first. None when the server stops."""
        _, first = self._queue.get()
        while isinstance(first, PendingWork):
            first.run()
            _, first = self._queue.get()
        if first is None:
            return None
        pending, size, until = [first], len(first.pixels), time.monotonic() + BATCH_WAIT
        while size < self._batch:
            wait = until - time.monotonic() if self._decoding else 0.0
            try:
                turn, one = self._queue.get(timeout=wait) if wait > 0 else self._queue.get_nowait()
            except queue.Empty:
                break
            if not isinstance(one, PendingPrediction) or size + len(one.pixels) > self._batch:
                self._queue.put_back((turn, one))  # for the next call
                break
            pending.append(one)
            size += len(one.pixels)
        return pending

    # --- changing ---------------------------------------------------------------------------------

    def change(self, work: Callable[[Classifier], T]) -> T:
        """Change the model through a second object, then serve the result. Only one change runs at a time.

        `work` gets the newest generation, which no other process can replace meanwhile: what a request names is looked
        up there, since the one that answers may be older.
        """
        with self._changes:
            served = self._served
            if served is None:
                raise EaseError("the model is not loaded yet: try again in a moment")
            model = served.classifier.reopened()
            with model.changing():
                result = work(model)
            self.refresh()
            return result

    def refresh(self) -> bool:
        """Serve the directory's current generation; True if that is another one than before."""
        with self._changes:
            manifest, before = self._directory.manifest(), self._served
            # The number is not enough: after a rollback and a cleared history it may be used again.
            if before is not None and before.manifest.checksum == manifest.checksum:
                return False
            loaded = self._loaded(before)
            # Announced when it is safe on disk and loaded everywhere: no batch is scored by an older one after that.
            while not self._scorer.take_over(loaded.manifest.checksum, self._stopped.is_set):
                loaded = self._loaded(before)
            if before is not None and before.generation not in self._directory.generations():
                self.when_cleared(loaded.classifier.classes)
            self._served = loaded
            self._log.event(
                "generation",
                generation=self._served.generation,
                classes=len(self._served.classifier.classes),
                precision=self._served.classifier.precision,
                before=before and before.generation,
            )
            del before
            return_memory()
            return True

    def _loaded(self, before: Served | None) -> Served:
        """Load the current generation beside the one that answers; they share the backbone."""
        while True:
            manifest = self._directory.manifest()
            if before is None:
                with self._backbones.loading:
                    frozen = self._backbones.of(self._directory, self._weights)
                    classifier = Classifier.open(
                        self.path,
                        self._weights,
                        budget=self._budget,
                        backbone=frozen,
                        precision=self.precision,
                    )
                    return_memory()
            else:
                classifier = before.classifier.reopened()
            if self._directory.manifest().checksum == manifest.checksum:
                return Served(classifier, manifest)

    def _watch(self) -> None:
        seen, reported = self._version(), ""
        try:
            self.refresh()
        except PredictionCancelledError:  # the server stops before it was ready
            return
        except EaseError as error:
            self.failure = error
        except BaseException as error:
            self._log.failure("loading the model", error)
            self.failure = EaseError(f"the model in {self.path} cannot be loaded: {error}")
        if self.failure is not None:
            self.when_failed()
            return
        while not self._stopped.wait(WATCH_PERIOD):
            if (now := self._version()) == seen:
                continue
            try:
                self.refresh()
                seen, reported = now, ""
            except Exception as error:  # the old generation goes on answering; the next check may succeed
                if str(error) != reported:
                    reported = str(error)
                    self._log.event("generation", error=reported)

    def _version(self) -> tuple[int, int, int] | None:
        with suppress(OSError):
            facts = os.stat(self._directory.manifest_path)
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None
