"""One transformer block of timm, driven by hand so that a tuning can plug in between its parts."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm.layers import Attention, Mlp
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import Block, VisionTransformer
from torch import Tensor, nn

from ease.backbone.ports import Tuning
from ease.errors import EaseError


class Body(NamedTuple):
    """A block up to where a branch joins it; each [N, T, d]."""

    stream: Tensor
    """x1 = x + attention."""
    normed: Tensor
    """norm2(x1), what the MLP reads."""
    out: Tensor
    """x1 + MLP: the block's output where nothing joins."""


def run_block(block: Any, x: Tensor, layer: int, tuning: Tuning, queries: int | None = None) -> Tensor:
    """Tokens [N, T, d] through one block; `queries` limits all but K and V to the first rows."""
    body = run_body(block, x, layer, tuning, queries)
    branch = tuning.branch(layer, body.stream, body.normed)
    return body.out if branch is None else body.out + branch  # beside LayerScale, unscaled by it


def run_body(block: Any, x: Tensor, layer: int, tuning: Tuning, queries: int | None = None) -> Body:
    """Attention and MLP of one block, without the branch."""
    normed = tuning.modulate("norm1", layer, block.norm1(x))
    attended = _attention(block.attn, normed, layer, tuning, queries)
    stream = x[:, :queries] + block.drop_path1(block.ls1(attended))
    beside = tuning.beside_attention(layer, normed[:, :queries])
    if beside is not None:
        stream = stream + beside  # beside LayerScale, as a branch is
    normed = tuning.modulate("norm2", layer, block.norm2(stream))
    return Body(stream, normed, stream + block.drop_path2(block.ls2(_mlp(block.mlp, normed, layer, tuning))))


def _attention(attn: Any, x: Tensor, layer: int, tuning: Tuning, queries: int | None) -> Tensor:
    heads, width = attn.num_heads, attn.head_dim
    if queries is None:
        q, k, v = _linear("qkv", attn.qkv, x, layer, tuning).chunk(3, dim=-1)
    else:
        q, k, v = _few_queries(attn.qkv, x, layer, tuning, queries)
    extra = tuning.prefix(layer, x.shape[0])
    if extra is not None:
        k, v = torch.cat([extra[0].to(k), k], dim=1), torch.cat([extra[1].to(v), v], dim=1)
    q, k, v = (t.unflatten(-1, (heads, width)).transpose(1, 2) for t in (q, k, v))
    q, k = attn.q_norm(q), attn.k_norm(k)
    drop = attn.attn_drop.p if attn.training else 0.0
    if extra is not None and tuning.prefix_compensated:
        out = _compensated(q, k, v, extra[0].shape[1])
    else:
        out = _attended(q, k, v, drop)
    out = out.transpose(1, 2).flatten(2)
    return attn.proj_drop(_linear("proj", attn.proj, attn.norm(out), layer, tuning))


def _compensated(q: Tensor, k: Tensor, v: Tensor, length: int) -> Tensor:
    """The attention whose first `length` keys are a prefix with a softmax of its own, beside that over all keys."""
    own = _attended(q, k[:, :, :length], v[:, :, :length])
    rest = torch.cat([torch.zeros_like(v[:, :, :length]), v[:, :, length:]], dim=2)
    return _attended(q, k, rest) + own


def _attended(q: Tensor, k: Tensor, v: Tensor, drop: float = 0.0) -> Tensor:
    """Softmax attention of heads, each [N, heads, T, width]."""
    if q.requires_grad and q.dtype == torch.bfloat16 and q.device.type == "cpu":
        # On the CPU torch's backward kernel is up to three times slower in bf16 than in fp32 (65 tokens, 3 heads).
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(q.float(), k.float(), v.float(), dropout_p=drop).to(q)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=drop)


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
    if not isinstance(mlp, Mlp):  # gated: no port inside, see Shape.hidden
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
        attn = getattr(block, "attn", None)
        if (type(block), type(attn)) != (Block, Attention) or getattr(attn, "gate", None) is not None:
            kind = " with ".join(type(part).__name__ for part in (block, attn) if part is not None)
            raise EaseError(f"backbone '{name}' has {kind} blocks; use a ViT with plain Block/Attention")


def reads_class_token_alone(vit: Any) -> bool:
    """Whether the pooled feature depends on the last block's first row only."""
    return type(vit) is VisionTransformer and vit.global_pool == "token" and vit.attn_pool is None


def has_plain_mlp(vit: Any) -> bool:
    """Whether the ports inside the MLP (fc1, fc2) exist."""
    return all(isinstance(block.mlp, Mlp) for block in vit.blocks)
