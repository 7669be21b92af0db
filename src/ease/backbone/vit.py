"""The frozen ViT. Drives timm's own blocks and opens a port wherever a tuning may plug in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from timm.layers import Attention, Mlp
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from ease.errors import EaseError
from ease.backbone.ports import Departure, Shape, Tuning

Reading = Literal["pooled", "tokens"]


@dataclass(frozen=True)
class Pixels:
    """How the backbone wants its input: side length, mean and std per channel, test interpolation."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"


class _Nothing(Tuning):
    kind = "ptm"
    departs = Departure.BRANCH


PTM = _Nothing()
"""Nothing plugged in: the pre-trained model itself is a subspace too."""


class Backbone:
    """A pre-trained ViT, frozen and in eval mode, always.

    Attributes:
        name: how it was asked for.
        weights_hash: SHA-256 of the weights as loaded from file, before any resampling.
        shape: what tunings need to know.
        pixels: the input it expects.
    """

    def __init__(self, vit: nn.Module, name: str, weights_hash: str, pixels: Pixels) -> None:
        check_supported(vit, name)
        self.vit: Any = vit.eval().requires_grad_(False)
        self.name = name
        self.weights_hash = weights_hash
        self.pixels = pixels
        first = self.vit.blocks[0]
        hidden = first.mlp.fc1.out_features if hasattr(first.mlp, "fc1") else 4 * self.vit.embed_dim
        self.shape = Shape(self.vit.embed_dim, len(self.vit.blocks), first.attn.num_heads, hidden)
        self._stacked: tuple[tuple[tuple[int, int], ...], Tuning] | None = None

    @property
    def dim(self) -> int:
        """Width of one subspace's feature."""
        return self.shape.dim

    @property
    def device(self) -> torch.device:
        """Where the frozen weights are."""
        return next(self.vit.parameters()).device

    def to(self, device: torch.device) -> Backbone:
        """Move the frozen weights."""
        self.vit.to(device)
        return self

    def parameter_count(self) -> int:
        """Weights a feature passes through; the classifier that came with the file does not count."""
        return sum(p.numel() for n, p in self.vit.named_parameters() if not n.startswith("head"))

    def forward(self, images: Tensor, tuning: Tuning | None = None, reading: Reading = "pooled") -> Tensor:
        """One subspace, with gradients for the tuning. [N, 3, s, s] -> [N, d], or [N, T, d] for `tokens`."""
        tuning = PTM if tuning is None else tuning
        return self._run(self._embed(images, tuning), tuning, reading)

    @torch.no_grad()
    def features(
        self, images: Tensor, tunings: Sequence[Tuning | None], reading: Reading = "pooled"
    ) -> Tensor:
        """All subspaces of a batch in one call, in the order asked; fp32 [S, N, d] (or [S, N, T, d]).

        None stands for the PTM itself. What the tunings share is computed once.
        """
        asked = [PTM if t is None else t for t in tunings]
        found: list[Tensor | None] = [None] * len(asked)
        embedded: Tensor | None = None
        groups: dict[str, list[int]] = {}
        for position, tuning in enumerate(asked):
            groups.setdefault(tuning.group(), []).append(position)
        for positions in groups.values():
            members = [asked[p] for p in positions]
            if members[0].departs >= Departure.EMBEDDING:
                embedded = self._embed(images, PTM) if embedded is None else embedded
            stack = self._stack(members) if len(members) > 1 else None
            if stack is not None:
                assert embedded is not None
                out = self._run(embedded, stack, reading)
                for position, feature in zip(positions, out.unflatten(0, (len(members), -1)), strict=True):
                    found[position] = feature
                continue
            for position, tuning in zip(positions, members, strict=True):
                shared = embedded if tuning.departs >= Departure.EMBEDDING else self._embed(images, tuning)
                assert shared is not None
                found[position] = self._run(shared, tuning, reading)
        return torch.stack([f.float() for f in found if f is not None])

    def _stack(self, members: list[Tuning]) -> Tuning | None:
        key = tuple((p.data_ptr(), p._version) for t in members for p in t.parameters())
        if self._stacked is None or self._stacked[0] != key:
            stack = type(members[0]).stack(members)
            if stack is None:
                return None
            self._stacked = (key, stack)
        return self._stacked[1]

    def _embed(self, images: Tensor, tuning: Tuning) -> Tensor:
        vit = tuning.vit() or self.vit
        x = tuning.modulate("embed", -1, vit.patch_embed(images))
        return vit.norm_pre(vit.patch_drop(vit._pos_embed(x)))

    def _run(self, x: Tensor, tuning: Tuning, reading: Reading) -> Tensor:
        vit = tuning.vit() or self.vit
        front = vit.num_prefix_tokens
        prompts = 0
        for layer in range(self.shape.depth):
            block = tuning.block(layer) or vit.blocks[layer]
            batch = x.shape[0]
            inserted = tuning.prompts(layer, batch)
            if inserted is not None:
                x = torch.cat([x[:, :front], inserted, x[:, front + prompts :]], dim=1)
                prompts = inserted.shape[1]
            last = layer == self.shape.depth - 1
            class_token_only = last and reading == "pooled" and _reads_class_token_alone(vit)
            x = _block(block, x, layer, tuning, queries=1 if class_token_only else None)
        x = tuning.modulate("norm", -1, (tuning.norm() or vit.norm)(x))
        if reading == "tokens":
            return x
        if prompts and x.shape[1] > 1:
            x = torch.cat([x[:, :front], x[:, front + prompts :]], dim=1)
        return vit.forward_head(x, pre_logits=True)


