"""Real weights and real photos, where they are at hand (EASE_SHARED); skipped elsewhere."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.streams.datasets import load_dataset

SHARED = Path(os.environ.get("EASE_SHARED", "nowhere"))
WEIGHTS = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"
PHOTOS = SHARED / "data" / "cifar100-200.tar"


@pytest.fixture(scope="module")
def deit() -> Backbone:
    if not WEIGHTS.exists():
        pytest.skip("no real DeiT-tiny: set EASE_SHARED")
    return load_backbone("deit_tiny_patch16_224", weights=WEIGHTS)


def test_a_real_deit_gives_timm_s_own_features(deit: Backbone) -> None:
    model = timm.create_model("deit_tiny_patch16_224").eval()
    model.load_state_dict(load_file(WEIGHTS))
    images = torch.randn(2, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(images), pre_logits=True)
    assert (deit.features(images, [None])[0] - expected).abs().max() <= 1e-5 * max(
        1.0, float(expected.abs().max())
    )
    assert deit.pixels.mean == pytest.approx((0.485, 0.456, 0.406))


def test_the_hash_is_of_the_file_whatever_the_input_size(deit: Backbone) -> None:
    smaller = load_backbone("deit_tiny_patch16_224", weights=WEIGHTS, input_size=128)
    assert smaller.weights_hash == deit.weights_hash
    assert smaller.features(torch.zeros(1, 3, 128, 128), [None]).shape == (1, 1, 192)


def test_a_cifar_subset_is_a_subset_and_not_damage(tmp_path: Path) -> None:
    if not PHOTOS.exists():
        pytest.skip("no CIFAR-100 subset: set EASE_SHARED")
    with tarfile.open(PHOTOS) as archive:
        found: dict[str, int] = {}
        wanted = []
        for member in archive:
            folder = member.name.rpartition("/")[0]
            found[folder] = found.get(folder, 0) + 1
            if member.isfile() and found[folder] <= 2:
                wanted.append(member)
        archive.extractall(tmp_path, members=wanted, filter="data")
    data = load_dataset("cifar100", tmp_path)
    assert len(data.class_names) == 100
    assert any("subset" in note for note in data.notes)
    assert data.train.image(0).shape == (3, 32, 32)
