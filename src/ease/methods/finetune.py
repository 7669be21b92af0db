"""Finetune: the whole network follows every task. The baseline that forgets."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.engine.fit import Training
from ease.engine.memory import Memory
from ease.engine.randomness import generator
from ease.heads.linear import GrowingLinear
from ease.methods.base import Costs, Files, Learner, Subspace, TunedHead
from ease.methods.registry import register
from ease.streams import Task
from ease.tuning import Full


class FinetuneSettings(Training):
    """As public implementations set it for a pre-trained ViT."""

    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(128, ge=1)
    later_weight_decay: float = Field(2e-4, ge=0, description="from the second task on")


@register()
class Finetune(Learner):
    """Cross-entropy over all logits at task 1, over the new classes' logits later."""

    name: ClassVar[str] = "finetune"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "fine-tunes the whole network on every task; forgets"
    Settings = FinetuneSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.full = Full(self.backbone.vit).freeze()
        self.linear = GrowingLinear(self.backbone.dim)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        self.linear.grow(len(task.classes), generator(self.engine.seed, "init", task.index))
        self.full.requires_grad_(True)
        training = self.settings
        if task.index > 0:
            training = training.model_copy(update={"weight_decay": training.later_weight_decay})
        first = task.classes.start

        def new_classes_only(logits: Tensor, labels: Tensor) -> Tensor:
            return F.cross_entropy(logits[:, first:], labels - first)

        module = TunedHead(self.backbone, self.full, self.linear)
        self.engine.fit(module, new_classes_only, task.train, training, task=task.index)
        self.full.freeze()

    def subspaces(self) -> list[Subspace]:
        return [Subspace(self.full, None)]

    def head(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self.linear.to(features.device)(features[0])

    def files(self) -> tuple[Files, dict[str, Any]]:
        tensors = {f"full/{n}": v for n, v in self.full.state_dict().items()}
        tensors |= {f"linear/{n}": v for n, v in self.linear.state_dict().items()}
        return {f"learner/{len(self.task_sizes) - 1:04d}": tensors}, {}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        tensors = files[f"learner/{len(self.task_sizes) - 1:04d}"]
        parts: dict[str, dict[str, Tensor]] = {"full": {}, "linear": {}}
        for name, value in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = value
        self.full.load_state_dict(parts["full"])
        self.linear.grow_to(self.classes)
        self.linear.load_state_dict(parts["linear"])

    def costs(self) -> Costs:
        width = self.backbone.dim + 1
        seen, trained = 0, []
        for size in self.task_sizes:
            seen += size
            trained.append(self.full.parameter_count() + seen * width)
        return Costs(trained, self.full.parameter_count() + self.classes * width)
