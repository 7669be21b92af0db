"""Settings of EASE and of its upper bound."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from ease.errors import unknown
from ease.training.fit import Training
from ease.tuning import TUNINGS, faults, tuning_settings, tunings

KINDS = ("adapter", "vpt-shallow", "vpt-deep", "ssf", "lora")
"""The kinds of tuning of this package that can build a subspace. All kinds of other packages can."""

TUNING_SETTINGS = ("rank", "scale", "dropout", "bias", "reads", "length")
"""The settings that a tuning is built with, as far as its kind has them."""


class EaseSettings(Training):
    """Settings of EASE. The defaults are the released settings for CIFAR-100."""

    lr: float = Field(0.025, gt=0, description="initial learning rate")
    later_epochs: int | None = Field(
        None, ge=0, description="epochs after task 1, if task 1 differs in size from the other tasks"
    )
    later_lr: float | None = Field(
        None, gt=0, description="learning rate after task 1, if task 1 differs in size from the other tasks"
    )
    sigma: float = Field(1.0, gt=0, description="initial value of the training head's learned scale")
    tuning: str = Field("adapter", description=f"what builds a subspace: {', '.join(KINDS)}")
    length: int = Field(5, ge=1, description="prompt tokens, for vpt")
    rank: int = Field(64, ge=1, description="bottleneck width r of the adapter, or rank of lora")
    scale: float = Field(0.1, description="factor of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout inside the adapter while training")
    bias: bool = Field(True, description="whether the adapter's two linear layers have a bias")
    reads: Literal["stream", "normed"] = Field("stream", description="the adapter's input: x1, or norm2(x1)")
    alpha: float = Field(0.1, ge=0, description="weight of the subspaces that are not a task's own (Eq. 12)")
    reweight: Literal["average", "sum", "none"] = Field(
        "average",
        description="alpha / (b - 1) as in the released code, alpha as in the text, or one cosine over everything",
    )
    complement: Literal["triangle", "newest", "none"] = Field(
        "triangle",
        description="synthesise all missing prototypes anew (released), only the newest column (text), or leave zeros",
    )
    synthesis: Literal["pps", "pis", "lr", "ot"] = Field(
        "pps",
        description="missing prototypes from similar classes, similar images, a linear map, or optimal transport",
    )
    neighbours: int = Field(20, ge=1, description="for pis: number k of images that represent an old class")
    ridge: float = Field(
        0.001, ge=0, description="for lr: penalty, relative to the mean squared length of the references"
    )
    transport: float = Field(0.01, ge=1e-3, description="for ot: entropic regularisation")
    diagonal: bool = Field(
        False, description="use only prototypes in a task's own subspace (ablation: task-specific adapters)"
    )
    ptm: bool = Field(False, description="use the pre-trained model as one more subspace")
    beta: float = Field(1.0, ge=0, description="weight of the pre-trained model's subspace")
    similarity: Literal["cosine", "dot"] = "cosine"
    adapt: Literal["auto", "always", "first", "never"] = Field(
        "auto",
        description="which tasks add a subspace; auto: those with at least 2 classes and 5 images per class",
    )
    max_subspaces: int | None = Field(
        None, ge=1, description="most subspaces; later tasks use the existing ones. No limit if unset"
    )
    budget: int | None = Field(
        None, ge=1, description="passes per image, spent on the most likely subspaces; all subspaces if unset"
    )

    @field_validator("tuning")
    @classmethod
    def _builds_a_subspace(cls, kind: str) -> str:
        usable = [*KINDS, *(name for name in tunings() if name not in TUNINGS)]
        if kind not in usable:
            raise ValueError(faults().get(kind) or str(unknown("tuning", kind, usable)))
        return kind

    def tuning_config(self) -> dict[str, Any]:
        """The settings that the subspaces' tuning is built with."""
        known = tuning_settings(self.tuning)
        return {name: getattr(self, name) for name in TUNING_SETTINGS if name in known}

    @model_validator(mode="after")
    def _can_be_split(self) -> EaseSettings:
        if self.budget is not None and self.reweight == "none":
            raise ValueError("one cosine over everything needs all passes: choose another reweight")
        return self
