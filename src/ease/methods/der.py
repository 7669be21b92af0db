"""DER (Yan et al., CVPR 2021): a new network for every task, in addition to the frozen old ones."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from ease.methods._base import Kind
from ease.methods._expanding import Expanding, ExpandingSettings
from ease.methods._registry import register
from ease.tuning import Full


class DerSettings(ExpandingSettings):
    """Settings of public implementations for a pre-trained ViT; without pruning and weight alignment."""

    epochs: int = Field(10, ge=0, description="epochs on the task's images and the exemplars")
    batch_size: int = Field(32, ge=1)


@register()
class Der(Expanding):
    """The super-feature `u = [f_1(x), ..., f_b(x)]` grows by d with each task; only f_b is trained on task b.

    `L = CE(W u, y) + lambda_a CE(W_a f_b, y_a)`, where y_a is the new class, or "old" for all others.
    """

    name: ClassVar[str] = "der"
    title: ClassVar[str] = "DER"
    kind: ClassVar[Kind] = "exemplar-based"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "a new backbone per task beside the frozen old ones, one head over all"
    Settings = DerSettings

    def new_tuning(self) -> Full:
        """A copy of the last task's network; of the PTM for the first."""
        return Full(self.tunings[-1].copy if self.tunings else self.backbone.vit)
