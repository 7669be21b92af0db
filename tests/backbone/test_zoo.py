"""From a name, or a file, to a frozen backbone; and what people read when that fails."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor

from ease.backbone import Shape, backbone_from_state, backbone_list, load_backbone, zoo
from ease.errors import EaseError
from tests.backbone.small_vits import PIXELS, assert_close, randomised, small_vit, some_images

NAME = "test_vit"  # timm's own smallest: 160 px, patch 16, width 64, 6 blocks
SHARED = os.environ.get("EASE_SHARED")


@pytest.fixture(scope="module")
def source() -> Any:
    """That architecture with random weights and a classifier, as a file would hold it."""
    return randomised(timm.create_model(NAME, num_classes=5)).eval()


@pytest.fixture
def file(source: Any, tmp_path: Path) -> Path:
    path = tmp_path / "vit.safetensors"
    save_file(source.state_dict(), path)
    return path


def expected(vit: Any, images: Tensor) -> Tensor:
    with torch.no_grad():
        return vit.forward_head(vit.forward_features(images), pre_logits=True)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.usefixtures("no_network")
class TestEmbedded:
    def test_it_needs_no_network(self) -> None:
        backbone = load_backbone()
        assert backbone.name == "ease-vit"
        assert backbone.shape == Shape(dim=192, depth=6, heads=3, hidden=768)
        assert backbone.parameter_count() == 2_719_296
        assert backbone.pixels == zoo.Pixels(64, (0.5,) * 3, (0.5,) * 3, "bicubic")
        assert {p.dtype for p in backbone.vit.parameters()} == {torch.float32}
        assert torch.isfinite(backbone.features(some_images(2, 64), [None])).all()

    def test_its_hash_is_that_of_the_file_at_any_input_size(self) -> None:
        small = load_backbone(input_size=32)
        assert small.pixels.size == 32
        assert small.features(some_images(1, 32), [None]).shape == (1, 1, 192)
        assert small.weights_hash == load_backbone().weights_hash

    def test_random_weights_are_the_same_every_time_and_leave_the_global_generator_alone(self) -> None:
        torch.manual_seed(3)
        one = load_backbone(pretrained=False)
        torch.manual_seed(4)
        before = torch.get_rng_state()
        two = load_backbone(pretrained=False)
        assert torch.equal(torch.get_rng_state(), before)
        assert one.weights_hash == two.weights_hash != load_backbone().weights_hash

    def test_pixels_without_normalisation(self) -> None:
        pixels = load_backbone(normalize="none").pixels
        assert (pixels.mean, pixels.std) == ((0.0,) * 3, (1.0,) * 3)

    def test_it_takes_another_file_of_its_shape(self, tmp_path: Path) -> None:
        random = load_backbone(pretrained=False)
        save_file(random.vit.state_dict(), tmp_path / "mine.safetensors")
        mine = load_backbone(weights=tmp_path / "mine.safetensors")
        assert mine.weights_hash == random.weights_hash


class TestLocalFile:
    def test_it_gives_timms_feature_and_pixels(self, source: Any, file: Path) -> None:
        backbone = load_backbone(NAME, weights=str(file))
        images = some_images(2, 160)
        assert_close(backbone.features(images, [None])[0], expected(source, images))
        assert backbone.pixels == zoo.Pixels(160, (0.5,) * 3, (0.5,) * 3, "bicubic")

    def test_jax_archive(self, source: Any, tmp_path: Path) -> None:
        np.savez(tmp_path / "vit.npz", **jax_names(source))
        images = some_images(2, 160)
        backbone = load_backbone(NAME, weights=tmp_path / "vit.npz")
        assert_close(backbone.features(images, [None])[0], expected(source, images))

    def test_half_precision_is_computed_in_fp32(self, source: Any, tmp_path: Path) -> None:
        save_file({k: v.half() for k, v in source.state_dict().items()}, tmp_path / "half.safetensors")
        backbone = load_backbone(NAME, weights=tmp_path / "half.safetensors")
        assert {p.dtype for p in backbone.vit.parameters()} == {torch.float32}

    def test_another_input_size_resamples_the_positions_once(self, source: Any, file: Path) -> None:
        backbone = load_backbone(NAME, weights=file, input_size=96)
        resized = timm.create_model(NAME, num_classes=5)
        resized.load_state_dict(source.state_dict())
        resized.eval().set_input_size(img_size=(96, 96))
        images = some_images(2, 96)
        assert_close(backbone.features(images, [None])[0], expected(resized, images))
        assert backbone.pixels.size == 96
        assert backbone.weights_hash == load_backbone(NAME, weights=file).weights_hash

    def test_the_hash_names_the_weights_but_not_the_classifier(self, source: Any, file: Path) -> None:
        first = load_backbone(NAME, weights=file).weights_hash
        other = {k: v.clone() for k, v in source.state_dict().items()}
        other["head.weight"] += 1
        save_file(other, file)
        assert load_backbone(NAME, weights=file).weights_hash == first
        other["blocks.3.mlp.fc1.bias"][0] += 1e-3
        save_file(other, file)
        assert load_backbone(NAME, weights=file).weights_hash != first

    def test_attention_pooling_is_part_of_the_weights(self) -> None:
        source, target = small_vit(global_pool="map"), small_vit(global_pool="map")
        torch.nn.init.zeros_(target.attn_pool.latent)
        zoo._load(target, source.state_dict(), "the file", "siglip")
        assert torch.equal(target.attn_pool.latent, source.attn_pool.latent)


class TestHub:
    @pytest.fixture
    def hub(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A hub that serves the file."""
        create = timm.create_model

        def served(name: str, pretrained: bool = False, **settings: Any) -> Any:
            overlay = {"file": str(file), "hf_hub_id": None, "url": ""} if pretrained else None
            return create(name, pretrained=pretrained, pretrained_cfg_overlay=overlay, **settings)

        monkeypatch.setattr(zoo.timm, "create_model", served)

    @pytest.mark.usefixtures("hub")
    @pytest.mark.parametrize("size", [None, 96])
    def test_weights_by_name_are_those_of_the_same_file(self, size: int | None, file: Path) -> None:
        fetched, local = (
            load_backbone(NAME, input_size=size),
            load_backbone(NAME, weights=file, input_size=size),
        )
        assert fetched.weights_hash == local.weights_hash
        images = some_images(2, size or 160)
        assert_close(fetched.features(images, [None]), local.features(images, [None]))

    @pytest.mark.usefixtures("no_network")
    def test_without_a_network_one_line_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(zoo, "_unreachable", {})
        monkeypatch.setattr(zoo.hub, "HF_HUB_OFFLINE", False)
        with pytest.raises(EaseError, match=r"test_vit2.*cannot be fetched.*--weights"):
            load_backbone("test_vit2")
        assert zoo.hub.HF_HUB_OFFLINE is False


