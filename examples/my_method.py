"""Nearest class mean in whitened features: a distance counts in units of the spread that all classes share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from ease.heads import class_means
from ease.methods import Costs, Files, Learner, Settings, Subspace
from ease.streams import Task
from ease.training.memory import Memory


class WhitenedSettings(Settings):
    """One number."""

    shrinkage: float = Field(
        0.1, gt=0, le=1, description="of the covariance to a sphere; 1: plain nearest mean"
    )


class Whitened(Learner):
    """`logit_c = m_c^T S^-1 x - m_c^T S^-1 m_c / 2`, with m_c a class mean and S the covariance inside classes."""

    name: ClassVar[str] = "whitened"
    idea: ClassVar[str] = "frozen PTM, nearest class mean under a covariance that all classes share"
    Settings = WhitenedSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.means: list[Tensor] = []  # one [classes of the task, d] per task
        self.scatter = torch.zeros(self.backbone.dim, self.backbone.dim, dtype=torch.float64)
        self.images = 0

    def adapt(self, task: Task, memory: Memory | None) -> None:
        features = self.engine.features(task.train, [None])
        labels = torch.from_numpy(task.train.labels)
        means, _ = class_means(features, labels, task.classes)
        apart = (features[0] - means[0, labels - task.classes.start]).double()
        self.means.append(means[0])
        self.scatter = self.scatter + apart.mT @ apart
        self.images += len(labels)

    def subspaces(self) -> list[Subspace]:
        return [Subspace(None, "ptm")]

    def head(self, features: Tensor) -> Tensor:
        means, spread = torch.cat(self.means).double(), self.scatter / self.images
        size = float(spread.diagonal().mean()) or 1.0  # one image per class has no spread
        sphere = size * torch.eye(len(spread), dtype=spread.dtype)
        weights = torch.linalg.solve(spread.lerp(sphere, self.settings.shrinkage), means.mT)
        return (features[0].double() @ weights - (means.mT * weights).sum(dim=0) / 2).float()

    def files(self) -> tuple[Files, dict[str, Any]]:
        files = {f"means/{task:04d}": {"means": means} for task, means in enumerate(self.means)}
        return {**files, "learner/scatter": {"scatter": self.scatter}}, {"images": self.images}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        self.means = [files[f"means/{task:04d}"]["means"] for task in range(len(self.task_sizes))]
        self.scatter, self.images = files["learner/scatter"]["scatter"], meta["images"]

    def costs(self) -> Costs:
        return Costs([0] * len(self.task_sizes), self.classes * self.backbone.dim + self.scatter.numel())
