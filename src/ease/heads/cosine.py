"""The head that a subspace is trained with and that is discarded afterwards."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CosineHead(nn.Module):
    """`sigma * cos(f, W)` with a learned scale sigma.

    Args:
        dim: Feature width d.
        classes: Number of rows of W.
        sigma: Initial scale; 1 in the released code. It changes little in few steps, so small datasets need more.
        generator: Source of the initial W ~ U(-1/sqrt d, 1/sqrt d).
        negatives: Fixed rows [n, d] for classes that are not in the task. A task of one class needs them, because its
            cross-entropy is zero without.
    """

    negatives: Tensor | None

    def __init__(
        self,
        dim: int,
        classes: int,
        sigma: float = 1.0,
        generator: torch.Generator | None = None,
        negatives: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("negatives", negatives)
        bound = 1 / math.sqrt(dim)
        self.weight = nn.Parameter(torch.empty(classes, dim).uniform_(-bound, bound, generator=generator))
        self.sigma = nn.Parameter(torch.full((1,), float(sigma)))

    def forward(self, features: Tensor) -> Tensor:
        """[N, d] -> [N, classes], or [N, classes + n] with negatives."""
        rows = self.weight if self.negatives is None else torch.cat([self.weight, self.negatives])
        return self.sigma * F.linear(F.normalize(features, dim=-1), F.normalize(rows, dim=-1))
