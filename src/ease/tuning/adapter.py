"""A bottleneck beside each block's MLP (Eq. 4): the default way to build a subspace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning


class Adapter(Tuning):
    """`scale * up(dropout(relu(down(x))))` in every block.

    The released code reads the residual stream x1, scales by 0.1, has dropout and biases; the paper's text reads
    norm2(x1), unscaled, without either. A new adapter is zero, so the subspace starts as the PTM itself.
    """

    kind: ClassVar[str] = "adapter"
    departs: ClassVar[Departure] = Departure.BRANCH

    def __init__(
        self,
        shape: Shape,
        rank: int = 64,
        scale: float = 0.1,
        dropout: float = 0.1,
        bias: bool = True,
        reads: Literal["stream", "normed"] = "stream",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.rank, self.scale, self.dropout, self.bias, self.reads = rank, scale, dropout, bias, reads
        self.down = nn.ModuleList(nn.Linear(shape.dim, rank, bias) for _ in range(shape.depth))
        self.up = nn.ModuleList(nn.Linear(rank, shape.dim, bias) for _ in range(shape.depth))
        for down, up in zip(self.down, self.up, strict=True):
            assert isinstance(down, nn.Linear) and isinstance(up, nn.Linear)
            nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5), generator=generator)
            nn.init.zeros_(up.weight)
            if bias:
                nn.init.zeros_(down.bias)
                nn.init.zeros_(up.bias)

    def branch(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor:
        hidden = F.relu(self.down[layer](stream if self.reads == "stream" else normed))
        return self.up[layer](F.dropout(hidden, self.dropout, self.training)) * self.scale

    def config(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "scale": self.scale,
            "dropout": self.dropout,
            "bias": self.bias,
            "reads": self.reads,
        }

    def group(self) -> str:
        return f"{self.kind}-{self.reads}"

    @classmethod
    def stack(cls, tunings: Sequence[Tuning]) -> Tuning | None:
        return AdapterStack([t for t in tunings if isinstance(t, Adapter)])


class AdapterStack(Tuning):
    """S frozen adapters as one batched matmul per block; smaller ranks are padded with zeros."""

    kind: ClassVar[str] = "adapter-stack"
    departs: ClassVar[Departure] = Departure.BRANCH

    def __init__(self, adapters: Sequence[Adapter]) -> None:
        super().__init__()
        self.copies = len(adapters)
        self.reads = adapters[0].reads
        rank = max(a.rank for a in adapters)
        depth = len(adapters[0].down)
        with torch.no_grad():
            self.down = [torch.stack([_padded(a.down[i].weight, rank, 0) for a in adapters]).mT for i in range(depth)]
            self.up = [torch.stack([_padded(a.up[i].weight, rank, 1) * a.scale for a in adapters]).mT for i in range(depth)]
            self.down_bias = [torch.stack([_bias(a.down[i], rank) for a in adapters])[:, None] for i in range(depth)]
            self.up_bias = [torch.stack([_bias(a.up[i]) * a.scale for a in adapters])[:, None] for i in range(depth)]

    def branch(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor:
        value = stream if self.reads == "stream" else normed
        tokens, dim = value.shape[-2:]
        if layer == 0:  # the first block is shared: every adapter reads the same rows
            flat = value.reshape(1, -1, dim).expand(self.copies, -1, -1)
        else:
            flat = value.reshape(self.copies, -1, dim)
        hidden = torch.baddbmm(self.down_bias[layer], flat, self.down[layer]).relu_()
        return torch.baddbmm(self.up_bias[layer], hidden, self.up[layer]).view(-1, tokens, dim)


def _padded(weight: Tensor, rank: int, axis: int) -> Tensor:
    missing = rank - weight.shape[axis]
    return F.pad(weight, (0, 0, 0, missing) if axis == 0 else (0, missing))


def _bias(linear: nn.Module, size: int | None = None) -> Tensor:
    assert isinstance(linear, nn.Linear)
    size = size or linear.out_features
    if linear.bias is None:
        return linear.weight.new_zeros(size)
    return F.pad(linear.bias, (0, size - linear.out_features))
