"""EASE by the released schedule, in plain PyTorch around timm's own forward: what our code is measured against.

For every task it

- trains a fresh adapter and a throw-away cosine head;
- passes the task's images through the ViT once per subspace and averages the features of each class;
- estimates the prototypes that old classes lack, from one pair of classes after the other;
- passes all test images seen so far through the ViT once per subspace, whatever earlier stages computed.

Nothing is shared between subspaces or kept between stages. It is slow by its schedule alone: timm's fused attention, no
gradient for frozen weights, none at all where nothing trains, and every batch of pixels is prepared once for all
subspaces. Of our code it uses nothing: images, starting weights and random numbers come through a `Loader`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Recipe:
    """How a subspace is built and trained; names as in the released configurations."""

    epochs: int
    lr: float
    momentum: float
    weight_decay: float
    rank: int
    scale: float
    dropout: float
    sigma: float
    alpha: float


class Loader(Protocol):
    """Everything that is data: images, starting weights, random numbers."""

    def start(self, task: int) -> tuple[list[Tensor], Tensor]:
        """Where training begins: `down` [r, d] of each block and the head's rows [classes, d]."""
        ...

    def training(self, task: int, epoch: int) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Batches of augmented pixels [N, 3, s, s], labels [N] from 0 on within the task, the seed of their dropout."""
        ...

    def images(self, task: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches of the task's training images as the test transform leaves them, and their labels as above."""
        ...

    def tests(self, tasks: int) -> Iterator[Tensor]:
        """Batches of all test images of the first tasks."""
        ...


class Bottleneck(nn.Module):
    """`scale * up(dropout(relu(down(x))))` beside one block's MLP.

    Args:
        dim: width d.
        recipe: rank, scale, dropout.
        class_token_first: draw the class token's dropout before the others'. Which numbers it meets then does not hang
            on whether the others, which nobody reads after the last block, are computed.
    """

    def __init__(self, dim: int, recipe: Recipe, class_token_first: bool) -> None:
        super().__init__()
        self.down = nn.Linear(dim, recipe.rank)
        self.up = nn.Linear(recipe.rank, dim)
        self.scale, self.dropout = recipe.scale, recipe.dropout
        self.class_token_first = class_token_first
        for weights in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(weights)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens [N, T, d] -> [N, T, d]."""
        return self.up(self._dropped(F.relu(self.down(x)))) * self.scale

    def _dropped(self, hidden: Tensor) -> Tensor:
        if not self.training:
            return hidden
        if not self.class_token_first:
            return F.dropout(hidden, self.dropout)
        parts = (hidden[:, :1].contiguous(), hidden[:, 1:].contiguous())
        return torch.cat([F.dropout(part, self.dropout) for part in parts], dim=1)


class Subspace(nn.ModuleList):
    """One bottleneck for each block."""

    def __init__(self, dim: int, depth: int, recipe: Recipe) -> None:
        super().__init__(Bottleneck(dim, recipe, layer == depth - 1) for layer in range(depth))


class CosineHead(nn.Module):
    """`sigma * cos(f, W)`, thrown away after training."""

    def __init__(self, rows: Tensor, sigma: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(rows.clone())
        self.sigma = nn.Parameter(torch.tensor([sigma]))

    def forward(self, features: Tensor) -> Tensor:
        """[N, d] -> [N, classes]."""
        return self.sigma * F.linear(F.normalize(features, dim=1), F.normalize(self.weight, dim=1))


class HookedVit:
    """timm's ViT, frozen, whose blocks add what the plugged-in subspace makes of the residual stream.

    Args:
        vit: becomes this object's own: it is frozen and gets hooks.
    """

    def __init__(self, vit: Any) -> None:
        self.vit = vit.eval().requires_grad_(False)
        self._subspace: Subspace | None = None
        self._stream: Tensor | None = None
        for layer, block in enumerate(vit.blocks):
            block.norm2.register_forward_pre_hook(self._keep_stream)
            block.register_forward_hook(partial(self._join, layer))

    def __call__(self, pixels: Tensor, subspace: Subspace) -> Tensor:
        """One pass through one subspace, [N, 3, s, s] -> [N, d]."""
        self._subspace = subspace
        features = self.vit.forward_head(self.vit.forward_features(pixels), pre_logits=True)
        self._subspace = self._stream = None
        return features

    def _keep_stream(self, norm2: nn.Module, given: tuple[Tensor]) -> None:
        """The adapter reads what the MLP's norm reads: x1, after attention."""
        self._stream = given[0]

    def _join(self, layer: int, block: nn.Module, given: tuple[Tensor], out: Tensor) -> Tensor:
        assert self._subspace is not None
        return out + self._subspace[layer](self._stream)


