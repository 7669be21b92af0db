"""A linear classifier that grows with the number of classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """`W f + b`; old rows keep their values when new ones are added."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Add rows with weights from N(0, .02) and zero bias, the usual initialisation of a ViT's head."""
        dim = self.weight.shape[1]
        rows = torch.empty(classes, dim).normal_(0, 0.02, generator=generator)
        device = self.weight.device
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(device)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), torch.zeros(classes, device=device)]))

    def grow_to(self, classes: int) -> None:
        """Grow to this many rows with arbitrary values, before loading a state."""
        self.grow(classes - len(self.bias))

    def forward(self, features: Tensor) -> Tensor:
        """[N, d] -> [N, classes]."""
        return nn.functional.linear(features, self.weight, self.bias)
