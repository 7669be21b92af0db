"""Class means compared in the metric of the pooled within-class covariance, from sums that images are added to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.errors import EaseError
from ease.heads.triangle import packed_triangle, unpacked_triangle

HEAVY_TAILS = 1.5
"""The share of OAS is multiplied by this. OAS holds for Gaussian features; a few images far from their class make a
covariance noisier than it expects. Chosen on held-out training images: docs/results/strata-search.md."""

SMALLEST = 1e-6
"""A token's variance counts as at least this share of the mean one."""


@dataclass(frozen=True)
class Whitening:
    """What the statistics come to: an image's score for a class is the cosine of two whitened vectors.

    Attributes:
        centre: [K] the mean of the class means; zero for a single class, which has nothing to be told from.
        matrix: [K, K] lower triangular, with matrix @ Sigma @ matrix^T = I.
        directions: [C, K] the whitened, centred class means, each of length 1.
        lengths: [C] their lengths before that.
    """

    centre: Tensor
    matrix: Tensor
    directions: Tensor
    lengths: Tensor

    def whitened(self, features: Tensor) -> Tensor:
        """Features [N, K] -> [N, K]: centred, and with the identity as their within-class covariance."""
        return F.linear(features - self.centre.to(features), self.matrix.to(features))

    def scores(self, features: Tensor) -> Tensor:
        """Features [N, K] -> cosines [N, C]."""
        return F.linear(F.normalize(self.whitened(features), dim=-1), self.directions.to(features))


class Covariance(NamedTuple):
    """The shrunk covariance, and what it is made of.

    Attributes:
        sigma: [K, K].
        whole: how much of the pooled covariance is in it.
        own: how much of each token's own covariance is in it besides.
    """

    sigma: Tensor
    whole: float
    own: tuple[float, ...]


