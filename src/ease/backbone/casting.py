"""A frozen model whose matrix products have their weights in another floating-point type."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

MATRIX_PRODUCTS = (nn.Linear, nn.Conv2d)
"""The layers whose weights autocast converts."""


def cast_copy(vit: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a model whose linear layers and convolutions are in `dtype`; it shares all other tensors."""
    own = {id(p) for part in vit.modules() if isinstance(part, MATRIX_PRODUCTS) for p in part.parameters()}
    tensors: list[Tensor] = [*vit.parameters(), *vit.buffers()]
    # What the memo names is taken as it is instead of being copied.
    memo = {id(tensor): tensor for tensor in tensors if id(tensor) not in own}
    memo |= {id(p): nn.Parameter(p.detach().to(dtype), requires_grad=False) for p in tensors if id(p) in own}
    return copy.deepcopy(vit, memo)
