"""Joint training: at each stage a new copy of the pre-trained model is trained on all data so far. An upper bound."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch.nn.functional import cross_entropy

from ease.backbone import Tuning
from ease.heads.linear import GrowingLinear
from ease.methods._registry import register
from ease.methods._sequential import Ceiling, OneTuning
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import Adapter, Full


class JointSettings(Training):
    """Settings of `finetune` for its first task."""

    lr: float = Field(1e-3, gt=0, description="initial learning rate; use 0.01 for the adapter")
    batch_size: int = Field(128, ge=1)
    tuning: Literal["full", "adapter"] = Field(
        "full", description="what is trained: all weights, or an adapter"
    )
    rank: int = Field(64, ge=1, description="bottleneck width r of the adapter")


@register()
class Joint(Ceiling, OneTuning):
    """Cross-entropy over the union of all tasks so far; each stage starts from the pre-trained model."""

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "Joint"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "trains anew on all data so far at every stage; the ceiling"
    Settings = JointSettings

    def new_tuning(self) -> Tuning:
        if self.settings.tuning == "full":
            return Full(self.backbone.vit)
        draw = generator(self.engine.seed, "init", "adapter")
        return Adapter(self.backbone.shape, rank=self.settings.rank, generator=draw)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        images = self.all_images(task)
        self.tuned = self.new_tuning().to(self.backbone.device)
        self.linear = GrowingLinear(self.backbone.dim)
        self.linear.grow(task.classes.stop, generator(self.engine.seed, "init", task.index))
        self.follow(self.model(), cross_entropy, images, task)

    def training_of(self, task: Task) -> Training:
        """All stages have the same settings, since no stage builds on another."""
        return self.settings
