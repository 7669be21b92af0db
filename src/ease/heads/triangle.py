"""Symmetric and triangular matrices as the numbers of one triangle, which is what is stored."""

from __future__ import annotations

import torch
from torch import Tensor


def packed_triangle(matrix: Tensor) -> Tensor:
    """The lower triangle of [M, M], row by row, as [M (M + 1) / 2]."""
    return matrix[_lower(len(matrix))]


def unpacked_triangle(values: Tensor, width: int) -> Tensor:
    """The symmetric [M, M] whose lower triangle these values are."""
    matrix = unpacked_lower(values, width)
    return matrix + matrix.tril(-1).mT


def unpacked_lower(values: Tensor, width: int) -> Tensor:
    """The lower triangular [M, M] made of these values; zeros above."""
    if values.shape != (width * (width + 1) // 2,):
        raise ValueError(f"{list(values.shape)} are not the numbers of half a {width} x {width} matrix")
    matrix = values.new_zeros(width, width)
    matrix[_lower(width)] = values
    return matrix


def _lower(width: int) -> Tensor:
    """A mask [M, M], which takes less memory than a list of positions."""
    return torch.ones(width, width, dtype=torch.bool).tril_()
