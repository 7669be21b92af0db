"""Finetune: the whole network is trained on every task. The baseline that forgets."""

from __future__ import annotations

from typing import ClassVar

from ease.backbone import Tuning
from ease.methods._registry import register
from ease.methods._sequential import OneTuning
from ease.tuning import Full


@register()
class Finetune(OneTuning):
    """Cross-entropy over all logits at task 1, over the new classes' logits later."""

    name: ClassVar[str] = "finetune"
    title: ClassVar[str] = "Finetune"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "fine-tunes the whole network on every task; forgets"

    def new_tuning(self) -> Tuning:
        """A trainable copy of all weights."""
        return Full(self.backbone.vit)