class TestErrors:
    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("vit_tinny_patch16_224", "did you mean 'vit_tiny_patch16_224'"),
            ("ease-vti", "did you mean 'ease-vit'"),
            ("vit_tiny_patch16_224.augreg_in22k", "did you mean 'vit_tiny_patch16_224.augreg_in21k'"),
            ("resnet18", "not a plain ViT"),
            ("eva02_tiny_patch14_224", "not a plain ViT"),
            ("vit_small_patch16_dinov3", "not a plain ViT"),
            ("vit_small_patch16_18x2_224", "ParallelThingsBlock"),
            ("vit_base_patch16_rpn_224", "ResPostBlock"),
            ("test_vit4", "no weights"),
        ],
    )
    def test_names_we_cannot_load(self, name: str, message: str) -> None:
        assert message in error(name)

    @pytest.mark.parametrize("size", [100, 8, 0])
    def test_an_input_size_that_patches_do_not_divide(self, size: int) -> None:
        assert "16 px patches" in error(NAME, input_size=size, pretrained=False)

    def test_an_unknown_normalisation(self) -> None:
        assert "did you mean 'none'" in error("ease-vit", normalize="non")

    def test_files_of_another_architecture(self, file: Path, source: Any) -> None:
        assert "does not fit" in error("deit_tiny_distilled_patch16_224", weights=file)
        assert "another architecture" in error("vit_tiny_patch16_224", weights=file)
        assert "patches are 16x16, not 8x8" in error("ease-vit", weights=file)
        state = source.state_dict()
        extra = {k.replace("blocks.5", "blocks.6"): v.clone() for k, v in state.items() if "blocks.5" in k}
        save_file({**state, **extra}, file)
        assert "also holds 'blocks.6." in error(NAME, weights=file)
        save_file({k: v for k, v in state.items() if "blocks.5" not in k}, file)
        assert "lacks 'blocks.5." in error(NAME, weights=file)
        save_file({"a": torch.zeros(2)}, file)
        assert "does not fit" in error(NAME, weights=file)

    def test_jax_files_of_another_architecture(self, source: Any, tmp_path: Path) -> None:
        path = tmp_path / "vit.npz"
        names = jax_names(source)
        np.savez(path, **{k: v for k, v in names.items() if "encoderblock_5" not in k})
        assert "5 blocks, not 6" in error(NAME, weights=path)
        np.savez(path, **{**names, "embedding/kernel": np.zeros((8, 8, 3, 64), np.float32)})
        assert "patches are 8x8" in error(NAME, weights=path)
        np.savez(path, a=np.zeros(3))
        assert "another architecture" in error(NAME, weights=path)
        np.savez(path, a=np.array([{}], dtype=object))
        assert "cannot be read" in error(NAME, weights=path)

    @pytest.mark.parametrize("suffix", ["safetensors", "npz"])
    def test_damaged_files(self, source: Any, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"vit.{suffix}"
        if suffix == "safetensors":
            save_file(source.state_dict(), path)
        else:
            np.savez(path, **jax_names(source))
        for content in (path.read_bytes()[:1000], b"", b"not weights"):
            path.write_bytes(content)
            assert "damaged" in error(NAME, weights=path)

    @pytest.mark.parametrize("suffix", ["pth", "pt", "bin"])
    def test_a_pickle_is_not_even_opened(self, source: Any, tmp_path: Path, suffix: str) -> None:
        torch.save(source.state_dict(), tmp_path / f"vit.{suffix}")
        assert "save its tensors with safetensors" in error(NAME, weights=tmp_path / f"vit.{suffix}")

    def test_files_that_are_not_weights(self, tmp_path: Path) -> None:
        assert "does not exist" in error(NAME, weights=tmp_path / "none.safetensors")
        (tmp_path / "a.zip").write_bytes(b"")
        assert "unknown type" in error(NAME, weights=tmp_path / "a.zip")


class TestFromState:
    @pytest.mark.parametrize("override", [{}, {"qkv_bias": False}, {"init_values": 0.1}, {"mlp_ratio": 2.5}])
    def test_width_and_depth_follow_from_the_tensors(self, override: dict[str, Any]) -> None:
        vit = small_vit(**override)
        backbone = backbone_from_state(
            vit.state_dict(), img_size=32, patch_size=8, heads=3, name="mine", pixels=PIXELS
        )
        images = some_images(2)
        assert_close(backbone.features(images, [None])[0], expected(vit, images))
        assert backbone.pixels == PIXELS

    def test_tensors_that_are_no_vit(self) -> None:
        with pytest.raises(EaseError, match="not a ViT"):
            backbone_from_state({}, img_size=32, patch_size=8, heads=3, name="mine", pixels=PIXELS)


@pytest.mark.skipif(not SHARED, reason="EASE_SHARED is not set")
def test_a_real_deit_loads_by_name_with_a_local_file() -> None:
    path = Path(str(SHARED)) / "weights" / "deit_tiny_patch16_224.safetensors"
    backbone = load_backbone("deit_tiny_patch16_224.fb_in1k", weights=path, input_size=112)
    assert backbone.pixels.mean == (0.485, 0.456, 0.406)
    assert backbone.parameter_count() == 5_717_416 - 192_000 - 1000 - (196 - 49) * 192
    assert torch.isfinite(backbone.features(some_images(1, 112), [None])).all()


def test_the_list_names_what_the_paper_used() -> None:
    listed = backbone_list()
    assert next(iter(listed)) == "ease-vit"
    assert "IN21K" in listed["vit_base_patch16_224.augreg_in21k"]
    assert "IN1K" in listed["vit_base_patch16_224.augreg_in21k_ft_in1k"]
    for name in listed:
        if not name.startswith(("<", "ease")):
            assert zoo._known(name)


def error(name: str, **settings: Any) -> str:
    with pytest.raises(EaseError) as caught:
        load_backbone(name, **settings)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def jax_names(vit: Any) -> dict[str, np.ndarray]:
    """The layout of the original JAX checkpoints."""
    state = {k: v.numpy() for k, v in vit.state_dict().items()}
    heads, dim = vit.blocks[0].attn.num_heads, vit.embed_dim
    out = {
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "cls": state["cls_token"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
    }
    for i in range(len(vit.blocks)):
        ours, theirs = f"blocks.{i}.", f"Transformer/encoderblock_{i}/"
        attention = theirs + "MultiHeadDotProductAttention_1/"
        for norm, number in (("norm1", 0), ("norm2", 2)):
            out[f"{theirs}LayerNorm_{number}/scale"] = state[f"{ours}{norm}.weight"]
            out[f"{theirs}LayerNorm_{number}/bias"] = state[f"{ours}{norm}.bias"]
        weights = np.split(state[f"{ours}attn.qkv.weight"], 3)
        biases = np.split(state[f"{ours}attn.qkv.bias"], 3)
        for part, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            out[f"{attention}{part}/kernel"] = weight.T.reshape(dim, heads, -1)
            out[f"{attention}{part}/bias"] = bias.reshape(heads, -1)
        out[f"{attention}out/kernel"] = state[f"{ours}attn.proj.weight"].T.reshape(heads, -1, dim)
        out[f"{attention}out/bias"] = state[f"{ours}attn.proj.bias"]
        for number, linear in enumerate(("fc1", "fc2")):
            out[f"{theirs}MlpBlock_3/Dense_{number}/kernel"] = state[f"{ours}mlp.{linear}.weight"].T
            out[f"{theirs}MlpBlock_3/Dense_{number}/bias"] = state[f"{ours}mlp.{linear}.bias"]
    return out
