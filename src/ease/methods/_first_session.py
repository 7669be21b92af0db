"""Adaptation in the first session only: the common part of ADAM, RanPAC, LayUP and Strata."""

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
from ease.methods._frozen import FrozenTuning
from ease.methods._tuned_head import TunedHead, train_tuning
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import build_tuning


class FirstSessionSettings(Training):
    """How the tuning is trained on task 1. The defaults are the public settings for CIFAR-100."""

    sigma: float = Field(1.0, gt=0, description="initial value of the training head's learned scale")


class AdapterSettings(FirstSessionSettings):
    """Settings of methods that train an adapter."""

    rank: int = Field(64, ge=1, description="bottleneck width r of the adapter")
    scale: float = Field(0.1, description="factor of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout inside the adapter while training")


class FirstSession(Learner):
    """Task 1 trains a tuning with a head that is discarded; afterwards only features are collected.

    Subclasses implement `collect` and `head`, and extend `files` and `load_files`.

    Attributes:
        frozen: The trained tuning; None before task 1, or if none is trained.
    """

    Settings = FirstSessionSettings
    shaped_by: ClassVar[tuple[str, ...]] = ()
    """The settings that the tuning is built with."""
    with_ptm: ClassVar[bool] = False
    """Whether the pre-trained model itself is a subspace too, before the tuned one."""

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.frozen: FrozenTuning | None = None

    @property
    def tuned(self) -> Tuning | None:
        """The trained tuning, if there is one."""
        return None if self.frozen is None else self.frozen.tuning

    def adapt(self, task: Task, memory: Memory | None) -> None:
        if self.adapts_to(task):
            self.keep(train_tuning(self.engine, partial(self.new_tuned_head, task), task, self.settings))
        tunings = [subspace.tuning for subspace in self.subspaces()]
        features = self.engine.features(task.train, tunings, reading=self.reading)
        self.collect(task, features, torch.from_numpy(task.train.labels))

    def adapts_to(self, task: Task) -> bool:
        """Whether the tuning is trained on this task."""
        return self.frozen is None

    def new_tuned_head(self, task: Task) -> TunedHead:
        """An untrained tuning and its training head."""
        draw = generator(self.engine.seed, "init", task.index)
        config = {name: getattr(self.settings, name) for name in self.shaped_by}
        tuning = build_tuning(self.tuning, self.backbone.shape, config, draw, self.backbone.vit)
        head = CosineHead(self.backbone.dim, len(task.classes), self.settings.sigma, draw)
        return TunedHead(self.backbone, tuning, head)

    def keep(self, tuning: Tuning) -> None:
        """Freeze a trained tuning and use it from now on."""
        self.frozen = FrozenTuning.of(tuning, self.backbone)

    @abstractmethod
    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Add the features [S, N, d] and labels [N] of a task to the method's statistics."""

    def subspaces(self) -> list[Subspace]:
        ptm = Subspace(None, "ptm")
        tuned = ptm if self.frozen is None else Subspace(self.frozen.tuning, self.frozen.hash)
        return [ptm, tuned] if self.with_ptm else [tuned]

    def files(self) -> tuple[Files, dict[str, Any]]:
        if self.frozen is None:
            return {}, {}
        return {"subspaces/0000": dict(self.frozen.packed.tensors)}, {"subspace": self.frozen.spec()}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        if "subspace" in meta:
            self.frozen = FrozenTuning.load(files["subspaces/0000"], meta["subspace"], self.backbone)

    def trained(self) -> list[int]:
        """Per task: the parameters of the tuning and of the discarded head at task 1, and 0 later."""
        if self.tuned is None:
            return [0] * len(self.task_sizes)
        head = self.task_sizes[0] * self.backbone.dim + 1
        return [self.tuned.parameter_count() + head] + [0] * (len(self.task_sizes) - 1)

    def tuned_weights(self) -> int:
        """Number of parameters of the tuning that are stored."""
        return 0 if self.tuned is None else self.tuned.parameter_count()
