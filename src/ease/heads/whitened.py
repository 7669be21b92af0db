"""Class means compared in the metric of the pooled within-class covariance. Statistics are running sums."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ease.errors import EaseError
from ease.heads.triangle import inverse_of_lower, packed_triangle, unpacked_triangle

SHRINKAGE_FACTOR = 1.5
"""Factor of the shrinkage of OAS, which assumes Gaussian features: outliers make a covariance noisier than it expects.

Chosen on held-out training images; see docs/results/strata-search.md."""

SMALLEST = 1e-6
"""Lower bound of a token's variance, relative to the mean variance of the tokens."""

UNRELATED = 4.0
"""Standard deviations of the cosine of two unrelated images that two images have to exceed to count as alike.

Of 3 to 5, it is the one with which most classes that a model did not know were found as groups of their images. They
were held-out training images of glyphs and flowers; see `python -m benchmarks.unsure`."""


@dataclass(frozen=True)
class Whitening:
    """The classifier that follows from the statistics: the score of a class is the cosine of two whitened vectors.

    Attributes:
        centre: The mean of the class means, [K]; zero for a single class.
        matrix: Lower triangular [K, K] with matrix @ Sigma @ matrix^T = I.
        directions: The whitened, centred class means, normalised to length 1, [C, K].
        lengths: Their lengths before normalisation, [C].
    """

    centre: Tensor
    matrix: Tensor
    directions: Tensor
    lengths: Tensor

    def whitened(self, features: Tensor) -> Tensor:
        """Centre and whiten features [N, K], so that their within-class covariance is the identity."""
        return F.linear(features - self.centre.to(features), self.matrix.to(features))

    def scores(self, features: Tensor) -> Tensor:
        """Features [N, K] -> cosines [N, C]."""
        return F.linear(F.normalize(self.whitened(features), dim=-1), self.directions.to(features))


class Covariance(NamedTuple):
    """The shrunk covariance and its composition.

    Attributes:
        sigma: The covariance, [K, K].
        whole: The weight of the pooled covariance in it.
        own: The additional weight of each token's own covariance.
    """

    sigma: Tensor
    whole: float
    own: tuple[float, ...]


