"""The adapter of Eq. 4, as released and as the paper's text has it."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ease.backbone import Backbone, Shape
from ease.errors import EaseError
from ease.tuning import Adapter
from tests.backbone.small_vits import assert_close, randomised

VIT_B = Shape(dim=768, depth=12, heads=12, hidden=3072)


@pytest.mark.parametrize(("rank", "count"), [(64, 1_189_632), (16, 304_320)])
def test_parameters_per_task_on_vit_b(rank: int, count: int) -> None:
    assert Adapter(VIT_B, rank=rank).parameter_count() == count


def test_the_papers_text_counts_no_biases() -> None:
    assert Adapter(VIT_B, rank=16, bias=False).parameter_count() == 12 * 2 * 768 * 16


@pytest.mark.parametrize("reads", ["stream", "normed"])
def test_a_new_adapter_is_the_identity_on_the_ptm(
    backbone: Backbone, images: Tensor, reads: Literal["stream", "normed"]
) -> None:
    new = Adapter(backbone.shape, rank=4, reads=reads)
    assert torch.equal(backbone.forward(images, new), backbone.forward(images))


def test_down_is_kaiming_and_all_else_zero(backbone: Backbone) -> None:
    new = Adapter(backbone.shape, rank=4)
    bound = backbone.dim**-0.5
    for name, parameter in new.named_parameters():
        if name.startswith("down") and name.endswith("weight"):
            assert 0.8 * bound < parameter.abs().max() <= bound
        else:
            assert not parameter.any()


@pytest.mark.parametrize("reads", ["stream", "normed"])
def test_it_adds_the_scaled_bottleneck_beside_the_mlp(
    backbone: Backbone, images: Tensor, reads: Literal["stream", "normed"]
) -> None:
    """By hand, with timm's own modules, in the first block."""
    adapter = randomised(Adapter(backbone.shape, rank=4, reads=reads)).eval()
    block = backbone.vit.blocks[0]
    seen: list[Tensor] = []
    hook = backbone.vit.blocks[1].norm1.register_forward_hook(lambda _m, args, _o: seen.append(args[0]))
    with torch.no_grad():
        backbone.forward(images, adapter)
        hook.remove()
        x = backbone.vit._pos_embed(backbone.vit.patch_embed(images))
        x1 = x + block.attn(block.norm1(x))
        value = x1 if reads == "stream" else block.norm2(x1)
        down, up = adapter.down[0], adapter.up[0]
        assert isinstance(down.weight, Tensor)
        assert isinstance(up.weight, Tensor)
        branch = F.relu(value @ down.weight.T + down.bias) @ up.weight.T + up.bias
        assert_close(seen[0], x1 + block.mlp(block.norm2(x1)) + 0.1 * branch)


def test_dropout_is_for_training_only(backbone: Backbone, images: Tensor) -> None:
    adapter = randomised(Adapter(backbone.shape, rank=8, dropout=0.5))
    learning = [backbone.forward(images, adapter.train()) for _ in range(2)]
    assert not torch.equal(*learning)
    frozen = adapter.freeze()
    assert not any(p.requires_grad for p in frozen.parameters())
    assert torch.equal(backbone.forward(images, frozen), backbone.forward(images, frozen))


def test_an_unknown_input_is_refused(backbone: Backbone) -> None:
    with pytest.raises(EaseError, match="did you mean 'stream'"):
        Adapter(backbone.shape, reads="steam")  # type: ignore[arg-type]
