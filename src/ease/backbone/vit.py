"""The frozen ViT. Drives timm's own blocks and opens a port wherever a tuning may plug in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from ease.backbone.block import check_supported, has_plain_mlp, reads_class_token_alone, run_block
from ease.backbone.casting import cast_copy
from ease.backbone.ports import Departure, Shape, Tuning
from ease.backbone.reading import Layers, Reading
from ease.backbone.trunk import Trunk, embed

TOKENS_AT_ONCE = {"cpu": 2**11, "cuda": 2**15}
"""Subspaces run side by side up to this many tokens: enough to fill the matmuls. More would cost memory and,
on a CPU, leave its caches (ease-vit, 10 adapters, 32 images, one thread: 2^15 takes 1.4 times as long)."""

IMAGE_TOKENS_AT_ONCE = {"cpu": 2**10}
"""A longer batch goes through in pieces of about this many tokens, for the same reason; elsewhere it goes whole."""


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

    def group(self) -> str:
        return "branch"


PTM = _Nothing()
"""Nothing plugged in: the pre-trained model itself is a subspace too."""


def stacked(tunings: Sequence[Tuning], at_once: int) -> Iterator[Tuning]:
    """These tunings of one group in their order; up to `at_once` neighbours as one, where their kind can do that."""
    for first in range(0, len(tunings), at_once):
        some = tunings[first : first + at_once]
        able = next((t for t in some if t is not PTM), PTM)
        stack = type(able).stack(some) if len(some) > 1 else None
        yield from some if stack is None else [stack]


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
        frozen: Any = vit.eval().requires_grad_(False)
        self.vit = frozen
        self._cast: dict[torch.dtype, Any] = {}
        self.name = name
        self.weights_hash = weights_hash
        self.pixels = pixels
        first = frozen.blocks[0]
        hidden = first.mlp.fc1.out_features if has_plain_mlp(frozen) else 0
        self.shape = Shape(frozen.embed_dim, len(frozen.blocks), first.attn.num_heads, hidden)

    @property
    def dim(self) -> int:
        """Width of one subspace's feature."""
        return self.shape.dim

    @property
    def front(self) -> int:
        """Tokens that stand before the prompts: the class token, a distillation token, registers."""
        return self.vit.num_prefix_tokens

    @property
    def device(self) -> torch.device:
        """Where the frozen weights are."""
        return next(self.vit.parameters()).device

    def width(self, reading: Reading) -> int:
        """Numbers per image and subspace that a reading gives; for `tokens`, per token."""
        return reading.width(self.vit) if isinstance(reading, Layers) else self.dim

    def to(self, device: torch.device | str) -> Backbone:
        """Move the frozen weights."""
        if self.device != torch.device(device):
            self._cast.clear()
        self.vit.to(device)
        return self

    def keep_cast(self, dtype: torch.dtype) -> None:
        """Keep a copy of the weights of all matrix products in `dtype`, which autocast to that type uses.

        Without it, autocast converts them again in every call, since it remembers only weights that are trained. The
        results are the same. All other weights, such as those of norms, are shared with the model in fp32.
        """
        if dtype not in self._cast:
            self._cast[dtype] = cast_copy(self.vit, dtype)

    def _base(self) -> Any:
        """The frozen model to compute with: inside autocast the copy in its type, if there is one."""
        kind = self.device.type
        if self._cast and torch.is_autocast_enabled(kind):
            return self._cast.get(torch.get_autocast_dtype(kind), self.vit)
        return self.vit

    def parameter_count(self) -> int:
        """Weights a feature passes through; the classifier that came with the file does not count."""
        return sum(p.numel() for n, p in self.vit.named_parameters() if not n.startswith("head"))

    def forward(
        self,
        images: Tensor,
        tuning: Tuning | None = None,
        reading: Reading = "pooled",
    ) -> Tensor:
        """One subspace, with gradients for the tuning and in the tuning's own mode (train or eval).

        Images [N, 3, s, s] -> [N, d]; for `Layers` [N, width]; for `tokens` [N, T, d] after the final norm: class
        token and registers, prompts if the tuning has any, patches.
        """
        tuning = PTM if tuning is None else tuning
        if isinstance(reading, Layers):
            reading.check(self.shape.depth)
        vit: Any = tuning.vit() or self._base()
        return self._run(embed(vit, images, tuning), tuning, reading)

    @torch.no_grad()
    def features(
        self,
        images: Tensor,
        tunings: Sequence[Tuning | None],
        reading: Reading = "pooled",
        at_once: int | None = None,
    ) -> Tensor:
        """All subspaces of a batch in one call, in the order asked; fp32 [S, N, width] (or [S, N, T, d]).

        None stands for the PTM itself, a stack for all that is in it. Always in eval mode. What the tunings share is
        computed once. `at_once` is how many of them run side by side; None chooses by the number of images, which a
        traced graph must not do.
        """
        asked = [PTM if t is None else t for t in tunings]
        if isinstance(reading, Layers):
            reading.check(self.shape.depth)
        with _evaluating(asked):
            parts = images.split(self._images_at_once(images)) if at_once is None else [images]
            return torch.cat([self._features(part, asked, reading, at_once) for part in parts], dim=1)

    def _images_at_once(self, images: Tensor) -> int:
        limit = IMAGE_TOKENS_AT_ONCE.get(images.device.type)
        if limit is None:
            return max(1, len(images))
        return max(1, round(limit / (self.vit.patch_embed.num_patches + self.front)))

    def _features(self, images: Tensor, asked: list[Tuning], reading: Reading, at_once: int | None) -> Tensor:
        found: dict[int, list[Tensor]] = {}
        trunk = Trunk(self._base(), images)
        groups: dict[str, list[int]] = {}
        for position, tuning in enumerate(asked):
            groups.setdefault(tuning.group(), []).append(position)
        for positions in groups.values():
            members = [asked[p] for p in positions]
            outs = self._group(trunk, images, members, reading, at_once)
            found |= {p: list(islice(outs, asked[p].copies)) for p in positions}
        return torch.stack([one.float() for p in range(len(asked)) for one in found[p]])

    def _group(
        self, trunk: Trunk, images: Tensor, members: list[Tuning], reading: Reading, at_once: int | None
    ) -> Iterator[Tensor]:
        """The features of one group's members, in order; each starts where it departs from the base."""
        if members[0].departs == Departure.BRANCH:
            yield from self._branches(trunk, members, reading, at_once)
            return
        for tuning in members:
            if tuning.departs == Departure.NOTHING:
                yield self._run(embed(tuning.vit() or self._base(), images, tuning), tuning, reading)
            else:
                start = tuning.first_layer()
                shared = [trunk.entering(layer + 1) for layer in range(self._first_read(reading), start)]
                yield self._run(trunk.entering(start), tuning, reading, start, shared)

    def _branches(
        self, trunk: Trunk, members: list[Tuning], reading: Reading, at_once: int | None
    ) -> Iterator[Tensor]:
        """Tunings that share all of the first block but the branch; afterwards side by side if they can."""
        stream, normed, out = trunk.first_body(self._queries(self.vit, 0, reading))
        if at_once is None:
            limit = TOKENS_AT_ONCE.get(out.device.type, 2**13)
            at_once = max(1, limit // trunk.entering(0).shape[:2].numel())
        for tuning in stacked(members, at_once):
            branch = tuning.branch(0, stream, normed)
            x = out if branch is None else (branch.unflatten(0, (tuning.copies, -1)) + out).flatten(0, 1)
            shared = [x] if self._first_read(reading) == 0 else []
            yield from self._run(x, tuning, reading, 1, shared).unflatten(0, (tuning.copies, -1))

    def _queries(self, vit: Any, layer: int, reading: Reading) -> int | None:
        """In the last block only the class token is computed, if nothing else is read."""
        if layer < self.shape.depth - 1 or reading == "tokens":
            return None
        alone = (
            reading.class_token_alone(vit) if isinstance(reading, Layers) else reads_class_token_alone(vit)
        )
        return 1 if alone else None

    def _first_read(self, reading: Reading) -> int:
        """The first block whose tokens `Layers` reads; none for other readings."""
        return self.shape.depth - (reading.count if isinstance(reading, Layers) else 0)

    def _run(
        self, x: Tensor, tuning: Tuning, reading: Reading, start: int = 0, earlier: Sequence[Tensor] = ()
    ) -> Tensor:
        """Tokens [N, T, d] that enter block `start` to the feature.

        `earlier` are the tokens that left the blocks before `start`, as far as they are read.
        """
        vit: Any = tuning.vit() or self._base()
        norm: Any = tuning.norm() or vit.norm
        front, prompts = vit.num_prefix_tokens, 0

        def normed(tokens: Tensor) -> Tensor:
            return tuning.modulate("norm", -1, norm(tokens))

        def summary(tokens: Tensor) -> list[Tensor]:
            assert isinstance(reading, Layers)
            return reading.summary(vit, normed(tokens) if reading.normed else tokens, prompts)

        read = [summary(tokens) for tokens in earlier]
        for layer in range(start, self.shape.depth):
            inserted = tuning.prompts_among(layer, x, front, prompts)
            if inserted is not None:
                x = torch.cat([x[:, :front], inserted.to(x), x[:, front + prompts :]], dim=1)
                prompts = inserted.shape[1]
            block = tuning.block(layer) or vit.blocks[layer]
            x = run_block(block, x, layer, tuning, self._queries(vit, layer, reading))
            if layer >= self._first_read(reading):
                read.append(summary(x))
        if isinstance(reading, Layers):
            return reading.side_by_side(read)
        x = normed(x)
        if reading == "tokens":
            return x
        if prompts and x.shape[1] > 1:  # prompts steer the others; what pools over tokens must not see them
            x = torch.cat([x[:, :front], x[:, front + prompts :]], dim=1)
        return vit.forward_head(x, pre_logits=True)


@contextmanager
def _evaluating(tunings: Sequence[Tuning]) -> Iterator[None]:
    """A tuning that is still in training has its dropout switched off, then on again."""
    training = [t for t in tunings if t.training]
    for tuning in training:
        tuning.eval()
    try:
        yield
    finally:
        for tuning in training:
            tuning.train()
