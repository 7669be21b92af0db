"""What the models of one process have in common: loaded backbones, the turn of jobs, and the bodies being received."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

from ease.app.server.exchange import Arrivals
from ease.app.server.limits import Limits
from ease.backbone import Backbone
from ease.methods import backbone_of
from ease.storage.model_directory import ModelDirectory


class Backbones:
    """Frozen backbones that are in memory. Models of equal weights and input size use the same object.

    A backbone never changes, and is called by several threads anyway. One that no model uses any more is freed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.loading = threading.Lock()
        """Held while a model is loaded: one at a time, since that takes several times its memory."""
        self._known: weakref.WeakValueDictionary[str, Backbone] = weakref.WeakValueDictionary()

    def of(self, directory: ModelDirectory, weights: Path | None) -> Backbone:
        """The backbone of a model, loaded if it is not there yet."""
        with self._lock:
            key = directory.manifest().backbone.model_dump_json()
            found = self._known.get(key)
            if found is None:
                found = backbone_of(directory, weights)
                # Under what it is, not what the manifest says: opening the model compares the two.
                if found.weights_hash == directory.manifest().backbone.weights_hash:
                    self._known[key] = found
            return found


class SharedResources:
    """What the models of one process share.

    Attributes:
        backbones: See `Backbones`.
        turn: Held by the job that learns: one at a time, since each is a process with a model of its own.
        arrivals: All requests whose bodies are being received.
    """

    def __init__(self, limits: Limits) -> None:
        self.backbones = Backbones()
        self.turn = threading.Semaphore()
        self.arrivals = Arrivals(limits.receiving)
