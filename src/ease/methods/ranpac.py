"""RanPAC (McDonnell et al., NeurIPS 2023): ridge regression on random features of a model adapted once."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from ease.heads.ridge import RidgeHead
from ease.methods._base import Costs, Files
from ease.methods._first_session import AdapterSettings, FirstSession
from ease.methods._registry import register
from ease.streams import Task
from ease.training.randomness import permutation, uniforms

RIDGES = [10.0**power for power in range(-8, 9)]
ROWS = 1024
"""Images projected at a time; with 10,000 random features in fp64 each takes 80 kB."""


class RanpacSettings(AdapterSettings):
    """Settings of RanPAC. The adapter is trained as in `adam-adapter`."""

    projection: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="number of random features M; auto: 10,000, or 2,000 for a backbone of width 192 or less",
    )
    held_out: float = Field(0.2, gt=0, lt=1, description="share of a task's images on which lambda is chosen")


@register()
class Ranpac(FirstSession):
    """`logits = h W` with h = ReLU(phi*(x) R), R ~ N(0, 1) fixed, and W = (G + lambda I)^-1 C.

    The Gram matrix G = sum h h^T decorrelates the class sums C. Both are sums over images, so learning task after task
    gives the same result as learning all tasks at once.
    """

    name: ClassVar[str] = "ranpac"
    title: ClassVar[str] = "RanPAC"
    state_title: ClassVar[str] = "sums for the ridge regression"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "adapter tuned on task 1, random ReLU features, ridge regression from running sums"
    Settings = RanpacSettings
    shaped_by = ("rank", "scale", "dropout")

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.width = _width(settings.projection, self.backbone.dim)
        self.seed: int = engine.seed
        self.sums = RidgeHead(self.width)
        self.ridge = 1.0
        self._projection: Tensor | None = None
        self._weights: Tensor | None = None

    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        """Choose lambda on images held out of this task, then add these images as well."""
        self.sums.grow(len(task.classes))
        order = torch.from_numpy(permutation(len(labels), self.engine.seed, "held out", task.index))
        held = min(math.ceil(self.settings.held_out * len(labels)), len(labels) - 1)
        out, rest = order[:held], order[held:]
        self._add(features[0, rest], labels[rest])
        if held:  # a task of one image keeps the previous lambda
            self.ridge = self.sums.best_ridge(RIDGES, self.project(features[0, out]), labels[out])
        self._add(features[0, out], labels[out])
        self._weights = None

    def _add(self, features: Tensor, labels: Tensor) -> None:
        for some, theirs in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            self.sums.add(self.project(some), theirs)

    def project(self, features: Tensor) -> Tensor:
        """[N, d] -> ReLU(f R), [N, M] in fp64."""
        if self._projection is None:
            self._projection = _normals(self.backbone.dim, self.width, self.seed)
        return (features.double() @ self._projection.to(features.device)).relu_()

    def head(self, features: Tensor) -> Tensor:
        if self._weights is None:
            self._weights = self.sums.solve([ridge for ridge in RIDGES if ridge >= self.ridge])
        return (self.project(features[0]) @ self._weights.to(features.device)).float()

    def files(self) -> tuple[Files, dict[str, Any]]:
        """R is drawn from its seed and W follows from the sums, so neither is stored."""
        files, meta = super().files()
        files[f"learner/{len(self.task_sizes) - 1:04d}"] = self.sums.state()
        return files, {**meta, "projection_seed": self.seed, "ridge": self.ridge}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        super().load_files(files, meta)
        self.seed, self.ridge = meta["projection_seed"], meta["ridge"]
        self.sums.load_state(files[f"learner/{len(self.task_sizes) - 1:04d}"])
        self._projection = self._weights = None

    def costs(self) -> Costs:
        sums = self.width * (self.width + 1) // 2 + self.width * self.classes
        return Costs(self.trained(), self.tuned_weights() + sums)


def _width(projection: int | str, dim: int) -> int:
    if projection == "auto":
        return 10_000 if dim > 192 else 2_000
    return int(projection)


def _normals(rows: int, columns: int, seed: int) -> Tensor:
    """R ~ N(0, 1), [d, M], by Box-Muller from our own uniforms, which do not depend on library versions."""
    first, second = np.split(uniforms(rows, 2 * columns, seed, "projection"), 2, axis=1)
    return torch.from_numpy(np.sqrt(-2 * np.log1p(-first)) * np.cos(2 * np.pi * second))
