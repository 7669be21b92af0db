"""The model that answers: predictions in batches by one thread, and another generation put in between two batches."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ease.app.classifier import Classifier, Prediction
from ease.app.server.telemetry import Log, Metrics
from ease.errors import EaseError
from ease.storage.manifest import Manifest
from ease.storage.model_directory import ModelDirectory

BATCH = 64
PATIENCE = 0.002
"""Seconds to wait for requests that are still being decoded, so that they share a batch."""
WATCH = 1.0
"""Seconds between two looks at whether another process wrote a generation."""

T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """One generation, complete; it never changes while it is used."""

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
class _Wish:
    pixels: Tensor
    top: int
    future: Future[Answer]


class Model:
    """A model directory that is served.

    Args:
        path: the directory.
        weights: the backbone's file, if it is not the embedded one.
        budget: passes per image; all that the model has when None.
        log: tells of new generations.
        metrics: counts batches.
        batch: images that go through the model together, at most.
    """

    def __init__(
        self,
        path: Path,
        weights: Path | None = None,
        *,
        budget: int | None = None,
        log: Log,
        metrics: Metrics,
        batch: int = BATCH,
    ) -> None:
        self.path = path
        self.failure: EaseError | None = None
        self.when_failed: Callable[[], None] = lambda: None
        self._weights, self._budget = weights, budget
        self._log, self._metrics, self._batch = log, metrics, batch
        self._directory = ModelDirectory(path)
        self._served: Served | None = None
        self._wishes: queue.SimpleQueue[_Wish | None] = queue.SimpleQueue()
        self._kept: _Wish | None = None
        self._count = threading.Lock()
        self._waiting = 0  # admitted and not answered yet
        self._decoding = 0  # of these, not yet in the queue
        self._changes = threading.RLock()
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._predict_all, name="predict", daemon=True),
            threading.Thread(target=self._watch, name="watch", daemon=True),
        ]

    def start(self) -> None:
        """Load the model in the background, then answer."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Answer what is waiting, then end."""
        self._stopped.set()
        self._wishes.put(None)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    @property
    def served(self) -> Served | None:
        """What answers now; None until it is loaded."""
        return self._served

    # --- predicting -------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests for predictions that are not answered yet."""
        return self._waiting

    @contextmanager
    def admitted(self, most: int) -> Iterator[bool]:
        """Around one request for predictions, from its arrival to its answer. False if too many are here already."""
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

    def submit(self, pixels: Tensor, top: int) -> Future[Answer]:
        """Predictions for images that `Classifier.pixels` made ready, [N, 3, s, s]."""
        future: Future[Answer] = Future()
        self._wishes.put(_Wish(pixels, top, future))
        return future

    def _predict_all(self) -> None:
        while (wishes := self._collected()) is not None:
            wishes = [wish for wish in wishes if wish.future.set_running_or_notify_cancel()]
            if not wishes:
                continue
            try:
                self._predict(wishes)
            except BaseException as error:  # whatever it was, the next batch may be fine
                for wish in wishes:
                    if not wish.future.done():
                        wish.future.set_exception(error)

    def _predict(self, wishes: list[_Wish]) -> None:
        served = self._served
        if served is None:
            raise EaseError("the model is not loaded yet: try again in a moment")
        logits = served.classifier.score(torch.cat([wish.pixels for wish in wishes]))
        self._metrics.batches.observe(len(logits))
        for wish, own in zip(wishes, logits.split([len(wish.pixels) for wish in wishes]), strict=True):
            wish.future.set_result(Answer(served, served.classifier.read(own, wish.top)))

    def _collected(self) -> list[_Wish] | None:
        """What is waiting, as much as one batch holds, at least one; None at the end."""
        first = self._kept or self._wishes.get()
        self._kept = None
        if first is None:
            return None
        wishes, size, until = [first], len(first.pixels), time.monotonic() + PATIENCE
        while size < self._batch:
            patience = until - time.monotonic() if self._decoding else 0.0
            try:
                wish = (
                    self._wishes.get(timeout=max(patience, 0.0))
                    if patience > 0
                    else self._wishes.get_nowait()
                )
            except queue.Empty:
                break
            if wish is None or size + len(wish.pixels) > self._batch:
                self._keep(wish)
                break
            wishes.append(wish)
            size += len(wish.pixels)
        return wishes

    def _keep(self, wish: _Wish | None) -> None:
        """For the next batch; the sign to end goes back to where it is waited for."""
        if wish is None:
            self._wishes.put(None)
        else:
            self._kept = wish

    # --- changing ---------------------------------------------------------------------------------

    def change(self, work: Callable[[Classifier], T]) -> T:
        """Change the model on a second object, then serve what came out. One change at a time."""
        with self._changes:
            served = self._served
            if served is None:
                raise EaseError("the model is not loaded yet: try again in a moment")
            result = work(served.classifier.renewed())
            self.refresh()
            return result

    def refresh(self) -> bool:
        """Serve the directory's current generation; True if that is another one than before."""
        with self._changes:
            manifest, before = self._directory.manifest(), self._served
            # Not by number alone: after a rollback and a cleared history a number may come again.
            if before is not None and before.manifest.checksum == manifest.checksum:
                return False
            self._served = self._loaded(before)
            self._log.event(
                "generation",
                generation=self._served.generation,
                classes=len(self._served.classifier.classes),
                before=before and before.generation,
            )
            return True

    def _loaded(self, before: Served | None) -> Served:
        """The current generation beside the one that answers; they share the backbone."""
        while True:
            manifest = self._directory.manifest()
            if before is None:
                classifier = Classifier.open(self.path, self._weights, budget=self._budget)
            else:
                classifier = before.classifier.renewed()
            if self._directory.manifest().checksum == manifest.checksum:
                return Served(classifier, manifest)

    def _watch(self) -> None:
        seen, told = self._version(), ""
        try:
            self.refresh()
        except EaseError as error:
            self.failure = error
        except BaseException as error:
            self._log.failure("loading the model", error)
            self.failure = EaseError(f"the model in {self.path} cannot be loaded: {error}")
        if self.failure is not None:
            self.when_failed()
            return
        while not self._stopped.wait(WATCH):
            if (now := self._version()) == seen:
                continue
            try:
                self.refresh()
                seen, told = now, ""
            except (
                Exception
            ) as error:  # the old generation goes on answering, and the next look may find it mended
                if str(error) != told:
                    told = str(error)
                    self._log.event("generation", error=told)

    def _version(self) -> tuple[int, int, int] | None:
        with suppress(OSError):
            facts = os.stat(self._directory.manifest_path)
            return facts.st_ino, facts.st_mtime_ns, facts.st_size
        return None