class WhitenedHead:
    """Running class means, image counts and the pooled within-class scatter; no image and no feature is kept.

    All three are exact: the order of the images and the number of calls they come in make no difference. Sums are
    taken in fp64; `state` gives fp32, of the symmetric scatter one triangle.

    Args:
        width: K, the numbers in a feature.
        parts: a feature is so many tokens of equal width side by side; see `covariance`.

    Attributes:
        means: [C, K].
        counts: [C] images behind each mean.
        scatter: [K, K], the sum of (h - mu_y)(h - mu_y)^T over all images h of class y.
        freedom: degrees of freedom of the scatter: images less classes.
    """

    def __init__(self, width: int, parts: int = 1) -> None:
        if width % parts:
            raise ValueError(f"{width} numbers are not {parts} tokens of equal width")
        self.parts = parts
        self.means = torch.zeros(0, width, dtype=torch.float64)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.scatter = torch.zeros(width, width, dtype=torch.float64)
        self.freedom = 0
        self._whitening: Whitening | None = None

    @property
    def width(self) -> int:
        """K, the numbers in a feature."""
        return self.scatter.shape[0]

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.counts)

    def grow(self, classes: int) -> None:
        """Add classes without images."""
        self.means = torch.cat([self.means, self.means.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        self._whitening = None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in features [N, K] of classes `labels` [N], new ones or more of known ones.

        Two sets of images of one class have the scatter of each around its own mean, and one rank-one term more for
        the distance of the two means (Chan et al., 1983).
        """
        if not len(labels):
            return
        features = features.detach().double().cpu()
        if not bool(features.isfinite().all()):
            raise EaseError("some features are not finite: check the backbone's weights and the images")
        found, where, counts = labels.cpu().unique(return_inverse=True, return_counts=True)
        sums = features.new_zeros(len(found), self.width).index_add_(0, where, features)
        means = sums / counts[:, None]
        centred = features - means[where]
        before = self.counts[found]
        share = counts.double() / (before + counts)
        moved = means - self.means[found]
        apart = moved * (before * share).sqrt()[:, None]
        self.scatter.addmm_(centred.mT, centred).addmm_(apart.mT, apart)
        self.means[found] += moved * share[:, None]
        self.counts[found] += counts
        self.freedom += int(counts.sum()) - int((before == 0).sum())
        self._whitening = None

    def forget(self, position: int) -> None:
        """Drop a class's mean and count. Its share of the pooled scatter cannot be told from that of the others."""
        keep = torch.arange(self.classes) != position
        self.means, self.counts = self.means[keep], self.counts[keep]
        self._whitening = None

    def covariance(self) -> Covariance:
        """Sigma [K, K]: the pooled covariance W, shrunk.

        A share rho of W is given up for a multiple of the identity, another one for each token, since tokens of
        different blocks differ in scale. The result is then mixed, in the same ratio, with the covariances of the
        tokens alone, each shrunk by a share of its own: with few images it is the covariances between tokens that are
        best done without. With a single token this is plain shrinkage.

        Every share is `HEAVY_TAILS` times the oracle approximating shrinkage (Chen et al., 2010), which takes nothing
        but the covariance and the degrees of freedom. Without any, or where features do not vary within their classes,
        Sigma is the identity: the head is then the centred cosine.
        """
        trace, size = float(self.scatter.trace()), self.width // self.parts
        if self.freedom < 1 or trace <= 0:
            return Covariance(torch.eye(self.width, dtype=torch.float64), 0.0, (0.0,) * self.parts)
        pooled = self.scatter / self.freedom
        variances = pooled.diagonal().view(self.parts, size).mean(dim=1)
        # A token that hardly varies must not be blown up to the others' size: that would be rounding, not knowledge.
        variances = variances.clamp(min=SMALLEST * float(variances.mean()))
        scale = variances.sqrt().repeat_interleave(size)
        rho = _share(pooled / (scale[:, None] * scale), self.freedom)
        sigma, own = (1 - rho) ** 2 * pooled, []
        for part, variance in enumerate(variances.tolist()):
            token = slice(part * size, (part + 1) * size)
            share = _share(pooled[token, token], self.freedom)
            own.append(rho * (1 - share))
            sigma[token, token] += own[-1] * pooled[token, token]
            sigma.diagonal()[token] += ((1 - rho) * rho + rho * share) * variance
        return Covariance(sigma, (1 - rho) ** 2, tuple(own))

    def whitening(self) -> Whitening:
        """What all images so far come to; computed when it is first asked for after a change."""
        if self._whitening is None:
            self._whitening = self._whitened()
        return self._whitening

    def _whitened(self) -> Whitening:
        factor = _cholesky(self.covariance().sigma)
        matrix = torch.linalg.solve_triangular(
            factor, torch.eye(self.width, dtype=torch.float64), upper=False
        )
        centre = self.means.mean(dim=0) if self.classes > 1 else self.means.new_zeros(self.width)
        apart = (self.means - centre) @ matrix.mT
        lengths = apart.norm(dim=1)
        return Whitening(centre.float(), matrix.float(), F.normalize(apart, dim=1).float(), lengths.float())

    def scores(self, features: Tensor) -> Tensor:
        """Features [N, K] -> cosines [N, C] in fp32."""
        return self.whitening().scores(features)

    def round_as_saved(self) -> None:
        """Become what `load_state(state())` would make of it: what goes on after a restart is then the same."""
        self.load_state(self.state(), self.freedom)

    def state(self) -> dict[str, Tensor]:
        """Means [C, K] and the scatter's lower triangle [K (K + 1) / 2] in fp32, and the counts [C]."""
        return {
            "means": self.means.float(),
            "counts": self.counts.clone(),
            "scatter": packed_triangle(self.scatter).float(),
        }

    def load_state(self, tensors: Mapping[str, Tensor], freedom: int) -> None:
        """The inverse of `state`."""
        means, counts = tensors["means"].double(), tensors["counts"].clone()
        if means.shape != (len(counts), self.width) or freedom < 0:
            raise ValueError(
                f"means {list(means.shape)}, counts {list(counts.shape)}, {freedom} degrees do not fit"
            )
        self.means, self.counts, self.freedom = means, counts, freedom
        self.scatter = unpacked_triangle(tensors["scatter"].double(), self.width)
        self._whitening = None


def _share(covariance: Tensor, freedom: int) -> float:
    """How much of a covariance [K, K] is given up."""
    return min(1.0, HEAVY_TAILS * oas_shrinkage(covariance, freedom))


def oas_shrinkage(covariance: Tensor, freedom: int) -> float:
    """The share in [0, 1] for a covariance [K, K] with so many degrees of freedom, as scikit-learn computes it."""
    width = covariance.shape[0]
    squares, trace = float(covariance.square().sum()), float(covariance.trace())
    excess = squares - trace**2 / width
    if excess <= 0:  # a multiple of the identity already
        return 1.0
    return min(1.0, (squares + trace**2) / ((freedom + 1) * excess))


def factored_scatter(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """A scatter S [K, K] as deviations [K] and a lower triangular L [K, K], in fp64: S = D L L^T D.

    D has the deviations on its diagonal and L is the Cholesky factor of a correlation matrix, so that its rows have
    length 1 and its numbers are alike in size whatever the features' scales are.
    """
    deviations = scatter.diagonal().clamp(min=0).sqrt()
    units = deviations.where(deviations > 0, 1)
    correlation = scatter / (units[:, None] * units)
    correlation.fill_diagonal_(1)  # also of features that never vary, which are correlated with none
    return deviations, _cholesky(correlation)


def _cholesky(sigma: Tensor) -> Tensor:
    """The lower factor. Where rounding leaves Sigma a little short of positive, a little of the identity is added."""
    jitter = torch.finfo(torch.float32).eps * float(sigma.diagonal().mean())
    for _ in range(30):
        factor, failed = torch.linalg.cholesky_ex(sigma)
        if not failed:
            return factor
        sigma = sigma + jitter * torch.eye(len(sigma), dtype=sigma.dtype)
        jitter *= 2
    raise EaseError("the features' covariance cannot be inverted: are all features finite?")
