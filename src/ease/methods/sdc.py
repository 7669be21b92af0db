"""SDC (Yu et al., CVPR 2020): old prototypes are moved by the drift of the features of new images."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.heads import class_means
from ease.heads.drift import drift
from ease.heads.linear import GrowingLinear
from ease.methods._base import Files
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings
from ease.streams import ImageSet, Task
from ease.training.memory import Memory


class SdcSettings(SequentialSettings):
    """Settings of SDC, otherwise those of `finetune`."""

    sigma: float = Field(
        0.3, gt=0, description="width of a prototype's neighbourhood among L2-normalised features"
    )


@register()
class Sdc(OneTuning):
    """Nearest class mean on L2-normalised features of a network that is trained on every task."""

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
        # A head for the task's own classes, which is discarded afterwards: only the features are used.
        self.linear = GrowingLinear(self.backbone.dim)
        self.grow(task)

        def among_its_own(logits: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(logits, labels - task.classes.start)

        self.follow(self.model(), among_its_own, task.train, task)
        after = self._unit_features(task.train)
        if before is not None:
            # Added to the moved prototype: later tasks show the drift since this stage, so the drifts accumulate.
            self.prototypes += drift(before, after, self.prototypes, self.settings.sigma)
        means, _ = class_means(after[None], torch.from_numpy(task.train.labels), task.classes)
        self.prototypes = torch.cat([self.prototypes, means[0]])

    def _unit_features(self, images: ImageSet) -> Tensor:
        return F.normalize(self.engine.features(images, [self.tuned])[0], dim=-1)

    def head(self, features: Tensor) -> Tensor:
        """The logit of a class is minus the squared distance to its mean."""
        unit = F.normalize(features[0], dim=-1)
        return -(unit[:, None] - self.prototypes.to(unit.device)).square().sum(dim=-1)

    def head_tensors(self) -> Files:
        return {"head": {"prototypes": self.prototypes}}

    def load_head(self, parts: Files) -> None:
        self.prototypes = parts["head"]["prototypes"]
