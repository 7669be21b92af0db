"""The ported forward is timm's forward, for every family we accept, at two input sizes."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch

from ease.backbone import Backbone, Layers
from ease.errors import EaseError
from tests.backbone.small_vits import PIXELS, assert_close, randomised, small_vit

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", {}),
    "vit with its classifier": ("vit_tiny_patch16_224", {"num_classes": 7}),
    "deit": ("deit_tiny_patch16_224", {}),
    "distilled deit": ("deit_tiny_distilled_patch16_224", {}),
    "deit3 (LayerScale, no class position)": ("deit3_small_patch16_224", {}),
    "dinov2": ("vit_small_patch14_dinov2", {}),
    "dinov2 with registers": ("vit_small_patch14_reg4_dinov2", {}),
    "dinov2 giant (gated MLP)": ("vit_giant_patch14_dinov2", {}),
    "clip (norm before the blocks)": ("vit_base_patch16_clip_224", {}),
    "siglip (attention pooling)": ("vit_base_patch16_siglip_224", {}),
    "mean pooling, fc_norm": ("vit_medium_patch16_gap_240", {}),
    "mean pooling over a class token": ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    "q and k norms": ("vit_tiny_patch16_224", {"qk_norm": True}),
    "norms inside attention and MLP": (
        "vit_tiny_patch16_224",
        {"scale_attn_norm": True, "scale_mlp_norm": True},
    ),
    "no biases": ("vit_tiny_patch16_224", {"qkv_bias": False, "proj_bias": False}),
    "dynamic image size": ("vit_tiny_patch16_224", {"dynamic_img_size": True}),
}


def small(name: str, override: dict[str, Any]) -> tuple[Any, int]:
    """That architecture, 3 blocks of width 48, 4x4 patches; and its patch size."""
    patch = 14 if "patch14" in name else 16
    vit = timm.create_model(
        name,
        **{"embed_dim": 48, "depth": 3, "num_heads": 3, "img_size": 4 * patch, "num_classes": 0, **override},
    )
    return randomised(vit).eval(), patch


@pytest.mark.parametrize("family", FAMILIES)
def test_feature_is_timms_own_pre_logits(family: str) -> None:
    name, override = FAMILIES[family]
    vit, patch = small(name, override)
    for grid in (4, 6):
        vit.set_input_size(img_size=(grid * patch, grid * patch))
        images = torch.randn(3, 3, grid * patch, grid * patch)
        with torch.no_grad():
            tokens = vit.forward_features(images)
            pooled = vit.forward_head(tokens, pre_logits=True)
        backbone = Backbone(vit, family, "0", PIXELS)
        assert_close(backbone.features(images, [None])[0], pooled)
        assert_close(backbone.forward(images), pooled)
        assert_close(backbone.features(images, [None], reading="tokens")[0], tokens)
        assert pooled.std() > 0.05, "the feature must not be trivial"


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_timms_own_intermediates(family: str) -> None:
    name, override = FAMILIES[family]
    vit, patch = small(name, override)
    images = torch.randn(3, 3, 4 * patch, 4 * patch)
    backbone = Backbone(vit, family, "0", PIXELS)
    for normed in (True, False):
        with torch.no_grad():
            blocks = vit.forward_intermediates(
                images,
                indices=3,
                return_prefix_tokens=True,
                norm=normed,
                output_fmt="NLC",
                intermediates_only=True,
            )
        # Without prefix tokens timm gives the patches alone, not a pair.
        pairs = [block if isinstance(block, tuple) else (block, None) for block in blocks]
        patches = [tokens.mean(dim=1) for tokens, _ in pairs]
        classes = [prefix[:, 0] for _, prefix in pairs] if vit.cls_token is not None else patches
        for count in (1, 2, 3):
            alone = Layers(count, normed=normed)
            assert_close(backbone.features(images, [None], alone)[0], torch.cat(classes[-count:], dim=1))
            both = Layers(count, patches=True, normed=normed)
            expected = classes[-count:] + (patches[-count:] if vit.cls_token is not None else [])
            assert_close(backbone.features(images, [None], both)[0], torch.cat(expected, dim=1))
            assert backbone.width(both) == backbone.features(images, [None], both).shape[-1]


def test_more_layers_than_there_are_blocks_are_refused(backbone: Backbone, images: torch.Tensor) -> None:
    for count in (0, 4):
        with pytest.raises(EaseError, match="choose 1 to 3"):
            backbone.features(images, [None], Layers(count))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_shallow_vit_whose_first_block_is_its_last(depth: int, images: torch.Tensor) -> None:
    vit = small_vit(depth=depth)
    with torch.no_grad():
        expected = vit.forward_head(vit.forward_features(images), pre_logits=True)
    assert_close(Backbone(vit, "shallow", "0", PIXELS).features(images, [None])[0], expected)


def test_class_token_alone_in_the_last_block_equals_the_whole_block(
    backbone: Backbone, images: torch.Tensor
) -> None:
    tokens = backbone.features(images, [None], reading="tokens")
    assert_close(backbone.features(images, [None]), tokens[:, :, 0])


def test_class_token_alone_computes_the_last_mlp_for_one_row(
    backbone: Backbone, images: torch.Tensor
) -> None:
    rows: list[int] = []
    hooks = [
        block.mlp.fc1.register_forward_hook(lambda _m, args, _o: rows.append(args[0].shape[1]))
        for block in backbone.vit.blocks
    ]
    backbone.features(images, [None])
    backbone.features(images, [None], reading="tokens")
    backbone.features(images, [None], Layers(3))
    backbone.features(images, [None], Layers(1, patches=True))
    for hook in hooks:
        hook.remove()
    assert rows == [17, 17, 1, 17, 17, 17, 17, 17, 1, 17, 17, 17]


def test_low_precision_compute_still_gives_fp32_features(backbone: Backbone, images: torch.Tensor) -> None:
    exact = backbone.features(images, [None])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = backbone.features(images, [None])
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert (rough - exact).abs().max() < 0.1 * exact.abs().max()


def test_a_half_precision_model_gives_fp32_features(images: torch.Tensor) -> None:
    backbone = Backbone(small_vit().bfloat16(), "half", "0", PIXELS)
    assert backbone.features(images.bfloat16(), [None]).dtype == torch.float32


def test_the_backbone_is_frozen_and_in_eval_mode() -> None:
    vit = small_vit().train()
    Backbone(vit, "tiny", "0", PIXELS)
    assert not vit.training
    assert not any(p.requires_grad for p in vit.parameters())


def test_the_classifier_is_not_counted() -> None:
    counts = {Backbone(small_vit(num_classes=n), "tiny", "0", PIXELS).parameter_count() for n in (0, 10)}
    assert len(counts) == 1
