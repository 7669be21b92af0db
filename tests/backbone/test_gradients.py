"""Training a tuning: gradients reach it and nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ease.backbone import Backbone, Tuning, tensors_hash
from ease.tuning import Adapter, Full
from tests.backbone.small_vits import assert_close, randomised, small_backbone


def tunings(backbone: Backbone) -> list[Tuning]:
    return [
        randomised(Adapter(backbone.shape, rank=4)),
        randomised(Full(backbone.vit)),
        randomised(Full(backbone.vit, blocks=[2])),
    ]


@pytest.mark.parametrize("which", [0, 1, 2], ids=["adapter", "full", "last block"])
def test_an_optimiser_step_leaves_the_base_as_it_was(which: int, images: Tensor) -> None:
    backbone = small_backbone()
    before = tensors_hash(backbone.vit.state_dict())
    tuning = tunings(backbone)[which]
    start = tuning.fingerprint()
    optimizer = torch.optim.SGD(tuning.parameters(), lr=0.1)
    backbone.forward(images, tuning).square().mean().backward()
    assert all(p.grad is None and not p.requires_grad for p in backbone.vit.parameters())
    assert all(p.grad is not None for p in tuning.parameters())
    optimizer.step()
    assert tensors_hash(backbone.vit.state_dict()) == before
    assert tuning.fingerprint() != start


@pytest.mark.parametrize("which", [0, 1, 2], ids=["adapter", "full", "last block"])
def test_forward_is_the_same_code_as_features(which: int, backbone: Backbone, images: Tensor) -> None:
    tuning = tunings(backbone)[which].eval()
    out = backbone.forward(images, tuning)
    assert out.requires_grad
    assert_close(out.detach(), backbone.features(images, [tuning])[0])


def test_gradients_are_those_of_finite_differences(images: Tensor) -> None:
    backbone = small_backbone(depth=2)
    backbone.vit.double()
    tuning = randomised(Adapter(backbone.shape, rank=2, dropout=0.0)).double()
    weights = [tuning.down[0].bias, tuning.up[1].bias]  # one per block is enough: [2] and [48]

    def loss(*_: Tensor) -> Tensor:
        return backbone.forward(images[:1].double(), tuning).square().mean()

    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)  # type: ignore[arg-type]


def test_features_build_no_graph(backbone: Backbone, images: Tensor) -> None:
    assert not backbone.features(images, tunings(backbone)).requires_grad
