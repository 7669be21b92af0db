"""From a name to a frozen backbone: weights embedded in the package, in a local file or on timm's hub."""

from __future__ import annotations

import functools
import io
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlparse
from urllib.request import getproxies

import numpy as np
import timm
import torch
from huggingface_hub import constants as hub
from safetensors.torch import load
from timm.models import is_model_in_modules
from timm.models.vision_transformer import VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from ease.backbone.block import check_supported
from ease.backbone.ports import tensors_hash
from ease.backbone.vit import Backbone, Pixels
from ease.backbone.weights_file import read_weights
from ease.errors import EaseError, unknown

EMBEDDED = "ease-vit"
LARGEST_INPUT = 2048
"""Side length of the input. The tokens of an image, and the memory they take, grow with its square."""
FAMILIES = ["vision_transformer", "deit"]
"""The modules of timm that define plain ViTs."""

_CURATED = {
    EMBEDDED: "embedded in the package, 64 px, 2.7 M parameters: needs no download",
    "vit_base_patch16_224.augreg_in21k": "the paper's ViT-B/16-IN21K",
    "vit_base_patch16_224.augreg_in21k_ft_in1k": "the paper's ViT-B/16-IN1K",
    "deit_tiny_patch16_224.fb_in1k": "DeiT-tiny on ImageNet-1k, 5.7 M parameters: light enough for a CPU",
    "vit_small_patch14_dinov2.lvd142m": "DINOv2 ViT-S/14: learned without labels",
    "vit_base_patch16_clip_224.openai": "OpenAI CLIP's image encoder, ViT-B/16",
    "vit_base_patch16_siglip_224.webli": "SigLIP's image encoder, ViT-B/16 with attention pooling",
    "<timm name>": "any other plain timm ViT, from the hub or with a local weights file",
}
# What a file may hold beside the ViT itself: classifiers, and parts of the model it was trained in.
_NOT_OF_THE_VIT = re.compile(
    r"^(head|head_dist|fc|pre_logits|mask_token|decoder\w*|text|logit_scale|logit_bias)\b"
)
_JAX_PATCHES = re.compile(r"(^|/)embedding/kernel$")


def backbone_list() -> dict[str, str]:
    """Names worth knowing, each with one line. Others: any plain timm ViT by its timm name."""
    return dict(_CURATED)


def load_backbone(
    name: str = EMBEDDED,
    *,
    weights: Path | str | None = None,
    input_size: int | None = None,
    normalize: Literal["model", "none"] = "model",
    pretrained: bool = True,
) -> Backbone:
    """Load a frozen backbone by name.

    Args:
        name: `ease-vit`, or any plain timm ViT by its timm name, with or without a pretrained tag.
        weights: Local file to use in place of the hub's (or the embedded) weights.
        input_size: Side length of the input in pixels; position embeddings are resampled. The model's own if None.
        normalize: `model` for the mean and std the weights were trained with, `none` for pixels in [0, 1].
        pretrained: False gives random weights, the same ones every time.

    Returns:
        The backbone. `features(pixels, tunings)` maps pixels [N, 3, s, s] to features [S, N, d], one row of S for each
        tuning. `weights_hash` covers the tensors under the names, shapes and types they have in the file, without the
        classifier; for weights from the hub, those of the model before its positions are resampled. Both agree for a
        file that uses timm's own names.

    Example:
        >>> import torch
        >>> from ease import load_backbone
        >>> backbone = load_backbone("ease-vit", input_size=16)
        >>> backbone.features(torch.zeros(2, 3, 16, 16), [None]).shape
        torch.Size([1, 2, 192])
    """
    tensors = read_weights(Path(weights)) if weights is not None else None
    if name == EMBEDDED:
        return _embedded(tensors, weights, input_size, normalize, pretrained)
    architecture = _known(name)
    if tensors is None:
        vit = _create(name, pretrained=pretrained, input_size=input_size, resample=True)
        content = tensors_hash(vit.state_dict())
        if input_size is not None:
            vit.set_input_size(img_size=(input_size, input_size))
    else:
        # Built at the wanted size, so that positions are resampled at most once, from the file's grid.
        jax = Path(str(weights)).suffix == ".npz" or _has_jax_names(tensors)
        vit = _create(name, pretrained=False, input_size=input_size, resample=False, complete=not jax)
        content = tensors_hash(_without_classifier(tensors))
        source = f"weights file '{weights}'"
        if jax:
            _load_jax(vit, tensors, source, name)
        else:
            _load(vit, tensors, source, name, is_model_in_modules(architecture, ["deit"]))
    return Backbone(vit, name, content, _pixels(vit.patch_embed.img_size[0], vit.pretrained_cfg, normalize))


def backbone_tensors(name: str, weights: Path | str | None = None) -> dict[str, Tensor]:
    """What `weights_hash` covers, under the names it has there: a file of these gives the same backbone at any size."""
    if weights is not None:
        return _without_classifier(read_weights(Path(weights)))
    if name == EMBEDDED:
        return _without_classifier(_embedded_tensors())
    return dict(load_backbone(name).vit.state_dict())


