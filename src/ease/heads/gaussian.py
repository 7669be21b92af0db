"""One Gaussian per class, compared by the Mahalanobis distance of FeCAM. Statistics are running sums."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ease.heads.triangle import unpacked_triangle
from ease.heads.whitened import WhitenedHead

PRECISION = torch.finfo(torch.float32).eps
"""Features and stored statistics are in single precision; relative differences below this are rounding errors."""


class GaussianHead:
    """Mean, image count and scatter of every class; no image and no feature is kept.

    The covariance Sigma of a class is shrunk, S = Sigma + alpha1 v I + alpha2 w (1 - I) with v the mean of Sigma's
    diagonal and w that of the rest, and scaled to a correlation matrix, N_ij = S_ij / sqrt(S_ii S_jj). Images are
    scored by minus the squared distance (x - mu)^T N^-1 (x - mu), with the pseudo-inverse where N has no inverse.

    The features of a class may not vary at all, as those of a single image do not. Sigma is then zero, and the
    shrinkage, which is a share of Sigma, adds nothing. N is the identity in this case, because every positive multiple
    of the identity is scaled to it, and the distance is the squared Euclidean one. In the same way, one feature that
    does not vary is treated as uncorrelated with all others.

    Statistics are held as they are stored: in single precision, of each symmetric scatter one triangle. They are
    changed and inverted in double precision. The inverses are kept, in double precision, once they were needed.

    Attributes:
        means: [C, K].
        counts: [C] images behind each mean.
        scatters: [C, K (K + 1) / 2], the lower triangles of the sums of (x - mu)(x - mu)^T over the images of a class.
    """

    def __init__(self, width: int, alpha1: float = 1.0, alpha2: float = 0.0) -> None:
        self.width = width
        self.alpha1 = alpha1
        self.alpha2 = alpha2
        self.means = torch.zeros(0, width)
        self.counts = torch.zeros(0, dtype=torch.int64)
        self.scatters = torch.zeros(0, width * (width + 1) // 2)
        self._inverses: list[Tensor | None] = []

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    def grow(self, classes: int) -> None:
        """Add classes without images."""
        self.means = torch.cat([self.means, self.means.new_zeros(classes, self.width)])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        self.scatters = torch.cat([self.scatters, self.scatters.new_zeros(classes, self.scatters.shape[1])])
        self._inverses += [None] * classes

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Add features [N, K] of the classes `labels` [N]. The classes may have images already."""
        labels = labels.cpu()
        for position in labels.unique().tolist():
            mine = features[labels == position]
            one = WhitenedHead(
                self.width
            )  # the sums of a single class are the pooled sums of that class alone
            before = {"means": self.means[[position]], "counts": self.counts[[position]]}
            freedom = max(int(self.counts[position]) - 1, 0)
            one.load_state({**before, "scatter": self.scatters[position]}, freedom)
            one.add(mine, torch.zeros(len(mine), dtype=torch.int64))
            after = one.state()
            self.means[position], self.counts[position] = after["means"][0], after["counts"][0]
            self.scatters[position] = after["scatter"]
            self._inverses[position] = None

    def forget(self, position: int) -> None:
        """Remove a class. Nothing of it remains, and the other classes do not change."""
        keep = torch.arange(self.classes) != position
        self.means, self.counts, self.scatters = self.means[keep], self.counts[keep], self.scatters[keep]
        del self._inverses[position]

    def correlations(self, position: int) -> Tensor:
        """N [K, K] of a class in double precision: its covariance, shrunk and scaled to a diagonal of ones."""
        scatter = unpacked_triangle(self.scatters[position].double(), self.width)
        covariance = scatter / max(int(self.counts[position]) - 1, 1)
        diagonal = covariance.diagonal()
        elsewhere = (covariance.sum() - diagonal.sum()) / max(self.width * (self.width - 1), 1)
        shrunk = covariance + self.alpha2 * elsewhere
        variances = diagonal + self.alpha1 * diagonal.mean()
        rounding = PRECISION**2 * self.means[position].double().square().mean()
        scale = torch.where(variances > rounding, variances, torch.inf).rsqrt()
        return (shrunk * scale[:, None] * scale).fill_diagonal_(1.0)

    def inverse(self, position: int) -> Tensor:
        """N^-1 [K, K] of a class in double precision, computed when it is first needed after a change."""
        kept = self._inverses[position]
        if kept is None:
            kept = self._inverses[position] = _inverse(self.correlations(position))
        return kept

    def scores(self, features: Tensor) -> Tensor:
        """Features [N, K] -> minus the squared distances [N, C] in fp32."""
        features = features.double()
        scores = features.new_zeros(len(features), self.classes)
        for position in range(self.classes):
            apart = features - self.means[position].to(features)
            scores[:, position] = -((apart @ self.inverse(position).to(features)) * apart).sum(dim=1)
        return scores.float()

    def state(self) -> dict[str, Tensor]:
        """Means [C, K], counts [C] and the triangles of the scatters [C, K (K + 1) / 2]."""
        return {"means": self.means, "counts": self.counts, "scatters": self.scatters}

    def load_state(self, tensors: Mapping[str, Tensor]) -> None:
        """The inverse of `state`."""
        means, counts, scatters = (tensors[name].clone() for name in ("means", "counts", "scatters"))
        classes = len(counts)
        if means.shape != (classes, self.width) or scatters.shape != (classes, self.scatters.shape[1]):
            raise ValueError(
                f"means {list(means.shape)}, counts {list(counts.shape)}, scatters {list(scatters.shape)} do not fit"
            )
        self.means, self.counts, self.scatters = means, counts, scatters
        self._inverses = [None] * classes


def _inverse(matrix: Tensor) -> Tensor:
    """The inverse of a symmetric [K, K] with ones on its diagonal, or its pseudo-inverse if it is (nearly) singular."""
    smallest = len(matrix) * PRECISION
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed or float(factor.diagonal().min()) ** 2 <= smallest:
        return torch.linalg.pinv(matrix, rtol=smallest, hermitian=True)
    return torch.cholesky_inverse(factor)
