"""A trained copy of all weights, or of listed blocks and the final norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from ease.backbone.ports import Departure, Tuning


class Full(Tuning):
    """For the methods that fine-tune: the base stays as it was, the copy trains.

    Args:
        vit: the model to copy (the backbone's, or another copy to start from).
        blocks: which blocks to copy, with the final norm; all of the model when None.
    """

    kind: ClassVar[str] = "full"
    departs: ClassVar[Departure] = Departure.NOTHING

    def __init__(self, vit: nn.Module, blocks: Sequence[int] | None = None) -> None:
        super().__init__()
        self.layers = None if blocks is None else sorted(blocks)
        if self.layers is None:
            self.copy = copy.deepcopy(vit)
            # Positions of weights that no feature passes through would make the parameter count a lie.
            self.copy.head = nn.Identity()  # type: ignore[assignment]
        else:
            parts = {f"block{i}": copy.deepcopy(vit.blocks[i]) for i in self.layers}  # type: ignore[index]
            self.copy = nn.ModuleDict({**parts, "norm": copy.deepcopy(vit.norm)})  # type: ignore[dict-item]
        self.requires_grad_(True)

    def vit(self) -> nn.Module | None:
        return self.copy if self.layers is None else None

    def block(self, layer: int) -> nn.Module | None:
        if self.layers is None or layer not in self.layers:
            return None
        return self.copy[f"block{layer}"]  # type: ignore[index]

    def norm(self) -> nn.Module | None:
        return None if self.layers is None else self.copy["norm"]  # type: ignore[index]

    def config(self) -> dict[str, Any]:
        return {"blocks": self.layers}
