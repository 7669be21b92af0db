"""Settings of EASE and of its upper bound."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from ease.training.fit import Training

TUNING_SETTINGS = {
    "adapter": ("rank", "scale", "dropout", "bias", "reads"),
    "vpt-shallow": ("length",),
    "vpt-deep": ("length",),
    "ssf": (),
    "lora": ("rank",),
}
"""The settings that each kind of tuning is built with."""


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
    tuning: Literal["adapter", "vpt-shallow", "vpt-deep", "ssf", "lora"] = Field(
        "adapter", description="what builds a subspace"
    )
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
    budget: int | None = Field(
        None, ge=1, description="passes per image, spent on the most likely subspaces; all subspaces if unset"
    )

    @model_validator(mode="after")
    def _can_be_split(self) -> EaseSettings:
        if self.budget is not None and self.reweight == "none":
            raise ValueError("one cosine over everything needs all passes: choose another reweight")
        return self
