"""Adapters parallel to the attention of some blocks (LAE)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.tuning.blocks import some_blocks


class AttentionAdapter(Tuning):
    """`scale * up(gelu(down(norm1(x))))` beside the attention of the listed blocks; 2dr + r + d + 1 weights per block.

    The scale is learned and starts at 1. `up` is initialised with zeros, so an untrained adapter does not change the
    pre-trained model.

    Args:
        shape: The shape of the backbone.
        rank: Bottleneck width r.
        layers: Blocks, counted from 0; all if None.
        generator: Source of the initial weights.
    """

    kind: ClassVar[str] = "attention-adapter"
    departs = Departure.EMBEDDING

    def __init__(
        self,
        shape: Shape,
        rank: int = 5,
        layers: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.layers = rank, some_blocks(self.kind, layers, shape.depth)
        count, d = len(self.layers), shape.dim
        self.down = nn.Parameter(torch.empty(count, rank, d))
        for block in self.down.detach():  # block by block, since the fan must be that of one matrix
            nn.init.kaiming_uniform_(block, a=math.sqrt(5), generator=generator)
        self.down_bias = nn.Parameter(torch.zeros(count, rank))
        self.up = nn.Parameter(torch.zeros(count, d, rank))
        self.up_bias = nn.Parameter(torch.zeros(count, d))
        self.scale = nn.Parameter(torch.ones(count))

    def beside_attention(self, layer: int, normed: Tensor) -> Tensor | None:
        if layer not in self.layers:
            return None
        at = self.layers.index(layer)
        hidden = F.gelu(F.linear(normed, self.down[at], self.down_bias[at]))
        return F.linear(hidden, self.up[at], self.up_bias[at]) * self.scale[at]

    def first_layer(self) -> int:
        return self.layers[0]

    def config(self) -> dict[str, Any]:
        return {"rank": self.rank, "layers": self.layers}
