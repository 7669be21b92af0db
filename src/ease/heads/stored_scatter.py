"""The pooled scatter in a model's file: one triangle in fp32, or a triangular factor in fp16 or int8.

In fewer digits than fp32 the scatter itself cannot be kept. There are directions in which features hardly vary, and the
rounding errors of the matrix are larger than what little it holds there: it is no longer positive, and scores change.
A factor L can be rounded as coarsely as one likes, since L L^T is positive whatever L is (measured by
`benchmarks/statistics_storage.py`).
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
    """What a file holds of a scatter [K, K].

    Returns:
        In fp32 the `scatter`'s lower triangle [K (K + 1) / 2]. Else the `deviations` [K] in fp32, which are few, and
        the lower triangle of the `factor` in this storage. In int8 each of its rows has a scale, and square roots are
        stored in place of the numbers: most are far smaller than the largest of their row, and get finer steps so.
    """
    if storage == "fp32":
        return {"scatter": packed_triangle(scatter).float()}
    deviations, factor = factored_scatter(scatter)
    if storage == "int8":
        factor = factor.abs().sqrt() * factor.sign()
    narrow = Packed({FACTOR: factor.float()}).repacked(storage).tensors
    return {DEVIATIONS: deviations.float(), **narrow, FACTOR: packed_triangle(narrow[FACTOR])}


def scatter_of(tensors: Mapping[str, Tensor], storage: str, width: int) -> Tensor:
    """The scatter [K, K] in fp64 that such tensors are what is left of."""
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
