"""LAE (Gao et al., ICCV 2023): a tuning that learns, and a slow copy of it that accumulates; the surer one answers."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from ease.backbone import Tuning
from ease.heads.linear import GrowingLinear
from ease.heads.losses import cross_entropy_of_new
from ease.methods._base import Files, Subspace
from ease.methods._registry import register
from ease.methods._sequential import OneTuning
from ease.methods._tuned_head import TunedHead
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import build_tuning
from ease.tuning.merging import move_towards, paired

KINDS = {"adapter": "attention-adapter", "lora": "kv-lora", "prefix": "compensated-prefix"}


class LaeSettings(Training):
    """Settings of LAE. The defaults are the public settings for CIFAR-100 (ImageNet-R: 50 epochs, lr 0.00046875)."""

    lr: float = Field(0.0028125, gt=0)
    epochs: int = Field(5, ge=0)
    batch_size: int = Field(24, ge=1)
    weight_decay: float = Field(0.0, ge=0)
    optimizer: Literal["sgd", "adam", "adamw"] = "adam"
    schedule: Literal["cosine", "cosine-by-step", "constant"] = "constant"
    pet: Literal["adapter", "lora", "prefix"] = Field("adapter", description="the tuning that is trained")
    blocks: int = Field(5, ge=1, description="how many of the first blocks are tuned; all if there are fewer")
    rank: int = Field(5, ge=1, description="width of the adapter, or rank of LoRA")
    length: int = Field(10, ge=1, description="keys, and as many values, of the prefix in a block")
    frozen: float = Field(
        0.6, ge=0, le=1, description="share of the epochs, from the second task on, that train the head alone"
    )
    decay: float = Field(
        0.9999, ge=0, le=1, description="what the offline copy keeps of itself in every step"
    )


class OnlineAndOffline(TunedHead):
    """The module that is trained. The offline copy has no gradient but is in its state, to resume from."""

    def __init__(self, learner: Lae) -> None:
        super().__init__(learner.backbone, learner.tuned, learner.linear)
        self.offline = learner.offline

    def accumulate(self, decay: float) -> None:
        """Move the offline copy a little towards the online tuning."""
        move_towards(paired(self.offline, self.tuning), 1 - decay)


@register()
class Lae(OneTuning):
    """One head for both tunings; a class's score is the larger of its two probabilities.

    The offline tuning begins as a copy of the online one after task 1 and follows it as a moving average in every later
    step. From task 2 on, the first epochs train the head alone.
    """

    name: ClassVar[str] = "lae"
    title: ClassVar[str] = "LAE"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "a tuning and its moving average over all tasks; the surer of the two answers"
    state_title: ClassVar[str] = "both tunings and the linear head"
    Settings = LaeSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.linear = GrowingLinear(self.backbone.dim, std=0.001)
        self.offline = self._copy()

    def new_tuning(self) -> Tuning:
        """The untrained tuning of the first blocks."""
        shape, settings = self.backbone.shape, self.settings
        config: dict[str, Any] = {"layers": list(range(min(settings.blocks, shape.depth)))}
        config |= {"length": settings.length} if settings.pet == "prefix" else {"rank": settings.rank}
        draw = generator(self.engine.seed, "init", "pet")
        return build_tuning(KINDS[settings.pet], shape, config, draw)

    def training_of(self, task: Task) -> Training:
        return self.settings

    def adapt(self, task: Task, memory: Memory | None) -> None:
        self.grow(task)
        loss = partial(cross_entropy_of_new, first=task.classes.start)
        if task.index == 0:
            self.follow(self.model(), loss, task.train, task)
            self.offline = self._copy()
            return
        module, all_epochs = OnlineAndOffline(self), self.settings.epochs
        first = round(self.settings.frozen * all_epochs)
        for phase, epochs, train in (("head", first, self.fit), ("train", all_epochs - first, self.follow)):
            if epochs:
                training = self.settings.model_copy(update={"epochs": epochs})
                step = partial(module.accumulate, self.settings.decay)
                train(module, loss, task.train, task, phase, training=training, after_step=step)

    def _copy(self) -> Tuning:
        """The online tuning as it is now."""
        return copy.deepcopy(self.tuned).freeze()

    def subspaces(self) -> list[Subspace]:
        """The online tuning and, from the second task on, the offline one; before, both are the same."""
        tunings = [self.tuned, self.offline] if len(self.task_sizes) > 1 else [self.tuned]
        return [Subspace(tuning, None) for tuning in tunings]

    def head(self, features: Tensor) -> Tensor:
        """The logarithm of the larger probability of each class."""
        with torch.no_grad():
            return self.linear.to(features.device)(features).log_softmax(dim=-1).amax(dim=0)

    def head_tensors(self) -> Files:
        return {**super().head_tensors(), "offline": self.offline.state_dict()}

    def load_head(self, parts: Files) -> None:
        super().load_head(parts)
        self.offline.load_state_dict(parts["offline"])