def backbone_from_state(
    state: dict[str, Tensor],
    *,
    img_size: int,
    patch_size: int,
    heads: int,
    name: str,
    pixels: Pixels,
) -> Backbone:
    """A plain class-token ViT from tensors in memory under timm's names, which tell its width and depth."""
    depth = len({k.split(".")[1] for k in state if k.startswith("blocks.")})
    if not depth or "patch_embed.proj.weight" not in state:
        raise EaseError(f"backbone '{name}': the given tensors are not a ViT's under timm's names")
    dim = state["patch_embed.proj.weight"].shape[0]
    hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    _check_size(name, patch_size, img_size)
    build = functools.partial(
        VisionTransformer,
        img_size=img_size,
        patch_size=patch_size,
        embed_dim=dim,
        depth=depth,
        num_heads=heads,
        mlp_ratio=hidden / dim,
        qkv_bias="blocks.0.attn.qkv.bias" in state,
        init_values=1.0 if "blocks.0.ls1.gamma" in state else None,
        num_classes=0,
    )
    vit = _without_weights(build)
    _load(vit, state, "the given state", name)
    return Backbone(vit, name, tensors_hash(_without_classifier(state)), pixels)


def _embedded(
    tensors: dict[str, Tensor] | None,
    weights: Path | str | None,
    input_size: int | None,
    normalize: Literal["model", "none"],
    pretrained: bool,
) -> Backbone:
    size = 64 if input_size is None else input_size
    _check_size(EMBEDDED, 8, size)
    build = functools.partial(
        VisionTransformer, img_size=size, patch_size=8, embed_dim=192, depth=6, num_heads=3, num_classes=0
    )
    if tensors is not None:
        vit, content = _without_weights(build), tensors_hash(_without_classifier(tensors))
        _load(vit, tensors, f"weights file '{weights}'", EMBEDDED)
    elif pretrained:
        vit, content = _without_weights(build), _embedded_hash()
        _load(vit, _embedded_tensors(), "its embedded file", EMBEDDED)
    else:
        vit = _random(build)
        content = tensors_hash(vit.state_dict())
    half = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5), "interpolation": "bicubic"}
    pixels = _pixels(size, half, normalize)
    return Backbone(vit, EMBEDDED, content, pixels)


@functools.cache
def _embedded_hash() -> str:
    return tensors_hash(_without_classifier(_embedded_tensors()))


def _embedded_tensors() -> dict[str, Tensor]:
    return load((files("ease") / "weights" / "ease-vit.safetensors").read_bytes())


def _known(name: str) -> str:
    """The architecture's name without the tag of its weights; an error if timm has no such ViT."""
    architecture, _, tag = name.partition(".")
    if not timm.is_model(architecture):
        raise unknown("backbone", name, [EMBEDDED, *timm.list_models(module=FAMILIES)])
    if not is_model_in_modules(architecture, FAMILIES):
        raise EaseError(f"backbone '{name}' is not a plain ViT; use a timm model of the families vit or deit")
    if tag and name not in (tagged := timm.list_pretrained(f"{architecture}.*")):
        raise unknown("weights of backbone", name, tagged)
    return architecture


UNREACHABLE_SECONDS = 20
"""How long weights that could not be fetched are not asked for again: a grid has hundreds of cells with the same."""
_unreachable: dict[str, float] = {}


def _create(
    name: str, *, pretrained: bool, input_size: int | None, resample: bool, complete: bool = False
) -> Any:
    """The model of that name without its classifier; refused before any download if we cannot drive it.

    Built at `input_size`, unless the size is to be changed afterwards by resampling what was loaded. It has no weights
    yet if a `complete` set of them is loaded next.
    """
    with torch.device("meta"):  # the plan of the model, without its memory
        plan = timm.create_model(name, num_classes=0)
    check_supported(plan, name)
    if input_size is not None:
        _check_size(name, plan.patch_embed.patch_size[0], input_size)
    if pretrained and not timm.list_pretrained(name if "." in name else f"{name}.*"):
        raise EaseError(f"timm has no weights for backbone '{name}'; give a local file with --weights")
    size = {} if input_size is None or resample else {"img_size": input_size}
    build = functools.partial(timm.create_model, name, num_classes=0, **size)
    if not pretrained:
        return _without_weights(build) if complete else _random(build)
    with _private_randomness():
        missing = EaseError(
            f"weights of backbone '{name}' cannot be fetched from the hub; give a file with --weights"
        )
        if time.monotonic() < _unreachable.get(name, 0.0):
            raise missing
        try:
            with _no_vain_retries():
                return build(pretrained=True)
        except Exception as error:  # hub, sockets, certificates, disks: all mean the same here
            _unreachable[name] = time.monotonic() + UNREACHABLE_SECONDS
            raise missing from error