class NaiveEase:
    """The learner. For each task call `train`, `add_prototypes` and `complement`, then `logits` at will.

    Attributes:
        subspaces: one per task, frozen.
        prototypes: [S, C, d]; real where the subspace is not younger than the class, else estimated.
        sizes: classes of each task.
        passes: image x subspace passes so far, by phase.
    """

    def __init__(self, vit: Any, loader: Loader, recipe: Recipe) -> None:
        self.vit = HookedVit(vit)
        self.dim, self.depth = int(vit.embed_dim), len(vit.blocks)
        self.loader, self.recipe = loader, recipe
        self.subspaces: list[Subspace] = []
        self.prototypes = torch.zeros(0, 0, self.dim)
        self.sizes: list[int] = []
        self.passes = {"train": 0, "prototypes": 0, "evaluation": 0}

    def train(self) -> Subspace:
        """The next task's subspace, from its images alone."""
        task, recipe = len(self.subspaces), self.recipe
        subspace, head = self.begin(task)
        weights = [*subspace.parameters(), *head.parameters()]
        optimizer = torch.optim.SGD(
            weights, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=max(1, recipe.epochs))
        with torch.random.fork_rng(devices=[]):
            for epoch in range(recipe.epochs):
                for pixels, labels, seed in self.loader.training(task, epoch):
                    torch.manual_seed(seed)
                    self.step(subspace, head, optimizer, pixels, labels)
                schedule.step()
        return self.keep(subspace)

    def begin(self, task: int) -> tuple[Subspace, CosineHead]:
        """What a task trains, as it starts."""
        downs, rows = self.loader.start(task)
        subspace = self.new_subspace()
        with torch.no_grad():
            for bottleneck, down in zip(subspace, downs, strict=True):
                bottleneck.down.weight.copy_(down)  # type: ignore[union-attr, operator]
        return subspace.train(), CosineHead(rows, self.recipe.sigma)

    def step(
        self,
        subspace: Subspace,
        head: CosineHead,
        optimizer: torch.optim.Optimizer,
        pixels: Tensor,
        labels: Tensor,
    ) -> float:
        """One step of training; its loss."""
        loss = F.cross_entropy(head(self.vit(pixels, subspace)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        self.passes["train"] += len(pixels)
        return loss.item()

    def new_subspace(self) -> Subspace:
        """An untrained one."""
        with torch.random.fork_rng(devices=[]):
            return Subspace(self.dim, self.depth, self.recipe)

    def keep(self, subspace: Subspace) -> Subspace:
        """It never changes again."""
        self.subspaces.append(subspace.eval().requires_grad_(False))
        return subspace

    @torch.no_grad()
    def add_prototypes(self) -> None:
        """Class means of the newest task in every subspace, one pass for each."""
        task, known = len(self.sizes), sum(self.sizes)
        parts: list[list[Tensor]] = [[] for _ in self.subspaces]
        truths = []
        for pixels, labels in self.loader.images(task):
            for subspace, part in zip(self.subspaces, parts, strict=True):
                part.append(self.vit(pixels, subspace))
                self.passes["prototypes"] += len(pixels)
            truths.append(labels)
        labels = torch.cat(truths)
        size = int(labels.max()) + 1
        grown = torch.zeros(len(self.subspaces), known + size, self.dim)
        grown[: len(self.prototypes), :known] = self.prototypes
        for column, part in enumerate(parts):
            features = torch.cat(part)
            for c in range(size):
                grown[column, known + c] = features[labels == c].mean(dim=0)
        self.prototypes = grown
        self.sizes.append(size)

    @torch.no_grad()
    def complement(self) -> None:
        """Every old class in every later subspace, from all classes that are real there, pair by pair."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        starts = [end - size for end, size in zip(ends, self.sizes, strict=True)]
        for old in range(len(self.sizes)):
            for later in range(old + 1, len(self.sizes)):
                references = range(starts[later], ends[-1])
                for c in range(starts[old], ends[old]):
                    self.prototypes[later, c] = self._mixture(c, old, later, references)

    def _mixture(self, c: int, old: int, later: int, references: range) -> Tensor:
        """Class c in subspace `later`: references weighted by how alike they are in c's own subspace `old`."""
        alike = [
            F.cosine_similarity(self.prototypes[old, c], self.prototypes[old, r], dim=0) for r in references
        ]
        estimate = torch.zeros(self.dim)
        for weight, r in zip(torch.stack(alike).softmax(dim=0), references, strict=True):
            estimate += weight * self.prototypes[later, r]
        return estimate

    @torch.no_grad()
    def evaluate(self) -> Tensor:
        """Logits [N, C] of all test images seen so far, as if for the first time."""
        parts = []
        for pixels in self.loader.tests(len(self.sizes)):
            parts.append(self.logits(pixels))
            self.passes["evaluation"] += len(pixels) * len(self.subspaces)
        return torch.cat(parts)

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """[N, 3, s, s] -> [N, C]: own subspace's cosine, and alpha times the mean of the others'."""
        features = [self.vit(pixels, subspace) for subspace in self.subspaces]
        share = self.recipe.alpha / max(1, len(features) - 1)
        blocks, start = [], 0
        for own, size in enumerate(self.sizes):
            rows = slice(start, start + size)
            scores = torch.zeros(len(pixels), size)
            for column, feature in enumerate(features):
                cosines = F.linear(
                    F.normalize(feature, dim=1), F.normalize(self.prototypes[column, rows], dim=1)
                )
                scores += cosines if column == own else share * cosines
            blocks.append(scores)
            start += size
        return torch.cat(blocks, dim=1)
