"""Variants of the head of `strata`, on arrays of features: what `strata_search` compares.

The baseline is `ease.heads.whitened`: class tokens of the last four blocks, OAS shrinkage towards the identity, the
cosine around the mean of the class means. An `Idea` differs from it in what its name says.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from ease.heads.whitened import oas_shrinkage

ALL = 99
"""More layers than any model has."""


@dataclass(frozen=True)
class Idea:
    """One way to make a classifier of features.

    Attributes:
        layers: how many of the last blocks are read.
        tokens: class tokens, mean patch tokens, or both.
        unit: whether every token is scaled to length 1 first.
        views: which views of an image are used, the image alone or with its mirror image: in the statistics,
            averaged at prediction, or both.
        shrinkage: OAS, Ledoit-Wolf, or a fixed share.
        factor: multiplies the share, which stays at most 1.
        power: the share is raised to this.
        counted: degrees of freedom that OAS is told: images less classes, or images.
        target: what the covariance is shrunk towards: a multiple of the identity, one multiple for each layer, or its
            own diagonal.
        parts: one covariance of all layers, one for each layer (zero between layers), or one head for each layer with
            their cosines added.
        centre: the mean of the class means, the mean of all images, or none.
        score: cosine, or the distance to the class mean (linear discriminant analysis with equal priors).
        nested: shrink the joint covariance towards the separate covariances of the layers, each with its own shrinkage;
            by how much is the OAS share of all entries, or that of the entries between layers; `alone`: by the OAS
            share, and the joint covariance is shrunk towards nothing else.
        mixed: weight of the plain cosine of the last class token; `share`: by the shrinkage's share.
        whitened: without, only the cosines of the features themselves are left.
    """

    layers: int = 4
    tokens: Literal["class", "patches", "both"] = "class"
    unit: bool = False
    views: Literal["one", "learn", "predict", "both"] = "one"
    shrinkage: Literal["oas", "ledoit-wolf"] | float = "oas"
    factor: float = 1.0
    power: float = 1.0
    counted: Literal["images less classes", "images"] = "images less classes"
    target: Literal["identity", "layers", "diagonal"] = "identity"
    parts: Literal["joint", "blocks", "added"] = "joint"
    centre: Literal["means", "images", "none"] = "means"
    score: Literal["cosine", "distance"] = "cosine"
    nested: Literal["no", "share", "between", "alone"] = "no"
    mixed: float | Literal["share"] = 0.0
    whitened: bool = True


@dataclass(frozen=True)
class Features:
    """What a model says of some images.

    Attributes:
        plain: [N, blocks, 2, d], of each block the class token and the mean patch token, after the final norm.
        mirrored: the same of the mirror images, where those are allowed.
    """

    plain: Tensor
    mirrored: Tensor | None = None

    def read(self, idea: Idea, rows: Tensor, use: Literal["learn", "predict"]) -> list[Tensor]:
        """The features [n, K] of these images, in fp64, one for each view. Blocks are next to each other."""
        mirror = idea.views in (use, "both") and self.mirrored is not None
        views = [self.plain, self.mirrored] if mirror else [self.plain]
        found = []
        for view in views:
            assert view is not None
            taken = view[rows][:, -idea.layers :].double()
            if idea.tokens != "both":
                taken = taken[:, :, [0 if idea.tokens == "class" else 1]]
            if idea.unit:
                taken = F.normalize(taken, dim=-1)
            found.append(taken.flatten(1))
        return [torch.stack(found).mean(dim=0)] if use == "predict" else found


class Stage(NamedTuple):
    """Scores after a task."""

    scores: Tensor
    """[n, classes so far] of the held-out images of these classes, in their order."""
    rows: Tensor
    """[n] which images these are, as positions among all that are held out."""
    share: float
    """Of the shrinkage."""


class Sums:
    """Running class means, counts and the pooled scatter of one part of the features."""

    def __init__(self, width: int) -> None:
        self.means = torch.zeros(0, width, dtype=torch.float64)
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.scatter = torch.zeros(width, width, dtype=torch.float64)
        self.fourth = 0.0
        """Sum of the squared squared lengths, which Ledoit-Wolf needs."""
        self.images, self.views = 0, 1

    def add(self, views: list[Tensor], labels: Tensor) -> None:
        """New classes; labels count from 0 within the task."""
        counts = torch.bincount(labels).double()
        everything = torch.cat(views)
        index = labels.repeat(len(views))
        total = everything.new_zeros(len(counts), everything.shape[1]).index_add_(0, index, everything)
        means = total / (counts * len(views))[:, None]
        centred = everything - means[index]
        self.scatter.addmm_(centred.mT, centred)
        self.fourth += float(centred.square().sum(dim=1).square().sum())
        self.means = torch.cat([self.means, means])
        self.counts = torch.cat([self.counts, counts])
        self.images, self.views = self.images + len(labels), len(views)

    def shrunk(self, idea: Idea, blocks: int) -> tuple[Tensor, Tensor, float]:
        """(the scale of each number [K], the covariance of what is left after that [K, K], the share)."""
        width = len(self.scatter)
        identity = torch.eye(width, dtype=torch.float64)
        freedom = self.images - len(self.counts)
        known = self.views * self.images - len(self.counts)
        if freedom < 1 or float(self.scatter.trace()) <= 0:
            return torch.ones(width, dtype=torch.float64), identity, 1.0
        covariance = self.scatter / known
        scale = covariance.diagonal().clone()
        if idea.target == "identity":
            scale[:] = scale.mean()
        elif idea.target == "layers":
            scale = scale.view(blocks, -1).mean(dim=1, keepdim=True).expand(blocks, width // blocks).flatten()
        scale = scale.clamp_min(1e-12 * float(scale.mean())).sqrt()
        covariance = covariance / torch.outer(scale, scale)
        if idea.shrinkage == "oas":
            share = oas_shrinkage(
                covariance, freedom if idea.counted == "images less classes" else self.images
            )
        elif idea.shrinkage == "ledoit-wolf":
            share = self._ledoit_wolf(known)
        else:
            share = float(idea.shrinkage)
        share = min(1.0, idea.factor * share**idea.power)
        shrunk = (1 - share) * covariance + share * covariance.diagonal().mean() * identity
        if idea.nested != "no":
            weight, apart = nested_target(covariance, freedom, blocks, idea.factor)
            weight = weight if idea.nested == "between" else share
            shrunk = covariance if idea.nested == "alone" else shrunk
            shrunk = (1 - weight) * shrunk + weight * apart
        return scale, shrunk, share

    def _ledoit_wolf(self, known: int) -> float:
        """As in scikit-learn, for data whose mean is 0; here the class means are taken off."""
        covariance = self.scatter / known
        width = len(covariance)
        distance = float(covariance.square().sum() - covariance.trace() ** 2 / width)
        noise = (self.fourth / known - float(covariance.square().sum())) / known
        return min(1.0, max(0.0, noise / distance))

    def centre(self, idea: Idea) -> Tensor:
        """[K]"""
        if idea.centre == "none" or len(self.counts) < 2:
            return torch.zeros_like(self.means[0])
        weights = self.counts if idea.centre == "images" else torch.ones_like(self.counts)
        return (weights[:, None] * self.means).sum(dim=0) / weights.sum()


def nested_target(covariance: Tensor, freedom: int, blocks: int, factor: float) -> tuple[float, Tensor]:
    """The OAS share of what is between the blocks of the diagonal, and the blocks alone, each shrunk on its own.

    The entry (i, j) of a covariance W has the variance (W_ij^2 + W_ii W_jj) / (freedom + 1) or so. The share is the sum
    of this over the entries that the target lacks, relative to the sum of their squares: for all entries, and with a
    multiple of the identity as the target, it is OAS.
    """
    width = len(covariance) // blocks
    target = torch.zeros_like(covariance)
    diagonal = covariance.diagonal()
    squares, products = float(covariance.square().sum()), float(diagonal.sum()) ** 2
    for at in range(0, len(covariance), width):
        part = slice(at, at + width)
        own = covariance[part, part]
        squares -= float(own.square().sum())
        products -= float(diagonal[part].sum()) ** 2
        share = min(1.0, factor * oas_shrinkage(own, freedom))
        target[part, part] = (1 - share) * own
        target[part, part] += share * own.diagonal().mean() * torch.eye(width, dtype=torch.float64)
    if squares <= 0:
        return 1.0, target
    return min(1.0, factor * (squares + products) / ((freedom + 1) * squares)), target


def stages(
    idea: Idea,
    features: Features,
    labels: npt.NDArray[np.int64],
    learn: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    sizes: Sequence[int],
) -> list[Stage]:
    """Learn the tasks one after the other and score the held-out images of all classes so far after each.

    Args:
        idea: how.
        features: of all images.
        labels: [N] of all images, positions in the class order.
        learn: which images are learned from.
        held: which images are scored.
        sizes: classes of each task.
    """
    target = torch.from_numpy(labels)
    learning, held_out = torch.from_numpy(learn), torch.from_numpy(held)
    predict = features.read(idea, held_out, "predict")[0]
    blocks = predict.shape[1] // features.plain.shape[-1]
    cuts = [slice(0, predict.shape[1])]
    if idea.parts != "joint":
        step = features.plain.shape[-1]
        cuts = [slice(at, at + step) for at in range(0, predict.shape[1], step)]
    sums = [Sums(cut.stop - cut.start) for cut in cuts]
    last = Sums(features.plain.shape[-1])
    final = features.read(Idea(layers=1, views=idea.views), held_out, "predict")[0]
    found, start = [], 0
    for size in sizes:
        rows = learning[(target[learning] >= start) & (target[learning] < start + size)]
        views = features.read(idea, rows, "learn")
        for one, cut in zip(sums, cuts, strict=True):
            one.add([view[:, cut] for view in views], target[rows] - start)
        last.add(features.read(Idea(layers=1, views=idea.views), rows, "learn"), target[rows] - start)
        start += size
        seen = torch.nonzero(target[held_out] < start)[:, 0]
        inner = blocks if idea.parts == "joint" else 1
        pairs, shares = [], []
        for one, cut in zip(sums, cuts, strict=True):
            images, means, share = _whitened(one, idea, predict[seen][:, cut], inner)
            pairs.append((images, means))
            shares.append(share)
        if idea.parts == "added":
            scores = sum(_cosines(*pair) for pair in pairs) / len(pairs)
        else:
            images, means = (torch.cat(each, dim=1) for each in zip(*pairs, strict=True))
            scores = _cosines(images, means) if idea.score == "cosine" else -torch.cdist(images, means)
        share = float(np.mean(shares))
        weight = share if idea.mixed == "share" else idea.mixed
        assert isinstance(scores, Tensor)
        if weight:
            scores = (1 - weight) * scores + weight * _cosines(final[seen], last.means)
        found.append(Stage(scores, seen, share))
    return found


def _whitened(sums: Sums, idea: Idea, images: Tensor, blocks: int) -> tuple[Tensor, Tensor, float]:
    """Images [n, K] and class means [C, K] around the centre, in the metric of the covariance."""
    centre = sums.centre(idea)
    if not idea.whitened:
        return images - centre, sums.means - centre, 1.0
    scale, covariance, share = sums.shrunk(idea, blocks)
    factor = torch.linalg.cholesky(covariance + 1e-9 * torch.eye(len(covariance), dtype=torch.float64))
    both = (torch.cat([images, sums.means]) - centre) / scale
    both = torch.linalg.solve_triangular(factor, both.mT, upper=False).mT
    return both[: len(images)], both[len(images) :], share


def _cosines(images: Tensor, means: Tensor) -> Tensor:
    return F.normalize(images, dim=1) @ F.normalize(means, dim=1).mT
