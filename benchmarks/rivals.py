"""What people write with scikit-learn on the features of a frozen model, keeping the features of all old images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Features = npt.NDArray[np.float32]
Labels = npt.NDArray[np.int64]

STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Candidates for the inverse regularisation C of the tuned logistic regression."""
NEIGHBOURS = (1, 3, 5, 10, 20)
FOLDS = 5
ITERATIONS = 1000


class ClassMeans(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """The class whose mean feature has the largest cosine; scikit-learn's own `NearestCentroid` has no cosine."""

    def fit(self, features: Features, labels: Labels) -> ClassMeans:
        """Features [N, d], labels [N]."""
        self.classes_ = np.unique(labels)
        means = np.stack([features[labels == c].mean(axis=0) for c in self.classes_])
        self.means_ = means / np.linalg.norm(means, axis=1, keepdims=True)
        return self

    def predict(self, features: Features) -> Labels:
        """[N, d] -> [N]. The length of a feature does not change which cosine is the largest."""
        return np.asarray(self.classes_[(features @ self.means_.T).argmax(axis=1)])


@dataclass(frozen=True)
class Rival:
    """One estimator.

    Attributes:
        make: labels of the training images -> the estimator, not fitted yet.
        needs_features: whether learning more classes needs the features of all old images.
    """

    make: Callable[[Labels], Any]
    needs_features: bool = True

    def fitted(self, features: Features, labels: Labels) -> Any:
        """The estimator, fitted to features [N, d] with labels [N]."""
        return self.make(labels).fit(features, labels)


def _folds(labels: Labels) -> StratifiedKFold:
    """As many as the smallest class allows."""
    smallest = int(np.unique(labels, return_counts=True)[1].min())
    return StratifiedKFold(max(2, min(FOLDS, smallest)), shuffle=True, random_state=0)


def _tuned_regression(labels: Labels) -> Any:
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    return GridSearchCV(pipeline, {"logisticregression__C": STRENGTHS}, cv=_folds(labels))


def _nearest_neighbours(labels: Labels) -> Any:
    folds = _folds(labels)
    fewest = len(labels) * (folds.n_splits - 1) // folds.n_splits
    return GridSearchCV(
        KNeighborsClassifier(metric="cosine"),
        {"n_neighbors": [k for k in NEIGHBOURS if k <= fewest]},
        cv=folds,
    )


RIVALS = {
    "nearest class mean": Rival(lambda labels: ClassMeans(), needs_features=False),
    "LogisticRegression": Rival(lambda labels: LogisticRegression(max_iter=ITERATIONS)),
    "LogisticRegression, tuned": Rival(_tuned_regression),
    "LDA, shrunk": Rival(lambda labels: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")),
    "kNN": Rival(_nearest_neighbours),
}

_NEEDED: dict[type, tuple[str, ...]] = {
    ClassMeans: ("classes_", "means_"),
    LinearDiscriminantAnalysis: ("classes_", "coef_", "intercept_"),
    LogisticRegression: ("classes_", "coef_", "intercept_"),
    StandardScaler: ("mean_", "scale_"),
    KNeighborsClassifier: (),
}
"""What predicting needs. The neighbours' copy of the features is left out: it is counted where features are kept."""


def array_bytes(estimator: Any) -> int:
    """Bytes of the arrays that a fitted estimator predicts with; a search counts as its best estimator."""
    if isinstance(estimator, GridSearchCV):
        return array_bytes(estimator.best_estimator_)
    if hasattr(estimator, "steps"):
        return sum(array_bytes(step) for _, step in estimator.steps)
    return sum(getattr(estimator, name).nbytes for name in _NEEDED[type(estimator)])
