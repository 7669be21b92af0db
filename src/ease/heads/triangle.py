"""Symmetric and triangular matrices as the numbers of one triangle, which is what is stored."""

from __future__ import annotations

import torch
from torch import Tensor

SOLVED_AS_A_WHOLE = 192
"""Up to this width, a triangular matrix is inverted in one call: smaller halves take no less time."""


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


def inverse_of_lower(matrix: Tensor) -> Tensor:
    """The inverse of a lower triangular [M, M], which is lower triangular, too.

    By halves: [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]. To solve for the identity as a whole would take
    twice the time, since it does not use that half of the result is zero.
    """
    width = len(matrix)
    if width <= SOLVED_AS_A_WHOLE:
        unit = torch.eye(width, dtype=matrix.dtype, device=matrix.device)
        return torch.linalg.solve_triangular(matrix, unit, upper=False)
    first = slice(0, width // 2)
    rest = slice(width // 2, width)
    inverse = torch.zeros_like(matrix)
    inverse[first, first] = inverse_of_lower(matrix[first, first])
    inverse[rest, rest] = inverse_of_lower(matrix[rest, rest])
    inverse[rest, first] = -(inverse[rest, rest] @ (matrix[rest, first] @ inverse[first, first]))
    return inverse


def _lower(width: int) -> Tensor:
    """A mask [M, M], which takes less memory than a list of positions."""
    return torch.ones(width, width, dtype=torch.bool).tril_()
