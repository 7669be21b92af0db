"""Multiply-adds of a pass, of a training step and of a whole run: what the ratios could be at best.

Counted are the matrix products, as torch's `FlopCounterMode` counts them (it gives two operations for each
multiply-add). Norms, activations and additions are left out; they take time, too, which no ratio below shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ATTENTION_BACKWARD = 5 / 2
"""Of its forward: the fused kernel computes the scores again, then four products of the same size."""


@dataclass(frozen=True)
class Arithmetic:
    """A plain class-token ViT with adapters of rank r, in multiply-adds per image.

    Attributes:
        dim: width d.
        depth: blocks L.
        hidden: width inside the MLP.
        patches: tokens that come from the image.
        tokens: all tokens T.
        patch_values: numbers in one patch.
        rank: r.
    """

    dim: int
    depth: int
    hidden: int
    patches: int
    tokens: int
    patch_values: int
    rank: int

    @classmethod
    def of(cls, vit: Any, rank: int) -> Arithmetic:
        """That of a timm ViT."""
        patches = vit.patch_embed.num_patches
        return cls(
            dim=vit.embed_dim,
            depth=len(vit.blocks),
            hidden=vit.blocks[0].mlp.fc1.out_features,
            patches=patches,
            tokens=patches + vit.num_prefix_tokens,
            patch_values=vit.patch_embed.proj.weight[0].numel(),
            rank=rank,
        )

    @property
    def embedding(self) -> int:
        return self.patches * self.patch_values * self.dim

    def linears(self, rows: int) -> int:
        """Those of a block: K and V of all tokens, everything else for so many rows."""
        return 2 * self.tokens * self.dim**2 + rows * (2 * self.dim**2 + 2 * self.dim * self.hidden)

    def attention(self, rows: int) -> int:
        return 2 * rows * self.tokens * self.dim

    def adapter(self, rows: int) -> int:
        return 2 * rows * self.dim * self.rank

    def block(self, rows: int) -> int:
        """A block with its adapter."""
        return self.linears(rows) + self.attention(rows) + self.adapter(rows)

    def separate(self) -> int:
        """One image through one subspace, nothing left out."""
        return self.embedding + self.depth * self.block(self.tokens)

    def together(self, subspaces: int) -> int:
        """One image through several subspaces: all before the first adapter once, the last block for CLS only."""
        whole = self.tokens
        shared = self.embedding + self.linears(whole) + self.attention(whole)
        return shared + subspaces * (
            self.adapter(whole) + (self.depth - 2) * self.block(whole) + self.block(1)
        )

    def step(self, classes: int, last_rows: int) -> int:
        """One image forwards and backwards, with so many rows computed in the last block.

        Frozen weights get no gradient, and nothing flows back below the first adapter.
        """
        whole, head = self.tokens, classes * self.dim
        first = (
            self.embedding + self.block(whole) + 3 * self.adapter(whole) // 2
        )  # its input needs no gradient
        blocks = [whole] * (self.depth - 2) + [last_rows]
        later = sum(self.block(rows) + self._backward(rows) for rows in blocks)
        return first + later + 3 * head

    def _backward(self, rows: int) -> int:
        attention = round(ATTENTION_BACKWARD * self.attention(rows))
        return self.linears(rows) + attention + 2 * self.adapter(rows)


@dataclass(frozen=True)
class Work:
    """Multiply-adds of a run by phase."""

    train: int
    prototypes: int
    evaluation: int

    @property
    def whole(self) -> int:
        return self.train + self.prototypes + self.evaluation


def naive_work(a: Arithmetic, train: Sequence[int], test: Sequence[int], epochs: int, classes: int) -> Work:
    """The released schedule over tasks with so many train and test images: B(B+1)(2B+1)/6 evaluation passes."""
    stages = range(1, len(train) + 1)
    return Work(
        train=epochs * sum(train) * a.step(classes, a.tokens),
        prototypes=sum(n * b for n, b in zip(train, stages, strict=True)) * a.separate(),
        evaluation=sum(sum(test[:b]) * b for b in stages) * a.separate(),
    )


def our_work(a: Arithmetic, train: Sequence[int], test: Sequence[int], epochs: int, classes: int) -> Work:
    """Each feature once: a new task's test images in all subspaces, older ones in the newest: B^2 passes."""
    stages = range(1, len(train) + 1)
    return Work(
        train=epochs * sum(train) * a.step(classes, 1),
        prototypes=sum(n * a.together(b) for n, b in zip(train, stages, strict=True)),
        evaluation=sum(test[b - 1] * a.together(b) + sum(test[: b - 1]) * a.together(1) for b in stages),
    )
