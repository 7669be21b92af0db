"""Prompts chosen for each image by what the frozen model sees in it: what L2P, DualPrompt and CODA-Prompt share."""

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
    """Prompts train with Adam, without decay, and mostly at a constant rate."""

    lr: float = Field(1e-3, gt=0)
    epochs: int = Field(5, ge=0, description="passes over the task's images")
    weight_decay: float = Field(0.0, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    schedule: Literal["cosine", "constant"] = Field("constant", description="of the rate, stepped per epoch")


class PromptPool(nn.Module, ABC):
    """The prompts of a method and how they are chosen. Knows no backbone and no labels."""

    @abstractmethod
    def begin(self, task: int, draw: torch.Generator) -> None:
        """Become ready to train on this task: add what is new, freeze what is old."""

    @abstractmethod
    def forward(self, query: Tensor) -> tuple[Tuning, Tensor]:
        """Queries [N, d] -> a tuning with prompts for each image, and what is added to the loss (a scalar)."""


class Prompted(nn.Module):
    """What trains: a pool and a linear head. The frozen backbone runs twice but is no part of the state."""

    def __init__(self, learner: PromptLearner) -> None:
        super().__init__()
        self.pool = learner.pool
        self.linear = learner.linear
        self._learner = (learner,)  # in a tuple, so that nothing of it is registered

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """[N, 3, s, s] -> logits [N, classes], and what is added to the loss."""
        learner = self._learner[0]
        with torch.no_grad():
            query = learner.backbone.forward(pixels).float()
        tuning, penalty = self.pool(query)
        return self.linear(learner.read(pixels, tuning)), penalty


class PromptLearner(Learner):
    """One pass of the frozen model gives the query, which chooses prompts; a second pass with them gives the feature.

    Everything hangs on the image alone: in training and in testing, no image's prompts depend on its batch.
    Subclasses implement `make_pool` and may read something else than the class token.
    """

    per_image = True
    state_title: ClassVar[str] = "prompts and linear head"
    Settings: ClassVar[type[Training]] = PromptSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.pool = self.make_pool()
        self.linear = GrowingLinear(self.backbone.dim)
        self.trained: list[int] = []

    @abstractmethod
    def make_pool(self) -> PromptPool:
        """A pool without prompts; the first `begin` makes them."""

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
        """None: every image has a subspace of its own."""
        return []

    def passes_per_image(self) -> int:
        return 2

    def head(self, features: Tensor) -> Tensor:
        """What `read` gave, as [1, N, d], to logits."""
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
        self.linear = GrowingLinear(self.backbone.dim)
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
    """U(-1, 1), where keys and prompts start."""
    return nn.Parameter(torch.empty(size).uniform_(-1, 1, generator=draw))


def blocks_within(layers: Sequence[int], depth: int) -> list[int]:
    """Layers counted from 1 -> those blocks, counted from 0, that a backbone of this depth has."""
    return sorted({layer - 1 for layer in layers if layer <= depth})
