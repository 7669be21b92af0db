"""Small ViTs whose weights are all random: nothing is trivially zero or one."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import ease.vision_libraries  # noqa: F401  (before timm)
from ease.backbone import Backbone, Pixels

M = TypeVar("M", bound=nn.Module)
PIXELS = Pixels(32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))


def randomised(module: M, seed: int = 0, std: float = 0.2) -> M:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            multiplies = "scale" in name or ("norm" in name and name.endswith("weight"))
            noise = std * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise + 1.0 if multiplies else noise)
    return module


def small_vit(**override: Any) -> Any:
    """A plain ViT: 32 px, patch 8, width 48, 3 blocks, 3 heads."""
    from timm.models.vision_transformer import VisionTransformer

    settings = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
    return randomised(VisionTransformer(**{**settings, "num_classes": 0, **override})).eval()


def small_backbone(**override: Any) -> Backbone:
    return Backbone(small_vit(**override), "small", "0", PIXELS)


def some_images(count: int = 4, side: int = 32) -> Tensor:
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(7))


def assert_close(a: Tensor, b: Tensor) -> None:
    """The contract's tolerance."""
    assert a.shape == b.shape
    assert torch.isfinite(a).all()
    assert (a - b).abs().max() <= 1e-5 * max(1.0, b.abs().max().item())
