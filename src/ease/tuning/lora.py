"""LoRA: low-rank updates of frozen linear layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import EaseError, unknown
from ease.tuning.blocks import some_blocks


class Lora(Tuning):
    """`W x + alpha/rank * B A x` at some linear layers of every block; L r (in + out) weights per layer.

    A is initialised Kaiming-uniform and B with zeros, so an untrained update does not change the pre-trained model. At
    `qkv` one A of rank r is shared by query, key and value, since timm computes them as one linear layer.

    Args:
        shape: The shape of the backbone.
        rank: Rank r of the update.
        alpha: The update is scaled by alpha / rank; alpha = rank (no scaling) if None.
        sites: Some of qkv, proj, fc1, fc2.
        generator: Source of the initial weights.
    """

    kind: ClassVar[str] = "lora"
    departs = Departure.EMBEDDING

    def __init__(
        self,
        shape: Shape,
        rank: int = 8,
        alpha: float | None = None,
        sites: Sequence[str] = ("qkv",),
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.sites = rank, list(dict.fromkeys(sites))
        self.alpha = float(rank if alpha is None else alpha)
        d, hidden = shape.dim, shape.hidden
        widths = {"qkv": (d, 3 * d), "proj": (d, d), "fc1": (d, hidden), "fc2": (hidden, d)}
        self.a = nn.ParameterDict()
        self.b = nn.ParameterDict()
        for site in self.sites:
            if site not in widths:
                raise unknown("site of lora", site, widths)
            if 0 in widths[site]:
                raise EaseError(
                    f"lora at '{site}' needs a plain MLP, and this backbone's is gated; use qkv, proj"
                )
            width_in, width_out = widths[site]
            a = torch.empty(shape.depth, rank, width_in)
            for layer in a:  # block by block, since the fan must be that of one matrix
                nn.init.kaiming_uniform_(layer, a=math.sqrt(5), generator=generator)
            self.a[site] = nn.Parameter(a)
            self.b[site] = nn.Parameter(torch.zeros(shape.depth, width_out, rank))

    def low_rank(self, site: str, layer: int, value: Tensor) -> Tensor | None:
        if site not in self.sites:
            return None
        return F.linear(F.linear(value, self.a[site][layer]), self.b[site][layer]) * (self.alpha / self.rank)

    def config(self) -> dict[str, Any]:
        return {"rank": self.rank, "alpha": self.alpha, "sites": self.sites}


class KvLora(Tuning):
    """`W x + scale * B A x` for key and value of the listed blocks, each with its own A, B and scale (LAE).

    4 r d + 2 weights per block. A is initialised Kaiming-uniform and B with zeros, so an untrained update does not
    change the pre-trained model. The scales are learned and start at 1.

    Args:
        shape: The shape of the backbone.
        rank: Rank r of each update.
        layers: Blocks, counted from 0; all if None.
        generator: Source of the initial weights.
    """

    kind: ClassVar[str] = "kv-lora"
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
        self.a = nn.Parameter(torch.empty(count, 2, rank, d))
        for matrix in self.a.detach().flatten(0, 1):  # one by one, since the fan must be that of one matrix
            nn.init.kaiming_uniform_(matrix, a=math.sqrt(5), generator=generator)
        self.b = nn.Parameter(torch.zeros(count, 2, d, rank))
        self.scale = nn.Parameter(torch.ones(count, 2))

    def low_rank(self, site: str, layer: int, value: Tensor) -> Tensor | None:
        if site != "qkv" or layer not in self.layers:
            return None
        at = self.layers.index(layer)
        hidden = (F.linear(value, a) for a in self.a[at])
        key, val = (F.linear(h, b) * s for h, b, s in zip(hidden, self.b[at], self.scale[at], strict=True))
        return torch.cat([torch.zeros_like(key), key, val], dim=-1)  # the query stays as it is

    def first_layer(self) -> int:
        return self.layers[0]

    def config(self) -> dict[str, Any]:
        return {"rank": self.rank, "layers": self.layers}
