"""How the pooled scatter is saved: one triangle in fp32, or a triangular factor in fp16 or int8.

Below fp32 the scatter itself cannot be rounded. In directions in which features hardly vary, the rounding errors of the
matrix exceed its values: it is no longer positive definite, and scores change. A factor L can be rounded to any
precision, since L L^T is always positive semidefinite (measured by `benchmarks/statistics_storage.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ease.heads.triangle import packed_triangle, unpacked_lower, unpacked_triangle
from ease.heads.whitened import factored_scatter
from ease.storage.precision import Packed

FACTOR, DEVIATIONS = "factor", "deviations"


def scatter_tensors(scatter: Tensor, storage: str) -> dict[str, Tensor]:
    """The tensors that a scatter [K, K] is saved as.

    Returns:
        In fp32 the lower triangle of the `scatter`, [K (K + 1) / 2]. Otherwise the `deviations` [K] in fp32 and the
        lower triangle of the `factor` in this storage. In int8 each row of the factor has a scale, and square roots are
        stored in place of the numbers, because most numbers are far smaller than the largest one of their row.
    """
    if storage == "fp32":
        return {"scatter": packed_triangle(scatter).float()}
    deviations, factor = factored_scatter(scatter)
    if storage == "int8":
        factor = factor.abs().sqrt() * factor.sign()
    narrow = Packed({FACTOR: factor.float()}).repacked(storage).tensors
    return {DEVIATIONS: deviations.float(), **narrow, FACTOR: packed_triangle(narrow[FACTOR])}


def scatter_of(tensors: Mapping[str, Tensor], storage: str, width: int) -> Tensor:
    """Restore the scatter [K, K] in fp64 from the tensors that it was saved as."""
    if storage == "fp32":
        return unpacked_triangle(tensors["scatter"].double(), width)
    deviations = tensors[DEVIATIONS].double()
    if deviations.shape != (width,) or not bool((deviations >= 0).all() & deviations.isfinite().all()):
        raise ValueError(f"the deviations {list(deviations.shape)} of {width} features do not make sense")
    narrow = {name: value for name, value in tensors.items() if name != DEVIATIONS}
    narrow[FACTOR] = unpacked_lower(narrow[FACTOR], width)
    factor = Packed(narrow, storage).unpacked()[FACTOR].double()
    if storage == "int8":
        factor = factor * factor.abs()
    rows = deviations[:, None] * factor
    return torch.mm(rows, rows.mT)
