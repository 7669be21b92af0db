"""All subspaces of a batch in one call: the same as one by one, and cheaper."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.backbone import PTM, Backbone, Layers, Tuning, vit
from ease.tuning import Adapter, Full
from tests.backbone.small_vits import assert_close, randomised, small_backbone, some_images

BACKBONE = small_backbone()
SHAPE = BACKBONE.shape


def adapter(seed: int = 0, **settings: Any) -> Adapter:
    return randomised(Adapter(SHAPE, **{"rank": 4, "scale": 0.7, **settings}), seed).eval()


POOL: list[Tuning | None] = [
    None,
    PTM,
    adapter(1),
    adapter(2, rank=7),
    adapter(3, rank=1, bias=False),
    adapter(4, rank=5, reads="normed", scale=1.0),
    adapter(5, rank=3, reads="normed", bias=False),
    randomised(Full(BACKBONE.vit), 6).eval(),
    randomised(Full(BACKBONE.vit, blocks=[2]), 7).eval(),
    randomised(Full(BACKBONE.vit, blocks=[1]), 8).eval(),
    randomised(Full(BACKBONE.vit, blocks=[]), 9).eval(),
]


def one_by_one(backbone: Backbone, images: Tensor, tunings: list[Tuning | None], reading: Any) -> Tensor:
    with torch.no_grad():
        return torch.stack([backbone.forward(images, t, reading) for t in tunings])


@settings(max_examples=40, deadline=None)
@given(
    chosen=st.lists(st.integers(0, len(POOL) - 1), min_size=1, max_size=8),
    reading=st.sampled_from(
        ["pooled", "tokens", Layers(1), Layers(2, patches=True), Layers(3), Layers(3, normed=False)]
    ),
    count=st.integers(1, 4),
    at_once=st.sampled_from([1, 150, 2**14]),
)
def test_any_subspaces_in_any_order_equal_separate_passes(
    chosen: list[int], reading: Any, count: int, at_once: int
) -> None:
    tunings = [POOL[i] for i in chosen]
    images = some_images(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vit, "TOKENS_AT_ONCE", {"cpu": at_once})
        together = BACKBONE.features(images, tunings, reading)
    assert together.dtype == torch.float32
    assert_close(together, one_by_one(BACKBONE, images, tunings, reading))


@pytest.mark.parametrize(
    "override",
    [
        {"depth": 1},
        {"global_pool": "avg"},
        {"global_pool": "map"},
        {"init_values": 0.5, "no_embed_class": True, "reg_tokens": 2},
        {"qk_norm": True, "pre_norm": True},
        {"dynamic_img_size": True},
    ],
)
def test_subspaces_of_other_vits_equal_separate_passes(override: dict[str, Any]) -> None:
    backbone = small_backbone(**override)
    adapters = [randomised(Adapter(backbone.shape, rank=r), r).eval() for r in (2, 3)]
    tunings: list[Tuning | None] = [adapters[0], None, randomised(Full(backbone.vit), 5).eval(), adapters[1]]
    images = some_images(3)
    depth = backbone.shape.depth
    for reading in (Layers(depth), Layers(depth, patches=True), "pooled"):
        together = backbone.features(images, tunings, reading)
        assert_close(together, one_by_one(backbone, images, tunings, reading))
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_a_feature_does_not_depend_on_the_rest_of_its_batch(images: Tensor) -> None:
    whole = BACKBONE.features(images, POOL)
    for n in range(len(images)):
        assert_close(BACKBONE.features(images[n : n + 1], POOL), whole[:, n : n + 1])
    assert_close(BACKBONE.features(images.flip(0), POOL), whole.flip(1))


def calls(backbone: Backbone, images: Tensor, tunings: list[Tuning | None]) -> Counter[str]:
    counted: Counter[str] = Counter()
    watched = {"patch_embed": backbone.vit.patch_embed}
    for i, block in enumerate(backbone.vit.blocks):
        watched |= {f"qkv{i}": block.attn.qkv, f"fc1{i}": block.mlp.fc1, f"norm1{i}": block.norm1}
    hooks = [
        module.register_forward_hook(lambda _m, _a, _o, name=name: counted.update([name]))
        for name, module in watched.items()
    ]
    backbone.features(images, tunings)
    for hook in hooks:
        hook.remove()
    return counted


def test_adapters_and_the_ptm_share_the_embedding_and_the_first_block(images: Tensor) -> None:
    tunings = [adapter(1), None, adapter(2, rank=7), adapter(3, reads="normed")]
    counted = calls(BACKBONE, images, tunings)
    assert counted["patch_embed"] == counted["qkv0"] == counted["fc10"] == 1
    assert counted["qkv1"] == 1, "later blocks see all subspaces side by side"


def test_blocks_before_the_first_copied_one_are_shared(images: Tensor) -> None:
    tunings: list[Tuning | None] = [Full(BACKBONE.vit, blocks=[2]) for _ in range(3)]
    counted = calls(BACKBONE, images, tunings)
    assert counted["patch_embed"] == counted["qkv0"] == counted["qkv1"] == 1
    assert counted["norm12"] == 0, "each has a last block of its own"


def test_side_by_side_is_bounded(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vit, "TOKENS_AT_ONCE", {"cpu": 2 * len(images) * 17})
    counted = calls(BACKBONE, images, [adapter(i) for i in range(5)])
    assert counted["qkv0"] == 1
    assert counted["qkv1"] == 3, "5 subspaces, 2 at once"


def test_changed_weights_change_the_next_features(images: Tensor) -> None:
    """Whatever way they were changed, and whatever memory they took over."""
    pair = [adapter(1), adapter(2)]
    before = BACKBONE.features(images, pair)
    pair[1].up[0].weight.data.mul_(2.0)  # type: ignore[union-attr, operator]
    assert not torch.equal(BACKBONE.features(images, pair)[1], before[1])
    for seed in range(3, 9):
        fresh = [adapter(seed), adapter(seed + 10)]
        assert_close(BACKBONE.features(images, fresh), one_by_one(BACKBONE, images, fresh, "pooled"))
        del fresh


def test_features_have_no_dropout_even_while_the_tuning_trains(images: Tensor) -> None:
    learning, other = adapter(1, dropout=0.5).train(), adapter(2)
    expected = BACKBONE.features(images, [adapter(1)])
    assert_close(BACKBONE.features(images, [learning]), expected)
    assert_close(BACKBONE.features(images, [learning, other])[:1], expected)
    assert learning.training
    assert not other.training
    assert not torch.allclose(BACKBONE.forward(images, learning), expected[0])


def test_low_precision_side_by_side_gives_fp32(images: Tensor) -> None:
    exact = BACKBONE.features(images, POOL)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = BACKBONE.features(images, POOL)
    assert rough.dtype == torch.float32
    assert (rough - exact).abs().max() < 0.2 * exact.abs().max()
