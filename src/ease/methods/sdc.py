"""SDC (Yu et al., CVPR 2020): old prototypes are moved by the drift that new images show."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.heads import class_means
from ease.heads.linear import GrowingLinear
from ease.methods._base import Files
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings
from ease.streams import ImageSet, Task
from ease.training.memory import Memory


def drift(before: Tensor, after: Tensor, prototypes: Tensor, sigma: float) -> Tensor:
    """How far each prototype has moved, seen through images near it.

    `w_ic = exp(-|before_i - p_c|^2 / 2 sigma^2)`, and the drift of c is the mean of `after_i - before_i` under these
    weights. They are normalised in the log domain: where all images are far away, they would all be 0.

    Args:
        before: [N, d] features of the new task's images before the task was learned.
        after: [N, d] features of the same images afterwards.
        prototypes: [C, d] of the old classes, in the space of `before`.
        sigma: how far the neighbourhood of a prototype reaches.

    Returns:
        [C, d].
    """
    distance = torch.cdist(prototypes.double(), before.double()).square()
    weights = (-distance / (2 * sigma**2)).softmax(dim=1)
    return (weights @ (after - before).double()).float()


class SdcSettings(SequentialSettings):
    """`finetune`'s, and the reach of a prototype."""

    sigma: float = Field(0.3, gt=0, description="reach of a prototype among L2-normalised features")


@register()
class Sdc(OneTuning):
    """Nearest class mean on L2-normalised features of a network that follows every task."""

    name: ClassVar[str] = "sdc"
    title: ClassVar[str] = "SDC"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "nearest class mean; old means follow the drift seen in new images"
    Settings = SdcSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.prototypes = torch.empty(0, self.backbone.dim)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        before = self._unit_features(task.train) if task.index > 0 else None
        # A head of the task's own classes, to be thrown away: only features matter here.
        self.linear = GrowingLinear(self.backbone.dim)
        self.grow(task)

        def among_its_own(logits: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(logits, labels - task.classes.start)

        self.follow(self.model(), among_its_own, task.train, task)
        after = self._unit_features(task.train)
        if before is not None:
            # Onto the moved prototype: what later tasks show is the drift since this stage, so it accumulates.
            self.prototypes += drift(before, after, self.prototypes, self.settings.sigma)
        means, _ = class_means(after[None], torch.from_numpy(task.train.labels), task.classes)
        self.prototypes = torch.cat([self.prototypes, means[0]])

    def _unit_features(self, images: ImageSet) -> Tensor:
        return F.normalize(self.engine.features(images, [self.tuned])[0], dim=-1)

    def head(self, features: Tensor) -> Tensor:
        """The nearer a class mean, the higher its logit: minus the squared distance."""
        unit = F.normalize(features[0], dim=-1)
        return -(unit[:, None] - self.prototypes.to(unit.device)).square().sum(dim=-1)

    def head_tensors(self) -> Files:
        return {"head": {"prototypes": self.prototypes}}

    def load_head(self, parts: Files) -> None:
        self.prototypes = parts["head"]["prototypes"]
