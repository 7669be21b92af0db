"""The classifier as a scikit-learn estimator: `fit`, `partial_fit`, `predict`, `predict_proba`, `score`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError

from ease.app.classifier import METHOD, Augment, Classifier
from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError


class EaseClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn estimator for images. Each call of `partial_fit` may bring new classes.

    Images are an array [N, H, W] or [N, H, W, 3], or a list of anything that `Classifier.predict` accepts. Labels are
    numbers or strings. `classes_` and the columns of `predict_proba` are in the order in which classes were learned.

    Args:
        model: Model directory; `fit` refuses one that holds a model. If None, a temporary one that is removed together
            with this object.
        backbone: `ease-vit` or any plain timm ViT.
        weights: Local weights file of the backbone.
        input_size: Side length of the input in pixels; the backbone's own if None.
        method: Any exemplar-free method.
        augment: `photos`, or `gentle` for images that must not be mirrored or strongly cropped.
        settings: Settings of the method, such as `{"layers": 6}`.
        random_state: Random seed.

    Attributes:
        classifier_: The `Classifier` that does the work.
        classes_: Labels, in the order in which they were learned.

    Example:
        >>> from sklearn.datasets import load_digits
        >>> from ease import EaseClassifier
        >>> data = load_digits()
        >>> images, labels = (data.images[:40] * 15).astype("uint8"), data.target[:40]
        >>> first = labels < 5
        >>> model = EaseClassifier(input_size=16).fit(images[first], labels[first])
        >>> model = model.partial_fit(images[~first], labels[~first])
        >>> model.predict_proba(images).shape
        (40, 10)
    """

    def __init__(
        self,
        model: str | Path | None = None,
        backbone: str = EMBEDDED,
        weights: str | Path | None = None,
        input_size: int | None = None,
        method: str = METHOD,
        augment: Augment = "photos",
        settings: Mapping[str, Any] | None = None,
        random_state: int = 1993,
    ) -> None:
        self.model = model
        self.backbone = backbone
        self.weights = weights
        self.input_size = input_size
        self.method = method
        self.augment = augment
        self.settings = settings
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> EaseClassifier:
        """Learn these images, and nothing else: what was learned before is dropped."""
        images, labels = _checked(X, y)
        path = self._folder()
        self.classifier_ = Classifier.create(
            path,
            self.backbone,
            weights=self.weights,
            input_size=self.input_size,
            method=self.method,
            augment=self.augment,
            settings=self.settings,
            seed=self.random_state,
            write=False,
        )
        self.classes_ = labels[:0]
        return self._learn(images, labels)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> EaseClassifier:
        """Learn these images in addition: new classes as one task, more images of known classes.

        `classes` is accepted for compatibility and not used: the classes need not be known beforehand.
        """
        if not hasattr(self, "classifier_"):
            return self.fit(X, y)
        return self._learn(*_checked(X, y))

    def predict(self, X: Any) -> np.ndarray:
        """Labels [N]."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated confidences [N, len(classes_)]."""
        if not hasattr(self, "classifier_"):
            raise NotFittedError("this EaseClassifier is not fitted yet: call fit or partial_fit first")
        logits = self.classifier_.logits(_images(X))
        return self.classifier_.calibration.confidences(logits).numpy().astype(np.float64)

    def _learn(self, images: Sequence[Any], labels: np.ndarray) -> EaseClassifier:
        found, first = np.unique(labels, return_index=True)
        in_order = found[np.argsort(first)]
        groups = {
            str(label): [images[i] for i in np.flatnonzero(labels == label).tolist()] for label in in_order
        }
        if len(groups) < len(in_order):
            raise ValueError("two labels read the same as text, such as 1 and '1': make them differ")
        self.classifier_.learn(groups, extend=True)
        new = in_order[~np.isin(in_order, self.classes_)]
        self.classes_ = np.concatenate([self.classes_.astype(np.result_type(self.classes_, new)), new])
        return self

    def _folder(self) -> Path:
        if self.model is not None:
            return Path(self.model)
        # The previous folder is removed as soon as nothing refers to it.
        self.folder_ = tempfile.TemporaryDirectory(prefix="ease-")
        return Path(self.folder_.name)

    def __sklearn_tags__(self) -> Any:
        """The input is images, not rows of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.no_validation = True
        return tags


def _checked(X: Any, y: Any) -> tuple[Sequence[Any], np.ndarray]:
    images, labels = _images(X), np.asarray(y)
    if labels.ndim != 1 or len(labels) != len(images):
        raise ValueError(f"{len(images)} images need {len(images)} labels [N], not {list(labels.shape)}")
    if not len(images):
        raise ValueError("there is no image to learn from")
    return images, labels


def _images(X: Any) -> Sequence[Any]:
    if isinstance(X, np.ndarray):
        if X.ndim not in (3, 4):
            raise ValueError(f"images must be [N, H, W] or [N, H, W, 3], not {list(X.shape)}")
        return list(X)
    if isinstance(X, (str, bytes)) or not isinstance(X, Sequence):
        raise EaseError("images must be an array or a list")
    return X
