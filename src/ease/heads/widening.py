"""A linear classifier over the concatenated features of a growing number of subspaces."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ease.heads.linear import GrowingLinear


class WideningLinear(GrowingLinear):
    """`W [f_1, ..., f_S] + b`. Each subspace adds columns and each class a row; existing weights stay."""

    def __init__(self) -> None:
        super().__init__(0)

    def widen(self, dim: int, generator: torch.Generator | None = None) -> None:
        """Add the columns of one more subspace to all rows, drawn from N(0, .02)."""
        columns = torch.empty(len(self.bias), dim).normal_(0, 0.02, generator=generator)
        self.weight = nn.Parameter(torch.cat([self.weight.detach(), columns.to(self.weight.device)], dim=1))


def side_by_side(features: Tensor) -> Tensor:
    """[S, N, d] -> [N, S*d], the concatenation of an image's features in all subspaces."""
    return features.transpose(0, 1).flatten(1)
