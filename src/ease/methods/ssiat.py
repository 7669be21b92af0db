"""SSIAT (Tan et al., CVPR 2024): one adapter for all tasks; old class means follow the drift of the features."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from ease.backbone import Tuning
from ease.heads.drift import drift, unpaired_drift
from ease.heads.linear import GrowingCosine
from ease.heads.losses import cosine_margin
from ease.methods._aligned import AlignedSettings, AlignedTuning
from ease.methods._registry import register
from ease.streams import Task
from ease.training.fit import Training
from ease.training.randomness import generator
from ease.tuning import Adapter


class SsiatSettings(AlignedSettings):
    """Settings of the released code for CIFAR-100."""

    variant: Literal["text", "released"] = Field(
        "released", description="the method as its paper describes it, or as its released code does it"
    )
    later_epochs: int = Field(10, ge=0, description="epochs from the second task on")
    rank: int = Field(64, ge=1, description="bottleneck width r of the adapter")
    scale: float = Field(0.1, description="factor of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout inside the adapter while training")
    cosine_scale: float = Field(20.0, gt=0, description="factor of the cosines in the logits")
    margin: float = Field(
        0.0, ge=0, lt=1, description="subtracted from the cosine of the right class in training"
    )
    shift_sigma: float = Field(4.0, gt=0, description="width of a class mean's neighbourhood")
    shift_floor: float = Field(1e-5, ge=0, description="weight of an image far from a class mean")
    align_ridge: float = Field(1e-3, ge=0)
    align_means: Literal["plain", "rising", "falling"] = "rising"


@register()
class Ssiat(AlignedTuning):
    """One adapter, tuned freely; `logit_c = s cos(f, w_c)`; old means move, then the cosine head is aligned.

    The text estimates the shift of the means from the features of each image before and after the task. In the
    released code the two features are of different images; see `unpaired_drift`.
    """

    name: ClassVar[str] = "ssiat"
    title: ClassVar[str] = "SSIAT"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = (
        "one adapter tuned freely; old Gaussians follow the drift, the head is aligned on them"
    )
    Settings = SsiatSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self._before: Tensor | None = None

    def new_tuning(self) -> Tuning:
        shape = {name: getattr(self.settings, name) for name in ("rank", "scale", "dropout")}
        return Adapter(self.backbone.shape, **shape, generator=generator(self.engine.seed, "init", "adapter"))

    def new_head(self) -> GrowingCosine:
        return GrowingCosine(self.backbone.dim, self.settings.cosine_scale)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return cosine_margin(logits, labels, self.settings.cosine_scale, self.settings.margin)

    def training_of(self, task: Task) -> Training:
        if task.index == 0:
            return self.settings
        return self.settings.model_copy(update={"epochs": self.settings.later_epochs})

    def before_training(self, task: Task) -> None:
        """Look at the new images before the adapter changes."""
        if task.index > 0:
            self._before = self.engine.features(task.train, [self.tuned])[0]

    def after_training(self, task: Task) -> None:
        """Move the means of the old classes as the new images moved."""
        if self._before is None:
            return
        after = self.engine.features(task.train, [self.tuned])[0]
        estimate = drift if self.settings.variant == "text" else unpaired_drift
        sigma, floor = self.settings.shift_sigma, self.settings.shift_floor
        self.gaussians.move(estimate(self._before, after, self.gaussians.means, sigma, floor))
        self._before = None
