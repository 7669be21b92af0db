"""SSF: a learned scale and shift after every frozen layer."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ease.backbone.ports import Departure, Shape, Tuning
from ease.errors import EaseError


class Ssf(Tuning):
    """`scale * value + shift` after the embedding, each norm and each linear; 4d + 2L(7d + hidden) weights.

    Scales are initialised from N(1, std) and shifts from N(0, std). With std = 0 an untrained tuning does not change
    the pre-trained model.

    Args:
        shape: The shape of the backbone.
        std: Standard deviation of the initial values.
        generator: Source of the initial values.
    """

    kind: ClassVar[str] = "ssf"
    departs = Departure.NOTHING

    def __init__(self, shape: Shape, std: float = 0.02, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if not shape.hidden:
            raise EaseError(
                "tuning 'ssf' needs a plain MLP, and this backbone's is gated; use another tuning"
            )
        self.std = std
        d = shape.dim
        inside = {"norm1": d, "qkv": 3 * d, "proj": d, "norm2": d, "fc1": shape.hidden, "fc2": d}
        sizes = {"embed": (1, d), "norm": (1, d)} | {k: (shape.depth, w) for k, w in inside.items()}
        self.scale = nn.ParameterDict()
        self.shift = nn.ParameterDict()
        for site, size in sizes.items():
            self.scale[site] = nn.Parameter(1.0 + std * torch.randn(size, generator=generator))
            self.shift[site] = nn.Parameter(std * torch.randn(size, generator=generator))

    def modulate(self, site: str, layer: int, value: Tensor) -> Tensor:
        return value * self.scale[site][layer] + self.shift[site][layer]

    def config(self) -> dict[str, Any]:
        return {"std": self.std}
