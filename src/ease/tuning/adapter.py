"""Adapters: a bottleneck parallel to the MLP of each block (Eq. 4). The default tuning of EASE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import unknown


class Adapter(Tuning):
    """`scale * up(dropout(relu(down(x))))` in every block; L(2dr + r + d) weights, L(2dr) without biases.

    In the released code the adapter reads the residual stream x1, its output is scaled by 0.1, and it has dropout and
    biases. In the paper's text it reads norm2(x1), without any of these. `up` is initialised with zeros, so an
    untrained adapter does not change the pre-trained model.

    Args:
        shape: The shape of the backbone.
        rank: Bottleneck width r.
        scale: Factor of the output.
        dropout: Dropout inside the bottleneck, while training.
        bias: Whether both linear layers have a bias.
        reads: The input: the residual stream x1, or norm2(x1).
        generator: Source of the initial weights.
    """

    kind: ClassVar[str] = "adapter"
    departs = Departure.BRANCH

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
        if reads not in ("stream", "normed"):
            raise unknown("input of the adapter", reads, ["stream", "normed"])
        self.rank, self.scale, self.dropout, self.bias, self.reads = rank, scale, dropout, bias, reads
        self.down = nn.ModuleList(_Zeros(shape.dim, rank, bias) for _ in range(shape.depth))
        self.up = nn.ModuleList(_Zeros(rank, shape.dim, bias) for _ in range(shape.depth))
        for down in self.down:
            assert isinstance(down, nn.Linear)
            nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5), generator=generator)

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
        return "branch"

    @classmethod
    def stack(cls, tunings: Sequence[Tuning]) -> Tuning | None:
        return AdapterStack(tunings)


class AdapterStack(Tuning):
    """S frozen adapters that are computed as one batched matrix product per block.

    Smaller ranks are padded with zeros, which add nothing. The pre-trained model among them is an adapter of rank 0.
    """

    kind: ClassVar[str] = "adapter-stack"
    departs = Departure.BRANCH

    def __init__(self, tunings: Sequence[Tuning]) -> None:
        super().__init__()
        self.copies = len(tunings)
        adapters = [t if isinstance(t, Adapter) else None for t in tunings]
        real = [a for a in adapters if a is not None]
        rank = max(a.rank for a in real)
        stream = torch.tensor([a is not None and a.reads == "stream" for a in adapters])
        like = next(real[0].parameters())
        self._reads_stream = stream[:, None, None].to(like.device)
        self._reads = {a.reads for a in real}
        dim, depth = int(real[0].down[0].in_features), len(real[0].down)  # type: ignore[arg-type]
        # In the type of the products: autocast would convert frozen weights in each of them.
        kind = like.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else like.dtype
        zeros = partial(like.detach().new_zeros, dtype=dtype)
        self.down = [zeros(self.copies, rank, dim) for _ in range(depth)]
        self.down_bias = [zeros(self.copies, 1, rank) for _ in range(depth)]
        self.up = [zeros(self.copies, dim, rank) for _ in range(depth)]
        self.up_bias = [zeros(self.copies, 1, dim) for _ in range(depth)]
        for s, adapter in enumerate(adapters):
            if adapter is not None:
                self._take(s, adapter)

    @torch.no_grad()
    def _take(self, s: int, adapter: Adapter) -> None:
        r, scale = adapter.rank, adapter.scale
        for layer, (down, up) in enumerate(zip(adapter.down, adapter.up, strict=True)):
            assert isinstance(down, nn.Linear)
            assert isinstance(up, nn.Linear)
            self.down[layer][s, :r] = down.weight
            torch.mul(up.weight, scale, out=self.up[layer][s, :, :r])
            if adapter.bias:
                self.down_bias[layer][s, 0, :r] = down.bias
                self.up_bias[layer][s, 0] = up.bias * scale

    def branch(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor:
        tokens, dim = stream.shape[-2:]
        rows = self._input(stream, normed, 1 if layer == 0 else self.copies, dim)
        hidden = torch.baddbmm(self.down_bias[layer], rows, self.down[layer].mT).relu_()
        return torch.baddbmm(self.up_bias[layer], hidden, self.up[layer].mT).view(-1, tokens, dim)

    def _input(self, stream: Tensor, normed: Tensor, copies: int, dim: int) -> Tensor:
        """The input [S, N*T, d]. In the first block all adapters read the same rows."""
        if len(self._reads) == 1:
            value = stream if "stream" in self._reads else normed
            return value.reshape(copies, -1, dim).expand(self.copies, -1, -1)
        return torch.where(
            self._reads_stream, stream.reshape(copies, -1, dim), normed.reshape(copies, -1, dim)
        )


class _Zeros(nn.Linear):
    """A linear layer of zeros. The initialisation of nn.Linear would draw from the global generator."""

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
