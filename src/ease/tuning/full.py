"""Full fine-tuning: a trained copy of all weights, or of some blocks and the final norm."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import nn

from ease.backbone.ports import Departure, Tuning


class Full(Tuning):
    """A copy of the model that is trained while the backbone itself stays frozen.

    Args:
        vit: The model to copy: the backbone's, or another copy.
        blocks: The blocks to copy, together with the final norm; the whole model if None.
    """

    kind: ClassVar[str] = "full"

    def __init__(self, vit: nn.Module, blocks: Sequence[int] | None = None) -> None:
        super().__init__()
        self.layers = None if blocks is None else sorted(blocks)
        # Copied blocks do not change what comes before them; a whole copy has its own embedding.
        self.departs = Departure.NOTHING if blocks is None else Departure.EMBEDDING
        self._depth = len(vit.blocks)  # type: ignore[arg-type]
        if self.layers is None:
            self.copy = copy.deepcopy(vit)
            for head in ("head", "head_dist"):  # not used for features, so it must not be counted
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
