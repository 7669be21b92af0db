"""Finetune Adapter: one adapter, shaped as EASE's, follows every task. What EASE would be without its subspaces."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ease.backbone import Tuning
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings
from ease.training.randomness import generator
from ease.tuning import Adapter


class FinetuneAdapterSettings(SequentialSettings):
    """As `finetune`, with the rate an adapter needs."""

    lr: float = Field(0.01, gt=0)
    rank: int = Field(64, ge=1, description="projection dim r of the adapter")
    scale: float = Field(0.1, description="of the adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="inside the adapter, while training")


@register()
class FinetuneAdapter(OneTuning):
    """The PTM stays; one adapter (Eq. 4 of EASE) and the head learn every task, one after the other."""

    name: ClassVar[str] = "finetune-adapter"
    title: ClassVar[str] = "Finetune-Adapter"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "one shared adapter and a linear head, tuned on every task"
    Settings = FinetuneAdapterSettings

    def new_tuning(self) -> Tuning:
        """An adapter that changes nothing yet."""
        shape = {name: getattr(self.settings, name) for name in ("rank", "scale", "dropout")}
        return Adapter(self.backbone.shape, **shape, generator=generator(self.engine.seed, "init", "adapter"))
