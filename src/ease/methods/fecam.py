"""FeCAM (Goswami et al., NeurIPS 2023): the frozen pre-trained model and a Gaussian per class. Nothing is trained."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.heads.gaussian import GaussianHead
from ease.methods._base import Costs, Files, Forgetting, Learner, Settings, Subspace
from ease.methods._registry import register
from ease.streams import ImageSet, Task
from ease.training.memory import Memory


class FecamSettings(Settings):
    """How covariances are shrunk. The defaults are the released settings for a ViT on CIFAR-100."""

    alpha1: float = Field(
        1.0,
        ge=0,
        description="shrinkage of the diagonal of each covariance, relative to the mean of its diagonal",
    )
    alpha2: float = Field(0.0, ge=0, description="shrinkage of the other entries, relative to their mean")


@register()
class Fecam(Learner):
    """`score_c = -(z - mu_c)^T N_c^-1 (z - mu_c)` with z = phi(x) / |phi(x)|, mu_c the mean of z in class c.

    N_c is the covariance of z in class c, shrunk and scaled to a correlation matrix.

    Attributes:
        gaussians: Mean, image count and scatter of z for every class.
    """

    name: ClassVar[str] = "fecam"
    title: ClassVar[str] = "FeCAM"
    idea: ClassVar[str] = "frozen PTM, class means, Mahalanobis distance with a covariance for each class"
    Settings = FecamSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.gaussians = GaussianHead(self.backbone.dim, settings.alpha1, settings.alpha2)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        self.gaussians.grow(len(task.classes))
        self.extend(task.train)

    def extend(self, images: ImageSet) -> None:
        """The result is the same as if these images had been among the first ones of their class."""
        features = self.engine.features(images, [None])[0]
        self.gaussians.add(F.normalize(features, dim=-1), torch.from_numpy(images.labels))

    def forget(self, position: int) -> Forgetting:
        """Remove the statistics of a class. Classes share none, so nothing remains and no other class changes."""
        self.gaussians.forget(position)
        self.task_sizes[self.task_of(position)] -= 1
        return Forgetting(0.0, "")

    def subspaces(self) -> list[Subspace]:
        return [Subspace(None, "ptm")]

    def head(self, features: Tensor) -> Tensor:
        return self.gaussians.scores(F.normalize(features[0], dim=-1))

    def files(self) -> tuple[Files, dict[str, Any]]:
        files: Files = {}
        for task, classes in enumerate(self.positions()):
            part = slice(classes.start, classes.stop)
            state = self.gaussians.state()
            files[f"prototypes/{task:04d}"] = {name: state[name][part].clone() for name in state}
        return files, {}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        empty = self.gaussians.state()
        parts = [files[f"prototypes/{task:04d}"] for task in range(len(self.task_sizes))]
        self.gaussians.load_state(
            {name: torch.cat([empty[name], *(part[name] for part in parts)]) for name in empty}
        )

    def costs(self) -> Costs:
        dim = self.backbone.dim
        return Costs([0] * len(self.task_sizes), self.classes * (dim + dim * (dim + 1) // 2))