def _reads_class_token_alone(vit: Any) -> bool:
    return type(vit) is VisionTransformer and vit.global_pool == "token" and vit.attn_pool is None


def _block(block: Any, x: Tensor, layer: int, tuning: Tuning, queries: int | None) -> Tensor:
    """One transformer block; `queries` limits what is computed beyond K and V to the first rows."""
    normed = tuning.modulate("norm1", layer, block.norm1(x))
    attended = _attention(block.attn, normed, layer, tuning, queries)
    stream = x[:, :queries] + block.drop_path1(block.ls1(attended))
    normed = tuning.modulate("norm2", layer, block.norm2(stream))
    out = stream + block.drop_path2(block.ls2(_mlp(block.mlp, normed, layer, tuning)))
    branch = tuning.branch(layer, stream, normed)
    if branch is None:
        return out
    if branch.shape[0] != out.shape[0]:  # a stack leaves the shared first block here
        return (branch.unflatten(0, (-1, out.shape[0])) + out).flatten(0, 1)
    return out + branch


def _attention(attn: Any, x: Tensor, layer: int, tuning: Tuning, queries: int | None) -> Tensor:
    heads, width = attn.num_heads, attn.head_dim
    if queries is None:
        q, k, v = _linear("qkv", attn.qkv, x, layer, tuning).chunk(3, dim=-1)
    else:
        q, k, v = _few_queries(attn.qkv, x, layer, tuning, queries)
    extra = tuning.prefix(layer, x.shape[0])
    if extra is not None:
        k, v = torch.cat([extra[0], k], dim=1), torch.cat([extra[1], v], dim=1)
    q, k, v = (t.unflatten(-1, (heads, width)).transpose(1, 2) for t in (q, k, v))
    q, k = attn.q_norm(q), attn.k_norm(k)
    drop = attn.attn_drop.p if attn.training else 0.0
    out = F.scaled_dot_product_attention(q, k, v, dropout_p=drop).transpose(1, 2).flatten(2)
    out = attn.norm(out)
    return attn.proj_drop(_linear("proj", attn.proj, out, layer, tuning))


def _few_queries(
    qkv: nn.Linear, x: Tensor, layer: int, tuning: Tuning, queries: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Q for the first rows only, K and V for all tokens."""
    touched = type(tuning).modulate is not Tuning.modulate or type(tuning).low_rank is not Tuning.low_rank
    if touched:  # the tuning sees the fused projection whole
        q, k, v = _linear("qkv", qkv, x, layer, tuning).chunk(3, dim=-1)
        return q[:, :queries], k, v
    width = qkv.out_features // 3
    bias = qkv.bias
    q = F.linear(x[:, :queries], qkv.weight[:width], None if bias is None else bias[:width])
    k, v = F.linear(x, qkv.weight[width:], None if bias is None else bias[width:]).chunk(2, dim=-1)
    return q, k, v


def _mlp(mlp: Any, x: Tensor, layer: int, tuning: Tuning) -> Tensor:
    if not isinstance(mlp, Mlp):
        return mlp(x)
    x = mlp.norm(mlp.drop1(mlp.act(_linear("fc1", mlp.fc1, x, layer, tuning))))
    return mlp.drop2(_linear("fc2", mlp.fc2, x, layer, tuning))


def _linear(site: str, linear: nn.Linear, x: Tensor, layer: int, tuning: Tuning) -> Tensor:
    out = linear(x)
    extra = tuning.low_rank(site, layer, x)
    return tuning.modulate(site, layer, out if extra is None else out + extra)


def check_supported(vit: nn.Module, name: str) -> None:
    """Plain pre-norm ViTs only: the ports reproduce their blocks, not others'."""
    if type(vit) not in (VisionTransformer, VisionTransformerDistilled):
        raise EaseError(f"backbone '{name}' is a {type(vit).__name__}; use a plain timm VisionTransformer")
    for block in vit.blocks:  # type: ignore[union-attr]
        parts = (type(block), type(getattr(block, "attn", None)))
        if parts != (Block, Attention) or getattr(block.attn, "gate", None) is not None:
            kind = " with ".join(part.__name__ for part in parts)
            raise EaseError(f"backbone '{name}' has {kind} blocks; use a ViT with plain Block/Attention")