def _load(
    vit: Any, tensors: dict[str, Tensor], source: str, name: str, layer_scale_names: bool = False
) -> None:
    """Copy a file's tensors into the model, all of them or none, through timm's own conversion."""
    foreign = f"{source} does not fit backbone '{name}'"
    patch = next((v for k, v in tensors.items() if k.endswith("patch_embed.proj.weight")), None)
    wanted = tuple(vit.patch_embed.patch_size)
    if patch is not None and patch.ndim == 4 and tuple(patch.shape[2:]) != wanted:
        # timm would resample the patches in silence: a different model.
        raise EaseError(
            f"{foreign}: its patches are {patch.shape[2]}x{patch.shape[3]}, not {wanted[0]}x{wanted[1]}"
        )
    try:
        floats = {k: v.float() if v.is_floating_point() else v for k, v in tensors.items()}
        converted = checkpoint_filter_fn(floats, vit, adapt_layer_scale=layer_scale_names)
        result = vit.load_state_dict(_without_classifier(converted), strict=False)
    except Exception as error:  # shapes that differ, positions that form no square grid
        raise EaseError(f"{foreign}: it is of another architecture") from error
    for what, keys in (("lacks", result.missing_keys), ("also holds", result.unexpected_keys)):
        if keys:
            raise EaseError(f"{foreign}: it {what} '{keys[0]}' ({len(keys)} such tensors)")


def _has_jax_names(tensors: dict[str, Tensor]) -> bool:
    return any(_JAX_PATCHES.search(k) for k in tensors)


def _load_jax(vit: Any, tensors: dict[str, Tensor], source: str, name: str) -> None:
    foreign = f"{source} does not fit backbone '{name}'"
    found = {int(m.group(1)) for k in tensors if (m := re.search(r"encoderblock_(\d+)/", k))}
    if found and len(found) != len(vit.blocks):
        raise EaseError(f"{foreign}: it has {len(found)} blocks, not {len(vit.blocks)}")
    patch = next((v for k, v in tensors.items() if _JAX_PATCHES.search(k)), None)
    wanted = tuple(vit.patch_embed.patch_size)
    if patch is not None and tuple(patch.shape[:2]) != wanted:
        raise EaseError(
            f"{foreign}: its patches are {patch.shape[0]}x{patch.shape[1]}, not {wanted[0]}x{wanted[1]}"
        )
    packed = io.BytesIO()  # timm converts these names only while it reads an archive
    try:
        np.savez(packed, **{k: v.numpy() for k, v in tensors.items()})  # type: ignore[arg-type]
        packed.seek(0)
        with torch.no_grad():
            vit.load_pretrained(packed)
    except Exception as error:  # names that are not there, shapes that differ
        raise EaseError(f"{foreign}: it is of another architecture") from error


def _without_classifier(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in tensors.items() if not _NOT_OF_THE_VIT.match(k)}


def _check_size(name: str, patch: int, size: int) -> None:
    if size > LARGEST_INPUT:
        raise EaseError(f"input size {size} is too large: {LARGEST_INPUT} is the largest")
    if size < patch or size % patch:
        nearest = max(patch, round(size / patch) * patch)
        raise EaseError(
            f"backbone '{name}' has {patch} px patches: input size {size} is no multiple; try {nearest}"
        )


def _pixels(size: int, config: dict[str, Any], normalize: Literal["model", "none"]) -> Pixels:
    if normalize not in ("model", "none"):
        raise unknown("normalisation", normalize, ["model", "none"])
    mean, std = (config["mean"], config["std"]) if normalize == "model" else ((0.0,) * 3, (1.0,) * 3)
    return Pixels(size, tuple(map(float, mean)), tuple(map(float, std)), config["interpolation"])  # type: ignore[arg-type]


def _random(build: Callable[..., Any]) -> Any:
    with _private_randomness():
        return build()


def _without_weights(build: Callable[..., Any]) -> Any:
    """A model whose weights are all loaded next: to draw random ones first would take most of the time."""
    with torch.device("meta"):
        vit = build(weight_init="skip")
    if any(True for _ in vit.buffers()):  # they may hold what the model computed and no file has
        return _random(build)
    # Not `to_empty`, which imports sympy to look at the strides of a tensor without memory.
    for module in vit.modules():
        for name, weight in list(module.named_parameters(recurse=False)):
            empty = torch.empty(weight.shape, dtype=weight.dtype)
            setattr(module, name, nn.Parameter(empty, weight.requires_grad))
    return vit


@contextmanager
def _private_randomness() -> Iterator[None]:
    """Building a model draws random weights: always the same, and none from the caller's generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@contextmanager
def _no_vain_retries() -> Iterator[None]:
    """Without a network the hub's client would retry for most of a minute before it looks into its cache."""
    before = hub.HF_HUB_OFFLINE
    try:
        if not getproxies():
            socket.getaddrinfo(urlparse(hub.ENDPOINT).hostname, 443)
    except OSError:
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE = before
