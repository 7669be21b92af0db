"""SimpleCIL (Zhou et al., 2023): the frozen pre-trained model and a prototype per class. Nothing is trained."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.heads import PrototypeBank, class_means
from ease.methods._base import Costs, Files, Learner, Subspace
from ease.methods._registry import register
from ease.streams import Task
from ease.training.memory import Memory


@register()
class SimpleCil(Learner):
    """`logit_c = cos(p_c, phi(x))` with p_c the mean feature of class c."""

    name: ClassVar[str] = "simplecil"
    title: ClassVar[str] = "SimpleCIL"
    idea: ClassVar[str] = "frozen PTM, class-mean prototypes, cosine"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.bank = PrototypeBank()

    def adapt(self, task: Task, memory: Memory | None) -> None:
        features = self.engine.features(task.train, [None])
        means, counts = class_means(features, torch.from_numpy(task.train.labels), task.classes)
        self.bank.add_task(means, counts, subspaces=[0], own=0)

    def subspaces(self) -> list[Subspace]:
        return [Subspace(None, "ptm")]

    def head(self, features: Tensor) -> Tensor:
        prototypes = self.bank.gather(list(range(self.bank.tasks)), 0)
        return F.normalize(features[0], dim=-1) @ F.normalize(prototypes, dim=-1).mT

    def files(self) -> tuple[Files, dict[str, Any]]:
        return {f"prototypes/{t:04d}": state for t, state in enumerate(self.bank.states())}, {}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        self.bank = PrototypeBank.of_states([files[name] for name in sorted(files)])

    def costs(self) -> Costs:
        return Costs([0] * len(self.task_sizes), self.classes * self.backbone.dim)
