"""Matrices of which one triangle is stored, and the inverse of a triangular one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads.triangle import inverse_of_lower, packed_triangle, unpacked_lower, unpacked_triangle


def factor(width: int, seed: int = 0) -> torch.Tensor:
    """The Cholesky factor of a covariance."""
    rows = torch.randn(width, 2 * width, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.cholesky(rows @ rows.mT / width)


@given(width=st.integers(1, 40), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_what_is_packed_is_unpacked_again(width: int, seed: int) -> None:
    lower = factor(width, seed)
    assert packed_triangle(lower).shape == (width * (width + 1) // 2,)
    assert torch.equal(unpacked_lower(packed_triangle(lower), width), lower)
    symmetric = lower + lower.mT
    assert torch.equal(unpacked_triangle(packed_triangle(symmetric), width), symmetric)


@pytest.mark.parametrize("width", [1, 2, 192, 193, 400, 769])  # as a whole, in halves, odd halves, quarters
def test_the_inverse_of_a_lower_triangle(width: int) -> None:
    lower = factor(width)
    inverse = inverse_of_lower(lower)
    assert np.allclose(inverse.numpy(), np.linalg.inv(lower.numpy()), rtol=0, atol=1e-12)
    assert torch.equal(inverse, inverse.tril())
