"""The ports of the frozen backbone, and what may plug into them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


class Departure(IntEnum):
    """Where a tuning first departs from the base. All before it is computed once for a batch's subspaces."""

    NOTHING = 0  # nothing is shared: the patch embedding itself differs (SSF, full)
    EMBEDDING = 1  # the embedding and all blocks before `first_layer` are shared (VPT, prefix, LoRA)
    BRANCH = 2  # the first block's attention and MLP are shared as well (adapter)


@dataclass(frozen=True)
class Shape:
    """What a tuning must know of the backbone it plugs into."""

    dim: int
    depth: int
    heads: int
    hidden: int
    """Width inside the MLP; 0 if it is gated, and so has no ports at fc1 and fc2."""


class Tuning(nn.Module):
    """A small set of trained weights that, with the frozen backbone, makes one subspace.

    Each method below is a port; the default plugs nothing in. `layer` counts blocks from 0. In
    `Backbone.features` several tunings may run as one (`stack`): the token tensors then have S*N rows,
    subspace-major.
    """

    kind: ClassVar[str]
    departs: Departure = Departure.NOTHING
    copies: int = 1
    """How many subspaces this object stands for: 1, or S for a stack."""
    prefix_compensated: bool = False
    """Whether the attention to the prefix is a softmax of its own, added to what the tokens give each other. The tokens
    keep the shares they have in the softmax over all keys."""

    def prompts(self, layer: int, batch: int) -> Tensor | None:
        """Tokens [batch, P, d] put behind the class token before this block.

        They take the place of those put in earlier; None leaves these as they are.
        """
        return None

    def prompts_among(self, layer: int, tokens: Tensor, front: int, present: int) -> Tensor | None:
        """`prompts` of a tuning that makes them from the tokens [N, T, d] that are about to enter this block.

        Behind the first `front` tokens, `present` are prompts put in earlier. By default `prompts`.
        """
        return self.prompts(layer, tokens.shape[0])

    def prefix(self, layer: int, batch: int) -> tuple[Tensor, Tensor] | None:
        """Extra keys and values [batch, P, d] of this block's attention, before the split into heads."""
        return None

    def modulate(self, site: str, layer: int, value: Tensor) -> Tensor:
        """Scale and shift of an activation: site is embed, norm1, qkv, proj, norm2, fc1, fc2 or norm."""
        return value

    def low_rank(self, site: str, layer: int, value: Tensor) -> Tensor | None:
        """Added to the output of a linear (qkv, proj, fc1, fc2) whose input is `value`."""
        return None

    def beside_attention(self, layer: int, normed: Tensor) -> Tensor | None:
        """Added beside the attention: [N, T, d]. `normed` is the attention's input norm1(x)."""
        return None

    def branch(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor | None:
        """Added beside the MLP: [N, T, d]. `stream` is the residual x1, `normed` the MLP's input norm2(x1).

        A stack gets the N rows of the shared first block in layer 0 and returns S*N.
        """
        return None

    def vit(self) -> nn.Module | None:
        """A whole model to use in place of the base (full)."""
        return None

    def block(self, layer: int) -> nn.Module | None:
        """A block to use in place of the base's (full, on listed blocks)."""
        return None

    def norm(self) -> nn.Module | None:
        """A final norm to use in place of the base's (full, on listed blocks)."""
        return None

    def first_layer(self) -> int:
        """The first block that this tuning touches, if it departs after the embedding."""
        return 0

    def config(self) -> dict[str, Any]:
        """What `build_tuning` needs to make an untrained twin; JSON values only."""
        return {}

    def group(self) -> str:
        """Tunings of one group share what they depart from, and may be stacked."""
        return self.kind

    @classmethod
    def stack(cls, tunings: Sequence[Tuning]) -> Tuning | None:
        """These tunings as one that runs them side by side, or None if this kind cannot."""
        return None

    def freeze(self) -> Tuning:
        """No gradient, no dropout, from now on."""
        return self.eval().requires_grad_(False)

    def fingerprint(self) -> str:
        """Names the content: kind, configuration and every weight."""
        return tensors_hash(self.state_dict(), {"kind": self.kind, **self.config()})

    def parameter_count(self) -> int:
        """Weights that were trained."""
        return sum(p.numel() for p in self.parameters())


def tensors_hash(tensors: dict[str, Tensor], extra: dict[str, Any] | None = None) -> str:
    """SHA-256 over names, shapes, types and bytes, independent of the order of insertion."""
    digest = hashlib.sha256(json.dumps(extra or {}, sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}{tuple(value.shape)}{value.dtype}".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
