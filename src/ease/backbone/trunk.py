"""What several subspaces of one batch have in common, computed once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ease.backbone.block import Body, run_block, run_body
from ease.backbone.ports import Tuning


def embed(vit: Any, images: Tensor, tuning: Tuning) -> Tensor:
    """Images [N, 3, s, s] to the tokens [N, T, d] that enter the first block."""
    x = tuning.modulate("embed", -1, vit.patch_embed(images))
    return vit.norm_pre(vit.patch_drop(vit._pos_embed(x)))


class Trunk:
    """The base's own computation on one batch. Each piece is made when first asked for, then kept."""

    def __init__(self, vit: Any, images: Tensor) -> None:
        self._vit, self._images = vit, images
        self._nothing = Tuning()
        self._entering: dict[int, Tensor] = {}
        self._first_body: Body | None = None

    def entering(self, layer: int) -> Tensor:
        """The tokens [N, T, d] that enter block `layer`; past the last block, those that leave it."""
        if layer not in self._entering:
            near = max((k for k in self._entering if k < layer), default=-1)
            x = self._entering[near] if near >= 0 else embed(self._vit, self._images, self._nothing)
            for i in range(max(near, 0), layer):
                x = run_block(self._vit.blocks[i], x, i, self._nothing)
            self._entering[layer] = x
        return self._entering[layer]

    def first_body(self, queries: int | None) -> Body:
        """The first block up to where a branch joins it."""
        if self._first_body is None:
            self._first_body = run_body(self._vit.blocks[0], self.entering(0), 0, self._nothing, queries)
        return self._first_body
