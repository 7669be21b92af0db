"""Common base of methods whose head is trained again on features drawn from a Gaussian per class: SLCA and SSIAT."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ease.heads.alignment import AlignmentSettings, align
from ease.heads.class_gaussians import ClassGaussians
from ease.heads.linear import GrowingCosine, GrowingLinear
from ease.methods._base import Files
from ease.methods._sequential import OneTuning
from ease.methods._tuned_head import TunedHead
from ease.streams import Task
from ease.training.engine import Engine
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator


class AlignedSettings(AlignmentSettings, Training):
    """Training and alignment."""


def align_with(
    engine: Engine, head: nn.Module, gaussians: ClassGaussians, settings: Any, task: Task, sizes: list[int]
) -> None:
    """Align a head after a task of index `task.index`; `sizes` are those of all tasks including this one."""
    with engine.ledger.timing("train"):
        align(
            head.cpu(),
            gaussians,
            settings,
            sizes,
            lambda epoch: generator(engine.seed, "align", task.index, epoch),
        )


class AlignedTuning(OneTuning):
    """One tuning that every task trains together with rows for its own classes; then all rows are aligned.

    The rows of old classes are no part of a task's training. After it, the Gaussians of the new classes are measured
    on the task's images, and from the second task on all rows are trained on features drawn from the Gaussians of all
    classes. Nothing of the alignment reaches the tuning.
    """

    state_title: ClassVar[str] = "tuning, head and class means"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.linear = self.new_head()  # type: ignore[assignment]
        self.gaussians = ClassGaussians.of(self.backbone.dim, settings)

    @abstractmethod
    def new_head(self) -> GrowingLinear | GrowingCosine:
        """A head without rows."""

    @abstractmethod
    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a task's training; logits and labels are those of the task's classes, counted from 0."""

    def rate_factors(self) -> dict[str, float] | None:
        """Factors of the learning rate; see `Engine.fit`."""
        return None

    def training_of(self, task: Task) -> Training:
        return self.settings

    def before_training(self, task: Task) -> None:
        """Called before each task is trained."""

    def after_training(self, task: Task) -> None:
        """Called after each training, before the Gaussians of the new classes are added."""

    def adapt(self, task: Task, memory: Memory | None) -> None:
        self.before_training(task)
        rows, first = self.new_head(), task.classes.start
        rows.grow(len(task.classes), generator(self.engine.seed, "init", task.index))
        module = TunedHead(self.backbone, self.tuned, rows)

        def among_its_own(logits: Tensor, labels: Tensor) -> Tensor:
            return self.loss(logits, labels - first)

        self.follow(module, among_its_own, task.train, task, rate_factors=self.rate_factors())
        self.linear.append(rows)  # type: ignore[arg-type]
        self.after_training(task)
        features = self.engine.features(task.train, [self.tuned])[0]
        self.gaussians.add(features, torch.from_numpy(task.train.labels), task.classes)
        if task.index > 0:
            sizes = [*self.task_sizes, len(task.classes)]
            align_with(self.engine, self.linear, self.gaussians, self.settings, task, sizes)

    def tensors(self) -> Files:
        spreads = {f"prototypes/{t:04d}": self.gaussians.spreads(c) for t, c in enumerate(self.positions())}
        return {**spreads, **super().tensors()}

    def load_tensors(self, files: Files) -> None:
        super().load_tensors(files)
        spreads = [files[f"prototypes/{t:04d}"] for t in range(len(self.task_sizes))]
        self.gaussians.load(files[self._file()]["gaussians/means"], spreads)

    def head_tensors(self) -> Files:
        return {**super().head_tensors(), "gaussians": {"means": self.gaussians.means}}
