"""Linear and cosine classifiers that grow with the number of classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """`W f + b`; old rows keep their values when new ones are added.

    Args:
        dim: Feature width d.
        std: Standard deviation of the weights of new rows; by default the usual one of a ViT's head.
    """

    def __init__(self, dim: int, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.weight = nn.Parameter(torch.empty(0, dim))
        self.bias = nn.Parameter(torch.empty(0))

    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Add rows with weights from N(0, std) and zero bias."""
        dim = self.weight.shape[1]
        rows = torch.empty(classes, dim).normal_(0, self.std, generator=generator)
        device = self.weight.device
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(device)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), torch.zeros(classes, device=device)]))

    def grow_to(self, classes: int) -> None:
        """Grow to this many rows with arbitrary values, before loading a state."""
        self.grow(classes - len(self.bias))

    def append(self, other: GrowingLinear) -> None:
        """Add the rows of another classifier behind those of this one."""
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), other.weight.detach().to(self.weight)]))
        self.bias = nn.Parameter(torch.cat([self.bias.detach(), other.bias.detach().to(self.bias)]))

    def forward(self, features: Tensor) -> Tensor:
        """[N, d] -> [N, classes]."""
        return nn.functional.linear(features, self.weight, self.bias)


class GrowingCosine(nn.Module):
    """`scale * cos(f, w_c)` without bias; old rows keep their values when new ones are added.

    Args:
        dim: Feature width d.
        scale: Factor of the cosines.
    """

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.empty(0, dim))

    def grow(self, classes: int, generator: torch.Generator | None = None) -> None:
        """Add rows from N(0, .02)."""
        rows = torch.empty(classes, self.weight.shape[1]).normal_(0, 0.02, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), rows.to(self.weight.device)]))

    def grow_to(self, classes: int) -> None:
        """Grow to this many rows with arbitrary values, before loading a state."""
        self.grow(classes - len(self.weight))

    def append(self, other: GrowingCosine) -> None:
        """Add the rows of another classifier behind those of this one."""
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), other.weight.detach().to(self.weight)]))

    def forward(self, features: Tensor) -> Tensor:
        """[N, d] -> [N, classes]."""
        unit = nn.functional.normalize
        return self.scale * nn.functional.linear(unit(features, dim=-1), unit(self.weight, dim=-1))
