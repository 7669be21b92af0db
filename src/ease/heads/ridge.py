"""Ridge regression onto one-hot labels, from running sums."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ease.errors import EaseError
from ease.heads.triangle import packed_triangle, unpacked_triangle

ROWS = 1024
"""Images added at a time; in fp64 a row of width 10,000 takes 80 kB."""


class RidgeHead:
    """`W = (G + lambda I)^-1 C` with G = H^T H and C = H^T Y over all images added so far. No image is kept.

    G grows with the squared length of the features, and in single precision a small lambda would be lost in rounding
    errors. Therefore everything is computed in fp64.

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
        """Add features [N, M] with labels [N]. The result depends neither on the order nor on the number of calls."""
        for some, theirs in zip(features.split(ROWS), labels.split(ROWS), strict=True):
            rows = some.double()
            self.gram.addmm_(rows.mT, rows)
            self.sums.index_add_(1, theirs, rows.mT)

    def forget(self, position: int) -> None:
        """Remove a class. The weights of the others do not change; the share of the class in G cannot be removed."""
        self.sums = torch.cat([self.sums[:, :position], self.sums[:, position + 1 :]], dim=1)

    def weights(self, ridge: float) -> Tensor | None:
        """W [M, classes], or None if lambda is too small for G to be inverted."""
        diagonal = self.gram.diagonal()
        before = diagonal.clone()
        diagonal += ridge  # in place, because a copy of G may take almost a gigabyte
        factor, failed = torch.linalg.cholesky_ex(self.gram)
        diagonal.copy_(before)
        return None if failed else torch.cholesky_solve(self.sums, factor)

    def best_ridge(self, ridges: Sequence[float], features: Tensor, labels: Tensor) -> float:
        """The lambda with the smallest squared error on images [N, M] that were not added."""
        features = features.double()
        wanted = torch.nn.functional.one_hot(labels, self.sums.shape[1]).double()
        errors = []
        for ridge in ridges:
            weights = self.weights(ridge)
            error = float("inf") if weights is None else float((features @ weights - wanted).square().mean())
            errors.append(error)
        return ridges[min(range(len(ridges)), key=errors.__getitem__)]

    def cross_validated_ridge(
        self, ridges: Sequence[float], features: Tensor, labels: Tensor, folds: int
    ) -> float:
        """The lambda with the highest accuracy in cross-validation on images [N, M] that will be added next.

        Each fold in turn is scored by a head of all images added before and of the other folds. Of equally good lambdas
        the first is taken.
        """
        fold_of = stratified_folds(labels, folds)
        right = [0.0] * len(ridges)
        for fold in range(folds):
            held, rest = fold_of == fold, fold_of != fold
            trial = RidgeHead(len(self.gram))
            trial.gram, trial.sums = self.gram.clone(), self.sums.clone()
            trial.add(features[rest], labels[rest])
            tested = features[held].double()
            for i, ridge in enumerate(ridges):
                weights = trial.weights(ridge)
                if weights is None:
                    right[i] = -torch.inf
                else:
                    found = (tested @ weights).argmax(dim=1)
                    right[i] += float((found == labels[held]).double().mean())
        return ridges[max(range(len(ridges)), key=right.__getitem__)]

    def solve(self, ridges: Sequence[float]) -> Tensor:
        """W [M, classes] for the first lambda that works."""
        for ridge in ridges:
            weights = self.weights(ridge)
            if weights is not None:
                return weights
        raise EaseError(f"no ridge up to {max(ridges):g} solves the regression: are all features finite?")

    def state(self) -> dict[str, Tensor]:
        """The lower triangle of the symmetric G, [M (M + 1) / 2], and C."""
        return {"gram": packed_triangle(self.gram), "sums": self.sums}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """The inverse of `state`."""
        self.sums = tensors["sums"].clone()
        self.gram = unpacked_triangle(tensors["gram"], len(self.sums))


def stratified_folds(labels: Tensor, folds: int) -> Tensor:
    """The fold of each of [N] images. Every class is spread evenly over the folds, its images in their order.

    It is the split that scikit-learn's `StratifiedKFold` makes without shuffling. Where the images of a class cannot
    be divided evenly, classes take turns in which folds get one more.
    """
    _, first, inverse = np.unique(labels.numpy(), return_index=True, return_inverse=True)
    ranks = first.argsort().argsort()[inverse]  # classes by their first appearance
    together = ranks.argsort(kind="stable")
    turns = np.arange(len(ranks)) % folds
    found = np.empty_like(ranks)
    found[together] = np.concatenate([np.sort(turns[ranks[together] == rank]) for rank in range(len(first))])
    return torch.from_numpy(found)
