"""Finetune Adapter: one adapter is trained on every task. EASE with a single subspace for all tasks."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ease.backbone import Tuning
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings
from ease.training.randomness import generator
from ease.tuning import Adapter


class FinetuneAdapterSettings(SequentialSettings):
    """Settings of `finetune`, with a learning rate for adapters."""

    lr: float = Field(0.01, gt=0)
    rank: int = Field(64, ge=1, description="bottleneck width r of the adapter")
    scale: float = Field(0.1, description="factor of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout inside the adapter while training")


@register()
class FinetuneAdapter(OneTuning):
    """The pre-trained model is frozen; one adapter (Eq. 4 of EASE) and the head are trained on every task."""

    name: ClassVar[str] = "finetune-adapter"
    title: ClassVar[str] = "Finetune-Adapter"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "one shared adapter and a linear head, tuned on every task"
    Settings = FinetuneAdapterSettings

    def new_tuning(self) -> Tuning:
        """An untrained adapter."""
        shape = {name: getattr(self.settings, name) for name in ("rank", "scale", "dropout")}
        return Adapter(self.backbone.shape, **shape, generator=generator(self.engine.seed, "init", "adapter"))
