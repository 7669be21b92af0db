"""LwF (Li and Hoiem, ECCV 2016): distillation from the previous stage's network on the new images."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from ease.heads.losses import cross_entropy_of_new, distillation
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings, WithTeacher
from ease.streams import Task
from ease.training.memory import Memory


class LwfSettings(SequentialSettings):
    """Settings of LwF. Learning rates are those of `finetune`; the published ones are for a ResNet from scratch."""

    temperature: float = Field(2.0, gt=0, description="temperature of both outputs in the distillation")
    distill: float = Field(3.0, ge=0, description="lambda, the weight of the distillation")


@register()
class Lwf(OneTuning):
    """`L = CE(new logits) + lambda * KL(old logits of the previous stage || old logits)`, softened by T."""

    name: ClassVar[str] = "lwf"
    title: ClassVar[str] = "LwF"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "finetune with distillation from the previous stage's network"
    Settings = LwfSettings

    def adapt(self, task: Task, memory: Memory | None) -> None:
        if task.index == 0:
            super().adapt(task, memory)
            return
        teacher = self.snapshot()
        self.grow(task)
        first, settings = task.classes.start, self.settings

        def without_forgetting(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
            logits, taught = outputs
            old = distillation(logits[:, :first], taught, settings.temperature)
            return cross_entropy_of_new(logits, labels, first) + settings.distill * old

        self.follow(WithTeacher(self.model(), teacher), without_forgetting, task.train, task)