class WhitenedHead:
    """Running class means, image counts and the pooled within-class scatter. No image and no feature is kept.

    All three are exact: they depend neither on the order of the images nor on the number of calls. Sums are computed in
    fp64; `state` returns fp32, and one triangle of the symmetric scatter.

    Args:
        width: Width K of a feature.
        parts: Number of tokens of equal width that a feature consists of; see `covariance`.

    Attributes:
        means: [C, K].
        counts: Number of images per class, [C].
        scatter: The sum of (h - mu_y)(h - mu_y)^T over all images h of class y, [K, K].
        freedom: Degrees of freedom of the scatter: images minus classes.

    Example:
        >>> head = WhitenedHead(width=2)
        >>> head.grow(2)
        >>> head.add(torch.tensor([[1.0, 0.0], [0.8, 0.1], [0.0, 1.0]]), torch.tensor([0, 0, 1]))
        >>> head.scores(torch.tensor([[0.9, 0.0], [0.1, 1.0]])).argmax(dim=1).tolist()
        [0, 1]
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
        """Width K of a feature."""
        return self.scatter.shape[0]

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    def grow(self, classes: int) -> None:
        """Add classes without images."""
        self.means = torch.cat([self.means, self.means.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        self._whitening = None

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add features [N, K] of the classes `labels` [N]. The classes may have images already.

        The scatter of two sets of images of one class is the sum of their scatters and of a rank-one term for the
        distance between their means (Chan et al., 1983).
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
        """Remove the mean and the count of a class. Its share of the pooled scatter cannot be removed."""
        keep = torch.arange(self.classes) != position
        self.means, self.counts = self.means[keep], self.counts[keep]
        self._whitening = None

    def covariance(self) -> Covariance:
        """Sigma [K, K]: the shrunk pooled covariance W.

        A share rho of W is replaced by a multiple of the identity, with a separate factor for each token, since tokens
        of different blocks differ in scale. The result is then mixed, in the same ratio, with the covariances of the
        separate tokens, each shrunk by a share of its own, because with few images the covariances between tokens are
        the least reliable. With a single token this is plain shrinkage.

        Every share is `SHRINKAGE_FACTOR` times the oracle approximating shrinkage (Chen et al., 2010), which
        depends only on the covariance and the degrees of freedom. Without degrees of freedom, or if features
        do not vary within their classes, Sigma is the identity and the head is the centred cosine.
        """
        trace, size = float(self.scatter.trace()), self.width // self.parts
        if self.freedom < 1 or trace <= 0:
            return Covariance(torch.eye(self.width, dtype=torch.float64), 0.0, (0.0,) * self.parts)
        pooled = self.scatter / self.freedom
        variances = pooled.diagonal().view(self.parts, size).mean(dim=1)
        # Without a lower bound, rounding errors of a token that hardly varies would be amplified.
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
        """The classifier for all images so far, computed when it is first needed after a change."""
        if self._whitening is None:
            self._whitening = self._whitened()
        return self._whitening

    def _whitened(self) -> Whitening:
        matrix = whitening_matrix(self.covariance().sigma)
        centre = self.means.mean(dim=0) if self.classes > 1 else self.means.new_zeros(self.width)
        apart = (self.means - centre) @ matrix.mT
        lengths = apart.norm(dim=1)
        return Whitening(centre.float(), matrix.float(), F.normalize(apart, dim=1).float(), lengths.float())

    def scores(self, features: Tensor) -> Tensor:
        """Features [N, K] -> cosines [N, C] in fp32."""
        return self.whitening().scores(features)

    def alike_from(self) -> float:
        """The cosine of two whitened features from which their images are hardly of two classes by chance.

        Two deviations from class means that have nothing to do with each other have a cosine of mean 0, and of standard
        deviation sqrt(tr V^2) / tr V, where V is the whitened within-class covariance. The result is `UNRELATED` times
        that, but no more than the cosine that two images of a learned class are expected to have. It takes no image:
        means and covariance are those that were learned. If they say nothing of chance, as with one image per class,
        the result is half of the latter.
        """
        if not self.classes:
            return 1.0
        found = self.whitening()
        matrix = found.matrix.double()
        spread = matrix @ self.scatter @ matrix.mT / max(1, self.freedom)
        trace, squares = float(spread.trace()), found.lengths.double().square()
        within = float((squares / (squares + trace).clamp(min=SMALLEST)).mean())
        if trace <= SMALLEST:
            return within / 2
        return min(UNRELATED * float(spread.norm()) / trace, within)

    def round_as_saved(self) -> None:
        """Round the statistics as saving and loading does, so that a restart does not change later results."""
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


def whitening_matrix(sigma: Tensor) -> Tensor:
    """The lower triangular M [K, K] with M @ sigma @ M^T = I, in fp64."""
    return inverse_of_lower(_cholesky(sigma))


def _share(covariance: Tensor, freedom: int) -> float:
    """The share of a covariance [K, K] that shrinkage replaces."""
    return min(1.0, SHRINKAGE_FACTOR * oas_shrinkage(covariance, freedom))


def oas_shrinkage(covariance: Tensor, freedom: int) -> float:
    """The OAS shrinkage in [0, 1] of a covariance [K, K] with `freedom` degrees of freedom, as in scikit-learn."""
    width = covariance.shape[0]
    squares, trace = float(covariance.square().sum()), float(covariance.trace())
    excess = squares - trace**2 / width
    if excess <= 0:  # a multiple of the identity already
        return 1.0
    return min(1.0, (squares + trace**2) / ((freedom + 1) * excess))


def factored_scatter(scatter: Tensor) -> tuple[Tensor, Tensor]:
    """Factor a scatter S [K, K] into deviations [K] and a lower triangular L [K, K], in fp64: S = D L L^T D.

    D has the deviations on its diagonal and L is the Cholesky factor of a correlation matrix. The rows of L have length
    1, so its numbers are of similar size whatever the scales of the features are.
    """
    deviations = scatter.diagonal().clamp(min=0).sqrt()
    units = deviations.where(deviations > 0, 1)
    correlation = scatter / (units[:, None] * units)
    correlation.fill_diagonal_(1)  # also for features that never vary
    return deviations, _cholesky(correlation)


def _cholesky(sigma: Tensor) -> Tensor:
    """The lower Cholesky factor. A small multiple of the identity is added if rounding made Sigma indefinite."""
    jitter = torch.finfo(torch.float32).eps * float(sigma.diagonal().mean())
    for _ in range(30):
        factor, failed = torch.linalg.cholesky_ex(sigma)
        if not failed:
            return factor
        sigma = sigma + jitter * torch.eye(len(sigma), dtype=sigma.dtype)
        jitter *= 2
    raise EaseError("the features' covariance cannot be inverted: are all features finite?")
