"""A trained copy of all weights, or of listed blocks and the final norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from ease.backbone.ports import Departure, Tuning


class Full(Tuning):
    """For the methods that fine-tune: the base stays as it was, the copy trains. Starts as what it copies.

    Args:
        vit: the model to copy (the backbone's, or another copy to start from).
        blocks: which blocks to copy, with the final norm; all of the model when None.
    """

    kind: ClassVar[str] = "full"

    def __init__(self, vit: nn.Module, blocks: Sequence[int] | None = None) -> None:
        super().__init__()
        self.layers = None if blocks is None else sorted(blocks)
        # Listed blocks leave all before them as it is; a whole copy has an embedding of its own.
        self.departs = Departure.NOTHING if blocks is None else Departure.EMBEDDING
        self._depth = len(vit.blocks)  # type: ignore[arg-type]
        if self.layers is None:
            self.copy = copy.deepcopy(vit)
            for head in ("head", "head_dist"):  # no feature passes through a classifier: do not count it
                if hasattr(vit, head):
                    setattr(self.copy, head, nn.Identity())
        else:
            parts = {f"block{i}": copy.deepcopy(vit.blocks[i]) for i in self.layers}  # type: ignore[index]
            self.copy = nn.ModuleDict({**parts, "norm": copy.deepcopy(vit.norm)})  # type: ignore[dict-item]
        self.requires_grad_(True).train()

    def vit(self) -> nn.Module | None:
        return self.copy if self.layers is None else None

    def block(self, layer: int) -> nn.Module | None:
        if self.layers is None or layer not in self.layers:
            return None
        return self.copy[f"block{layer}"]  # type: ignore[index]

    def norm(self) -> nn.Module | None:
        return None if self.layers is None else self.copy["norm"]  # type: ignore[index]

    def first_layer(self) -> int:
        return self.layers[0] if self.layers else self._depth

    def config(self) -> dict[str, Any]:
        return {"blocks": self.layers}
