"""Adaptation in the first session only: what ADAM and RanPAC have in common."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ease.backbone import Tuning
from ease.heads import CosineHead
from ease.methods._base import Files, Learner, Subspace
from ease.methods._compaction import unpacked_tuning
from ease.methods._tuned_head import TunedHead, tuned_for
from ease.storage.precision import Packed
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import build_tuning


class FirstSessionSettings(Training):
    """How the copy is tuned on task 1; defaults are the public CIFAR-100 settings."""

    sigma: float = Field(1.0, gt=0, description="where the training head's learned scale starts")


class AdapterSettings(FirstSessionSettings):
    """With an adapter as the tuning."""

    rank: int = Field(64, ge=1, description="projection dim r of the adapter")
    scale: float = Field(0.1, description="of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="inside the adapter, while training")


class FirstSession(Learner):
    """Task 1 trains a tuning with a throw-away head; from then on it is frozen and only features are collected.

    Subclasses implement `collect`, `head`, and the rest of `files` and `load_files`.

    Attributes:
        tuned: the tuning; None while there is none.
        packed: how it is saved, where not in plain fp32.
    """

    Settings = FirstSessionSettings
    shaped_by: ClassVar[tuple[str, ...]] = ()
    """The settings that shape the tuning."""
    with_ptm: ClassVar[bool] = False
    """Whether the PTM itself is a subspace too, in front of the tuned one."""

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.tuned: Tuning | None = None
        self.packed: Packed | None = None
        self._hash = "ptm"

    def adapt(self, task: Task, memory: Memory | None) -> None:
        if self.adapts_to(task):
            self._keep(tuned_for(self.engine, partial(self._new_tuned, task), task, self.settings))
        tunings = [subspace.tuning for subspace in self.subspaces()]
        features = self.engine.features(task.train, tunings, reading=self.reading)
        self.collect(task, features, torch.from_numpy(task.train.labels))

    def adapts_to(self, task: Task) -> bool:
        """Whether the tuning is trained on this task."""
        return self.tuned is None

    def _new_tuned(self, task: Task) -> TunedHead:
        draw = generator(self.engine.seed, "init", task.index)
        config = {name: getattr(self.settings, name) for name in self.shaped_by}
        tuning = build_tuning(self.tuning, self.backbone.shape, config, draw, self.backbone.vit)
        head = CosineHead(self.backbone.dim, len(task.classes), self.settings.sigma, draw)
        return TunedHead(self.backbone, tuning, head)

    def _keep(self, tuning: Tuning, packed: Packed | None = None) -> None:
        """It never changes again, so one hash serves for ever, and it is saved as it was loaded."""
        self.tuned = tuning.to(self.backbone.device).freeze()
        self.packed = packed
        self._hash = self.tuned.fingerprint()

    @abstractmethod
    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Take in the task's features [S, N, d], labels [N]."""

    def subspaces(self) -> list[Subspace]:
        ptm = [Subspace(None, "ptm")] if self.with_ptm else []
        return [*ptm, Subspace(self.tuned, self._hash)]

    def files(self) -> tuple[Files, dict[str, Any]]:
        if self.tuned is None:
            return {}, {}
        packed = self.packed or Packed(self.tuned.state_dict())
        spec = {"kind": self.tuned.kind, "config": self.tuned.config(), **packed.spec()}
        return {"subspaces/0000": dict(packed.tensors)}, {"subspace": spec}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        if "subspace" in meta:
            spec = meta["subspace"]
            packed = Packed.of(files["subspaces/0000"], spec)
            tuning = unpacked_tuning(spec["kind"], self.backbone, spec["config"], packed)
            self._keep(tuning, packed if packed.spec() else None)  # plain weights need no second copy

    def trained(self) -> list[int]:
        """Per task: the tuning and the head that was thrown away at task 1, nothing later."""
        if self.tuned is None:
            return [0] * len(self.task_sizes)
        head = self.task_sizes[0] * self.backbone.dim + 1
        return [self.tuned.parameter_count() + head] + [0] * (len(self.task_sizes) - 1)

    def tuned_weights(self) -> int:
        """Weights of the tuning that are kept."""
        return 0 if self.tuned is None else self.tuned.parameter_count()
