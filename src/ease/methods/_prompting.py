"""Common base of L2P, DualPrompt, CODA-Prompt and DAP: prompts for each image, by a query of the frozen model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.backbone import Tuning
from ease.heads.linear import GrowingLinear
from ease.methods._base import Costs, Files, Learner, Subspace
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator


class PromptSettings(Training):
    """Settings of prompt methods: Adam, no weight decay, and mostly a constant learning rate."""

    lr: float = Field(1e-3, gt=0)
    epochs: int = Field(5, ge=0, description="epochs on the task's images")
    weight_decay: float = Field(0.0, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    schedule: Literal["cosine", "constant"] = Field("constant", description="of the learning rate, per epoch")


class PromptPool(nn.Module, ABC):
    """The prompts of a method and how they are selected."""

    @abstractmethod
    def begin(self, task: int, draw: torch.Generator) -> None:
        """Prepare for a task: add its parameters and freeze the old ones."""

    @abstractmethod
    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """Queries [N, d] -> a tuning with prompts for each image, and a scalar that is added to the loss."""


class Prompted(nn.Module):
    """The module that is trained: a pool and a linear head. The frozen backbone is not part of its state."""

    def __init__(self, learner: PromptLearner) -> None:
        super().__init__()
        self.pool = learner.pool
        self.linear = learner.linear
        self._learner = (learner,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, s, s] -> logits [N, classes], and a scalar that is added to the loss."""
        learner = self._learner[0]
        with torch.no_grad():
            query = learner.backbone.forward(pixels).float()
        tuning, penalty = self.pool(query)
        return self.linear(learner.read(pixels, tuning)), penalty


class PromptLearner(Learner):
    """A first pass of the frozen model gives the query that selects prompts; a second pass with them gives the feature.

    The prompts of an image never depend on the other images of its batch. Subclasses implement `make_pool` and may
    override `read`.
    """

    per_image = True
    state_title: ClassVar[str] = "prompts and linear head"
    Settings: ClassVar[type[Training]] = PromptSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.pool = self.make_pool()
        self.linear = self.new_head()
        self.trained: list[int] = []

    @abstractmethod
    def make_pool(self) -> PromptPool:
        """A pool without prompts; the first `begin` creates them."""

    def new_head(self) -> GrowingLinear:
        """A head without rows."""
        return GrowingLinear(self.backbone.dim)

    def read(self, pixels: Tensor, tuning: Tuning) -> Tensor:
        """The second pass: [N, 3, s, s] -> the feature [N, d] that the head reads."""
        return self.backbone.forward(pixels, tuning)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        draw = generator(self.engine.seed, "init", task.index)
        self.pool.begin(task.index, draw)
        self.linear.grow(len(task.classes), draw)
        module, first = Prompted(self), task.classes.start

        def old_logits_masked(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
            logits, penalty = outputs
            return F.cross_entropy(logits[:, first:], labels - first) + penalty

        self.trained.append(sum(p.numel() for p in module.parameters() if p.requires_grad))
        self.engine.fit(module, old_logits_masked, task.train, self.settings, task=task.index)

    def subspaces(self) -> list[Subspace]:
        """There are none, because every image has a subspace of its own."""
        return []

    def passes_per_image(self) -> int:
        return 2

    def head(self, features: Tensor) -> Tensor:
        """Features of the second pass, [1, N, d], to logits."""
        with torch.no_grad():
            return self.linear.to(features.device)(features[0])

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        device = self.engine.fabric.device
        module = Prompted(self).to(device).eval()
        with self.engine.fabric.autocast():
            parts = [module(some.to(device))[0].float() for some in pixels.split(self.engine.batch_size)]
        return torch.cat(parts).cpu()

    def module(self) -> nn.Module:
        """Pixels [N, 3, s, s] -> (logits [N, classes], penalty), with all weights registered; see `ease export`."""
        return Prompted(self)

    def files(self) -> tuple[Files, dict[str, Any]]:
        tensors = Prompted(self).state_dict()
        return {f"learner/{len(self.task_sizes) - 1:04d}": tensors}, {"trained": self.trained}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        self.trained = list(meta["trained"])
        self.pool = self.make_pool()
        for task in range(len(self.task_sizes)):
            self.pool.begin(task, torch.Generator())
        self.linear = self.new_head()
        self.linear.grow_to(self.classes)
        module = Prompted(self).eval()
        module.load_state_dict(files[f"learner/{len(self.task_sizes) - 1:04d}"])
        module.to(self.backbone.device)

    def costs(self) -> Costs:
        return Costs(self.trained, sum(p.numel() for p in Prompted(self).parameters()))


def cosines(query: Tensor, keys: Tensor) -> Tensor:
    """[N, d] and [K, d] -> [N, K]."""
    return F.normalize(query, dim=-1) @ F.normalize(keys, dim=-1).mT


def uniform(*size: int, draw: torch.Generator) -> nn.Parameter:
    """A parameter initialised from U(-1, 1)."""
    return nn.Parameter(torch.empty(size).uniform_(-1, 1, generator=draw))


def blocks_within(layers: Sequence[int], depth: int) -> list[int]:
    """Layers, counted from 1, to blocks, counted from 0. Blocks that a backbone of this depth lacks are omitted."""
    return sorted({layer - 1 for layer in layers if layer <= depth})
