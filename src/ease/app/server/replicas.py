"""Replicas of a served model on a Ray cluster: the server puts batches together, the replicas score them.

The server decides for each batch which generation scores it, and replicas keep the one before. A new generation is
announced to them when it is durable; each loads it between two batches; when all have it, the server names it for the
batches that follow. So the generations of the answers never go back, on any connection.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ease
from ease.app.classifier import Classifier
from ease.app.server.telemetry import Log
from ease.cluster import import_ray, node_name
from ease.errors import EaseError, one_line
from ease.experiments.predictor import PredictionCancelledError
from ease.storage.model_directory import ModelDirectory
from ease.training.hardware import AskedPrecision, Precision, app_precision

LOOK = 0.2
"""Seconds between two looks at whether a batch is still wanted, or a replica has caught up."""
SAY_AFTER = 20.0
"""Seconds after which the log says that a replica still waits for a node."""
MODEL_MEMORY = 2**30
"""Bytes that a replica asks a node for."""


class Replicas:
    """A number of replicas, those that are lost replaced by new ones; a `Scorer`.

    Args:
        model: The model directory, which all nodes must see.
        count: Number of replicas.
        weights: Weights file of the backbone, if it is not the embedded one.
        budget: Passes per image; all that the model has if None.
        precision: What the backbone computes in, as for `Classifier.open`. `auto` is decided here, for all replicas.
        log: Where replicas that come and go are logged.
    """

    def __init__(
        self,
        model: Path,
        count: int,
        *,
        weights: Path | None = None,
        budget: int | None = None,
        precision: AskedPrecision | None = None,
        log: Log | None = None,
    ) -> None:
        self.lanes = count
        place = None if weights is None else weights.resolve()
        self._given = (model.resolve(), place, budget, app_precision(precision))
        self._log = log or Log()
        self._ray = import_ray()
        self._lock = threading.Lock()
        self._all: list[Any] = []
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._wanted = ""
        self._failure: EaseError | None = None
        self._stopped = threading.Event()
        self._first = threading.Event()
        self._starting: list[threading.Thread] = []

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in list(self._starting):  # Ray ends a process that uses it after the connection is closed
            thread.join()
        with self._lock:
            for replica in self._all:
                with contextlib.suppress(Exception):
                    self._ray.kill(replica)

    def logits(
        self, classifier: Classifier, checksum: str, pixels: Tensor, cancelled: Callable[[], bool]
    ) -> Tensor:
        """See `Scorer`. A batch whose replica is lost is scored by another one."""
        content = pixels.numpy()
        while not (cancelled() or self._stopped.is_set()):
            try:
                replica = self._free.get(timeout=LOOK)
            except queue.Empty:
                continue
            try:
                found = self._wait(replica.logits.remote(checksum, content), cancelled)
            except PredictionCancelledError:
                self._free.put(replica)
                raise
            except self._ray.exceptions.RayTaskError as error:
                self._free.put(replica)
                raise _cause(error) from error
            except self._ray.exceptions.RayError as error:
                self._lost(replica, error)
                continue
            self._free.put(replica)
            if found is not None:
                return torch.from_numpy(np.array(found))
            time.sleep(LOOK)  # it was started meanwhile and knows only a generation that is not announced yet
        raise PredictionCancelledError

    def take_over(self, checksum: str, cancelled: Callable[[], bool]) -> bool:
        """See `Scorer`. Returns when every replica that is there has loaded it; later ones load it by themselves."""
        with self._lock:
            first, self._wanted = not self._wanted, checksum
            present = list(self._all)
        if first:
            for _ in range(self.lanes):
                self._start()
            while not self._first.wait(LOOK):
                if self._failure is not None:
                    raise self._failure
                if cancelled() or self._stopped.is_set():
                    raise PredictionCancelledError
        newest = ModelDirectory(self._given[0]).manifest().checksum
        asked = [(replica, replica.take_over.remote()) for replica in present]
        for replica, loading in asked:
            try:
                newest = self._wait(loading, cancelled) if newest == checksum else newest
            except self._ray.exceptions.RayTaskError as error:
                raise _cause(error) from error
            except self._ray.exceptions.RayError as error:
                self._lost(replica, error)
        return newest == checksum

    def _start(self) -> None:
        thread = threading.Thread(target=self._join, name="replica", daemon=True)
        self._starting = [one for one in self._starting if one.is_alive()] + [thread]
        thread.start()

    def _wait(self, reference: Any, cancelled: Callable[[], bool]) -> Any:
        """The result of a call, or `PredictionCancelledError` when it is not wanted any more or the server stops."""
        while not (self._stopped.is_set() or cancelled()):
            with contextlib.suppress(self._ray.exceptions.GetTimeoutError):
                return self._ray.get(reference, timeout=LOOK)
        raise PredictionCancelledError

    def _patience(self) -> Callable[[], bool]:
        """Never ends a wait, and says once that a replica waits for a node."""
        said, until = False, time.monotonic() + SAY_AFTER

        def look() -> bool:
            nonlocal said
            if not said and time.monotonic() > until:
                said = True
                self._log.event(
                    "replica",
                    state="waiting",
                    message=f"for a node with a free core and {MODEL_MEMORY / 2**30:g} GB of memory",
                )
            return False

        return look

    def _join(self) -> None:
        """Start a replica and let it take part once it has the generation that is wanted."""
        kind = self._ray.remote(_Replica).options(num_cpus=1, memory=MODEL_MEMORY, max_restarts=0)
        replica = kind.remote(*self._given, ease.__version__)
        try:
            node = self._wait(replica.node.remote(), self._patience())
            while not self._stopped.is_set():
                loaded = self._wait(replica.take_over.remote(), _never)
                with self._lock:
                    if loaded == self._wanted:
                        self._all.append(replica)
                        break
                time.sleep(LOOK)
        except self._ray.exceptions.RayTaskError as error:
            self._failure = _cause(error)
            self._log.event("replica", state="failed", error=str(self._failure))
            if self._first.is_set():
                self._again()
            return
        except Exception as error:
            if self._stopped.is_set():
                self._ray.kill(replica)
            else:
                self._log.event("replica", state="lost", error=one_line(str(error))[:200])
                self._again()
            return
        self._log.event("replica", state="ready", node=node)
        self._free.put(replica)
        self._first.set()

    def _again(self) -> None:
        if not self._stopped.wait(1.0):
            self._start()

    def _lost(self, replica: Any, error: Exception) -> None:
        """Put another replica in the place of one that is gone, once."""
        with self._lock:
            if self._stopped.is_set() or replica not in self._all:
                return
            self._all.remove(replica)
        self._log.event("replica", state="lost", error=one_line(str(error))[:200])
        self._start()


def _never() -> bool:
    return False


def _cause(error: Any) -> EaseError:
    cause = getattr(error, "cause", None) or error
    return (
        cause
        if isinstance(cause, EaseError)
        else EaseError(f"a replica failed: {one_line(str(cause))[:400]}")
    )


class _Replica:  # pragma: no cover - on a node
    """Scores batches with one of the last two generations that it has loaded."""

    def __init__(
        self, model: Path, weights: Path | None, budget: int | None, precision: Precision, version: str
    ) -> None:
        self._node = node_name()
        if version != ease.__version__:
            raise EaseError(
                f"{self._node} has ease {ease.__version__} in place of {version}: install the same"
            )
        torch.set_num_threads(1)
        self._given, self._directory = (model, weights, budget, precision), ModelDirectory(model)
        self._loaded: dict[str, Classifier] = {}

    def node(self) -> str:
        """What people call the node."""
        return self._node

    def take_over(self) -> str:
        """Load the current generation and return the checksum of its manifest."""
        model, weights, budget, precision = self._given
        while (checksum := self._directory.manifest().checksum) not in self._loaded:
            before = next(reversed(self._loaded.values()), None)
            if before is None:
                found = Classifier.open(model, weights, budget=budget, precision=precision)
            else:
                found = before.reopened()
            if self._directory.manifest().checksum == checksum:
                self._loaded[checksum] = found
                while len(self._loaded) > 2:
                    del self._loaded[next(iter(self._loaded))]
        return checksum

    def logits(self, checksum: str, pixels: np.ndarray) -> np.ndarray | None:
        """Score a batch with this generation; None if it is not there."""
        classifier = self._loaded.get(checksum)
        if classifier is None:
            return None
        return classifier.predictor.logits(torch.from_numpy(np.array(pixels))).numpy()
