"""Common base of methods that add a trained network with each task: DER and MEMO."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.backbone import Backbone, Tuning
from ease.heads.linear import GrowingLinear
from ease.heads.widening import WideningLinear, side_by_side
from ease.methods._base import Files, Subspace
from ease.methods._sequential import Sequential, SequentialSettings
from ease.streams import Task
from ease.training.memory import Memory, joined
from ease.training.randomness import generator
from ease.tuning import Full


class ExpandingSettings(SequentialSettings):
    """Settings of methods that add a subspace per task."""

    schedule: Literal["cosine", "constant"] = "constant"
    auxiliary: float = Field(1.0, ge=0, description="weight of the auxiliary head's loss")


class Expanding(Sequential):
    """One more frozen subspace with each task, and one linear head over the concatenated features of all subspaces.

    An auxiliary head reads the new subspace only and separates the new classes from each other and from "old". It makes
    sure that the new subspace learns something, and is discarded after the task.
    """

    state_title: ClassVar[str] = "linear head"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.tunings: list[Full] = []
        self.hashes: list[str] = []
        self.linear = WideningLinear()

    @property
    def base(self) -> Backbone:
        """The backbone of the next task's tuning and of those in `plugged`."""
        return self.backbone

    def plugged(self) -> list[Tuning]:
        """The old subspaces as tunings of `base`."""
        return list(self.tunings)

    @abstractmethod
    def new_tuning(self) -> Full:
        """The untrained tuning of the next task."""

    def keep(self, tuning: Full) -> None:
        """Add a trained tuning. Its hash is computed once, since hashing a whole network takes a while."""
        self.tunings.append(tuning)
        self.hashes.append(tuning.fingerprint())

    def adapt(self, task: Task, memory: Memory | None) -> None:
        assert memory is not None
        first, dim = task.classes.start, self.backbone.dim
        draw = generator(self.engine.seed, "init", task.index)
        self.linear.widen(dim, draw)
        self.linear.grow(len(task.classes), draw)
        auxiliary = None
        if task.index > 0:  # at task 1 there are no old classes
            auxiliary = GrowingLinear(dim)
            auxiliary.grow(1 + len(task.classes), draw)
        tuning = self.new_tuning()
        module = Expanded(self.base, self.plugged(), tuning, self.linear, auxiliary)
        weight = self.settings.auxiliary

        def expansion(outputs: tuple[Tensor, Tensor | None], labels: Tensor) -> Tensor:
            logits, of_new = outputs
            whole = F.cross_entropy(logits, labels)
            if of_new is None:
                return whole
            return whole + weight * F.cross_entropy(of_new, (labels - first + 1).clamp(min=0))

        self.fit(module, expansion, joined(task.train, memory.images), task)
        tuning.freeze()
        self.keep(tuning)
        features = self.engine.features(task.train, [s.tuning for s in self.subspaces()])
        memory.remember(task.train, side_by_side(features))

    def subspaces(self) -> list[Subspace]:
        return [Subspace(t, name) for t, name in zip(self.tunings, self.hashes, strict=True)]

    def head(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self.linear.to(features.device)(side_by_side(features))

    def tensors(self) -> Files:
        kept = {f"subspaces/{i:04d}": t.state_dict() for i, t in enumerate(self.tunings)}
        return {**kept, f"learner/{len(self.task_sizes) - 1:04d}": self.linear.state_dict()}

    def load_tensors(self, files: Files) -> None:
        self.tunings, self.hashes, self.linear = [], [], WideningLinear()
        for i in range(len(self.task_sizes)):
            tuning = self.new_tuning()
            tuning.load_state_dict(files[f"subspaces/{i:04d}"])
            tuning.freeze()
            self.keep(tuning)
            self.linear.widen(self.backbone.dim)
        self.linear.grow_to(self.classes)
        self.linear.load_state_dict(files[f"learner/{len(self.task_sizes) - 1:04d}"])


class Expanded(nn.Module):
    """Old subspaces, which are frozen and not part of the state, and a new one that is trained with both heads."""

    def __init__(
        self,
        base: Backbone,
        old: list[Tuning],
        tuning: Tuning,
        linear: WideningLinear,
        auxiliary: GrowingLinear | None,
    ) -> None:
        super().__init__()
        self.tuning, self.linear, self.auxiliary = tuning, linear, auxiliary
        self._frozen = (base, old)  # in a tuple, so that neither is registered as a submodule

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """[N, 3, s, s] -> (logits [N, classes], auxiliary logits [N, 1 + new classes] if there are any)."""
        base, old = self._frozen
        new = base.forward(pixels, self.tuning)
        parts = [new] if not old else [side_by_side(base.features(pixels, old)), new]
        return self.linear(torch.cat(parts, dim=1)), None if self.auxiliary is None else self.auxiliary(new)
