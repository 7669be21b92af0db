"""Prefix tuning: learned keys and values that every token of a block can attend to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.tuning.blocks import some_blocks


class Prefix(Tuning):
    """P keys and P values in each listed block, the same for every image; 2 P d weights per block.

    They are initialised from N(0, std). Even untrained they change the pre-trained model, because each key takes a
    share of the softmax.

    Args:
        shape: The shape of the backbone.
        length: Number P of keys and of values.
        layers: Blocks, counted from 0; all if None.
        std: Standard deviation of the initial values.
        generator: Source of the initial values.
    """

    kind: ClassVar[str] = "prefix"
    departs = Departure.EMBEDDING

    def __init__(
        self,
        shape: Shape,
        length: int = 5,
        layers: Sequence[int] | None = None,
        std: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.length, self.std = length, std
        self.layers = some_blocks(self.kind, layers, shape.depth)
        size = (len(self.layers), length, shape.dim)
        self.keys = nn.Parameter(std * torch.randn(size, generator=generator))
        self.values = nn.Parameter(std * torch.randn(size, generator=generator))

    def prefix(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        if layer not in self.layers:
            return None
        row = self.layers.index(layer)
        return self.keys[row].expand(batch, -1, -1), self.values[row].expand(batch, -1, -1)

    def first_layer(self) -> int:
        return self.layers[0]

    def config(self) -> dict[str, Any]:
        return {"length": self.length, "layers": self.layers, "std": self.std}


class CompensatedPrefix(Tuning):
    """P keys and P values in each listed block, with an attention of their own (LAE); 2 P d + 2 weights per block.

    The shares of the prefix in the softmax over all keys are divided by their sum, so that the prefix has a share of 1
    beside the tokens, which keep theirs. Keys and values are initialised from U(0, .01), each with a learned scale that
    starts at 1. Even untrained they change the pre-trained model.

    Args:
        shape: The shape of the backbone.
        length: Number P of keys and of values.
        layers: Blocks, counted from 0; all if None.
        generator: Source of the initial values.
    """

    kind: ClassVar[str] = "compensated-prefix"
    departs = Departure.EMBEDDING
    prefix_compensated = True

    def __init__(
        self,
        shape: Shape,
        length: int = 10,
        layers: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.length, self.layers = length, some_blocks(self.kind, layers, shape.depth)
        size = (len(self.layers), length, shape.dim)
        self.keys = nn.Parameter(torch.empty(size).uniform_(0, 0.01, generator=generator))
        self.values = nn.Parameter(torch.empty(size).uniform_(0, 0.01, generator=generator))
        self.key_scale = nn.Parameter(torch.ones(len(self.layers)))
        self.value_scale = nn.Parameter(torch.ones(len(self.layers)))

    def prefix(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        if layer not in self.layers:
            return None
        row = self.layers.index(layer)
        keys, values = self.keys[row] * self.key_scale[row], self.values[row] * self.value_scale[row]
        return keys.expand(batch, -1, -1), values.expand(batch, -1, -1)

    def first_layer(self) -> int:
        return self.layers[0]

    def config(self) -> dict[str, Any]:
        return {"length": self.length, "layers": self.layers}


class PrefixPerImage(Tuning):
    """Keys and values that were selected for each image of one batch (DualPrompt, CODA-Prompt).

    They are not parameters of this module, but gradients pass through.

    Args:
        pairs: Block -> (keys, values), each [N, P, d] in the order of the batch, or [P, d] for all images.
    """

    kind: ClassVar[str] = "prefix-per-image"
    departs = Departure.EMBEDDING

    def __init__(self, pairs: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.pairs = dict(pairs)

    def prefix(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        if layer not in self.pairs:
            return None
        keys, values = self.pairs[layer]
        return keys.expand(batch, -1, -1), values.expand(batch, -1, -1)

    def first_layer(self) -> int:
        return min(self.pairs)
