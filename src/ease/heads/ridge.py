"""Ridge regression onto one-hot labels, from sums that new images are simply added to."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ease.errors import EaseError


class RidgeHead:
    """`W = (G + lambda I)^-1 C` with G = H^T H and C = H^T Y over all images ever added; no image is kept.

    G grows with the squared length of the features, so a small lambda drowns in single precision: all is fp64.

    Attributes:
        gram: G, [M, M]; only the lower triangle is read.
        sums: C, [M, classes], the sum of features of each class.
    """

    def __init__(self, width: int) -> None:
        self.gram = torch.zeros(width, width, dtype=torch.float64)
        self.sums = torch.zeros(width, 0, dtype=torch.float64)

    def grow(self, classes: int) -> None:
        """Add classes without images."""
        self.sums = torch.cat([self.sums, self.sums.new_zeros(len(self.sums), classes)], dim=1)

    def add(self, features: Tensor, labels: Tensor) -> None:
        """Take in features [N, M] and labels [N]. In which order and in how many calls makes no difference."""
        features = features.double()
        self.gram.addmm_(features.mT, features)
        self.sums.index_add_(1, labels, features.mT)

    def weights(self, ridge: float) -> Tensor | None:
        """W [M, classes], or None if lambda is too small for G to be inverted."""
        diagonal = self.gram.diagonal()
        before = diagonal.clone()
        diagonal += ridge  # in place: at full width a copy of G takes most of a gigabyte
        factor, failed = torch.linalg.cholesky_ex(self.gram)
        diagonal.copy_(before)
        return None if failed else torch.cholesky_solve(self.sums, factor)

    def best_ridge(self, ridges: Sequence[float], features: Tensor, labels: Tensor) -> float:
        """The lambda that leaves the smallest squared error on images [N, M] that were not added."""
        features = features.double()
        wanted = torch.nn.functional.one_hot(labels, self.sums.shape[1]).double()
        errors = []
        for ridge in ridges:
            weights = self.weights(ridge)
            error = float("inf") if weights is None else float((features @ weights - wanted).square().mean())
            errors.append(error)
        return ridges[min(range(len(ridges)), key=errors.__getitem__)]

    def solve(self, ridges: Sequence[float]) -> Tensor:
        """W [M, classes] for the first lambda that works."""
        for ridge in ridges:
            weights = self.weights(ridge)
            if weights is not None:
                return weights
        raise EaseError(f"no ridge up to {max(ridges):g} solves the regression: are all features finite?")

    def state(self) -> dict[str, Tensor]:
        """Half of the symmetric G, M (M + 1) / 2, and C."""
        return {"gram": self.gram[_lower(len(self.gram))], "sums": self.sums}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.sums = tensors["sums"].clone()
        width = len(self.sums)
        self.gram = self.sums.new_zeros(width, width)
        self.gram[_lower(width)] = tensors["gram"]
        self.gram += self.gram.tril(-1).mT


def _lower(width: int) -> Tensor:
    """A mask, [M, M]: a list of positions would take 16 bytes for each."""
    return torch.ones(width, width, dtype=torch.bool).tril_()
