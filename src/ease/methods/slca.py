"""SLCA (Zhang et al., ICCV 2023): the whole network learns slowly, its classifier is aligned afterwards."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.backbone import Tuning
from ease.heads.linear import GrowingLinear
from ease.methods._aligned import AlignedSettings, AlignedTuning
from ease.methods._base import Files
from ease.methods._registry import register
from ease.streams import Task
from ease.tuning import Full


class SlcaSettings(AlignedSettings):
    """Settings of the released code for CIFAR-100."""

    variant: Literal["text", "released"] = Field(
        "released", description="the method as its paper describes it, or as its released code does it"
    )
    epochs: int = Field(20, ge=0)
    batch_size: int = Field(128, ge=1)
    lr: float = Field(0.01, gt=0, description="initial learning rate of the head")
    slow: float = Field(0.01, gt=0, description="learning rate of the network, as a share of the head's")
    schedule: Literal["cosine", "cosine-by-step", "constant", "milestone"] = Field(  # type: ignore[assignment]
        "milestone", description="of the learning rate; `milestone` divides it by 10 once"
    )
    milestone: float = Field(
        0.9, ge=0, le=1, description="share of the epochs before the rate is divided by 10"
    )
    align_means: Literal["plain", "rising", "falling"] = "rising"
    align_temperature: float | None = Field(0.1, gt=0)

    def rate(self, epoch: int, within: float = 0.0) -> float:
        """The learning rate; see `Training.rate`."""
        if self.schedule != "milestone":
            return super().rate(epoch, within)
        return self.lr * (0.1 if epoch >= round(self.milestone * self.epochs) else 1.0)


@register()
class Slca(AlignedTuning):
    """All weights are fine-tuned at a small rate; each class is a Gaussian, and the head is aligned on drawn features.

    In the released code the pre-trained final norm is replaced by a new one, the alignment divides logits by the mean
    over tasks of their norms, and its result is used for predictions only: the next task goes on with the head as it
    was before. In the text, the norm is the pre-trained one, logits are divided by their norm, and the aligned head is
    kept.
    """

    name: ClassVar[str] = "slca"
    title: ClassVar[str] = "SLCA"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "the whole network, trained slowly; a head aligned on features drawn per class"
    Settings = SlcaSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        norm = "task-mean" if settings.variant == "released" else "whole"
        super().__init__(engine, settings.model_copy(update={"align_norm": norm}))
        self.unaligned = self.new_head()

    def new_tuning(self) -> Tuning:
        tuning = Full(self.backbone.vit)
        if self.settings.variant == "released":
            tuning.copy.norm = nn.LayerNorm(self.backbone.dim)
        return tuning

    def new_head(self) -> GrowingLinear:
        return GrowingLinear(self.backbone.dim)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def rate_factors(self) -> dict[str, float]:
        return {"tuning": self.settings.slow}

    def before_training(self, task: Task) -> None:
        """Go on with the head as it was before it was aligned."""
        if self.settings.variant == "released":
            self.linear = copy.deepcopy(self.unaligned)

    def after_training(self, task: Task) -> None:
        """Keep the head as it is before it is aligned."""
        if self.settings.variant == "released":
            self.unaligned = copy.deepcopy(self.linear)

    def head_tensors(self) -> Files:
        kept = {"unaligned": self.unaligned.state_dict()} if self.settings.variant == "released" else {}
        return {**super().head_tensors(), **kept}

    def load_head(self, parts: Files) -> None:
        super().load_head(parts)
        if self.settings.variant == "released":
            self.unaligned.grow_to(self.classes)
            self.unaligned.load_state_dict(parts["unaligned"])
