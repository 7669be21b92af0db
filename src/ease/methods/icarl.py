"""iCaRL (Rebuffi et al., CVPR 2017): rehearsal, distillation, and the nearest mean of exemplars."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.heads import class_means
from ease.heads.losses import distillation
from ease.methods._base import Files, Kind
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings, WithTeacher
from ease.streams import Task
from ease.training.memory import Memory, joined


class IcarlSettings(SequentialSettings):
    """Settings of public implementations for a pre-trained ViT."""

    schedule: Literal["cosine", "constant"] = "constant"
    temperature: float = Field(2.0, gt=0, description="temperature of both outputs in the distillation")
    distill: float = Field(1.0, ge=0, description="weight of the distillation")


@register()
class Icarl(OneTuning):
    """The linear head is used to train the features (Alg. 3); the class means of exemplars classify (Alg. 1)."""

    name: ClassVar[str] = "icarl"
    title: ClassVar[str] = "iCaRL"
    kind: ClassVar[Kind] = "exemplar-based"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "exemplars and distillation; the nearest mean of exemplars classifies"
    Settings = IcarlSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.means = torch.empty(0, self.backbone.dim)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        assert memory is not None
        self.represent(task, memory)
        memory.remember(task.train, self.engine.features(task.train, [self.tuned])[0])
        self.means = self.exemplar_means(memory, task.classes.stop)

    def represent(self, task: Task, memory: Memory) -> None:
        """`L = CE(all logits) + KL(old logits of the previous stage || old logits)` on new and kept images."""
        images = joined(task.train, memory.images)
        if task.index == 0:
            self.grow(task)
            self.follow(self.model(), F.cross_entropy, images, task)
            return
        teacher = self.snapshot()
        self.grow(task)
        first, settings = task.classes.start, self.settings

        def rehearsal(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
            logits, taught = outputs
            old = distillation(logits[:, :first], taught, settings.temperature)
            return F.cross_entropy(logits, labels) + settings.distill * old

        self.follow(WithTeacher(self.model(), teacher), rehearsal, images, task)

    def exemplar_means(self, memory: Memory, classes: int) -> Tensor:
        """Means of the exemplars of all classes in the current network, L2-normalised before and after, [C, d]."""
        unit = F.normalize(self.engine.features(memory.images, [self.tuned]), dim=-1)
        means, _ = class_means(unit, torch.from_numpy(memory.images.labels), range(classes))
        return F.normalize(means[0], dim=-1)

    def head(self, features: Tensor) -> Tensor:
        """The logit of a class is minus the squared distance of unit vectors."""
        return 2 * F.normalize(features[0], dim=-1) @ self.means.to(features.device).mT - 2

    def head_tensors(self) -> Files:
        return {**super().head_tensors(), "head": {"means": self.means}}

    def load_head(self, parts: Files) -> None:
        super().load_head(parts)
        self.means = parts["head"]["means"]
