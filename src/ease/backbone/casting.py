"""A frozen model whose matrix products have their weights in another floating-point type."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

MATRIX_PRODUCTS = (nn.Linear, nn.Conv2d)
"""The layers whose weights autocast converts."""


def cast_copy(vit: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy of a model whose linear layers and convolutions are in `dtype`; it shares all other tensors."""
    copies: dict[nn.Module, nn.Module] = {}

    def copied(part: nn.Module) -> nn.Module:
        if part not in copies:
            copies[part] = twin = copy.copy(part)
            twin._modules = {
                n: None if inner is None else copied(inner) for n, inner in part._modules.items()
            }
            if isinstance(part, MATRIX_PRODUCTS):
                twin._parameters = {name: _cast(value, dtype) for name, value in part._parameters.items()}
        return copies[part]

    return copied(vit)


def _cast(parameter: Tensor | None, dtype: torch.dtype) -> nn.Parameter | None:
    return None if parameter is None else nn.Parameter(parameter.detach().to(dtype), requires_grad=False)
