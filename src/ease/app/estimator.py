"""The classifier as a scikit-learn estimator: `fit`, `partial_fit`, `predict`, `predict_proba`, `score`, pickling."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, column_or_1d

from ease.app.archive import pack, unpack
from ease.app.classifier import METHOD, Augment, Classifier
from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError
from ease.streams.intake import class_name

_ARCHIVE = "_archive"
"""Key of a pickled estimator's state under which its model is, as the bytes of an archive."""


class EaseClassifier(ClassifierMixin, BaseEstimator):
    """A scikit-learn estimator for images. Each call of `partial_fit` may bring new classes.

    Images are an array [N, H, W] or [N, H, W, 3], an array of paths [N], or a list of anything that
    `Classifier.predict` accepts. Labels are whatever scikit-learn takes for classes, and keep their type.

    A fitted estimator can be pickled: the model goes with it as an archive of `ease.app.archive` and is unpacked into
    a temporary folder. As with every pickle, only load one that you trust.

    Args:
        model: Model directory; `fit` refuses one that holds a model. If None, a temporary one that is removed together
            with this object, which is what cross-validation needs.
        backbone: `ease-vit` or any plain timm ViT.
        weights: Local weights file of the backbone.
        input_size: Side length of the input in pixels; the backbone's own if None.
        method: Any exemplar-free method.
        augment: `photos`, or `gentle` for images that must not be mirrored or strongly cropped.
        settings: Settings of the method, such as `{"layers": 6}`.
        random_state: Random seed.

    Attributes:
        classifier_: The `Classifier` that does the work.
        classes_: Labels, sorted; the columns of `predict_proba` are in this order.
        names_: Name in the model of each label, in the order of `classes_`. It is the label as text, or `label 1`,
            `label 2`, ... if that is no name of a class, such as an empty text.

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

    @classmethod
    def open(
        cls, path: Path | str, weights: Path | str | None = None, *, dtype: Any = None
    ) -> EaseClassifier:
        """A fitted estimator for a saved model.

        `partial_fit` goes on in that model. `fit` and clones learn in temporary folders of their own, with the method
        and the settings of the model.

        Args:
            path: The model directory.
            weights: Weights file of the backbone, if it is not found otherwise.
            dtype: Type of the labels, such as int if the classes are called "0", "1", ...; text if None.

        Returns:
            The estimator.
        """
        classifier = Classifier.open(path, weights)
        names = classifier.classes
        try:
            labels = np.array(names, dtype=str).astype(str if dtype is None else dtype)
        except (TypeError, ValueError):
            raise EaseError(
                f"the classes of the model in {path} cannot be read as {np.dtype(dtype)}, such as '{names[0]}': "
                "leave dtype out"
            ) from None
        if len(np.unique(labels)) < len(names):
            raise EaseError(
                f"two classes of the model in {path} are equal as {labels.dtype}: leave dtype out"
            )
        facts = classifier.facts
        estimator = cls(
            backbone=facts.backbone.name,
            weights=weights,
            input_size=facts.backbone.input_size,
            method=facts.method,
            augment=facts.augmentation or "photos",  # type: ignore[arg-type]
            settings=facts.settings,
            random_state=1993 if facts.seed is None else facts.seed,
        )
        estimator.classifier_ = classifier
        estimator._set_classes(labels, names)
        return estimator

    def fit(self, X: Any, y: Any) -> EaseClassifier:
        """Learn these images, and nothing else: what was learned before is dropped."""
        images, labels = _checked(X, y)
        folder = None if self.model is not None else tempfile.TemporaryDirectory(prefix="ease-")
        classifier = Classifier.create(
            str(self.model) if folder is None else folder.name,
            self.backbone,
            weights=self.weights,
            input_size=self.input_size,
            method=self.method,
            augment=self.augment,
            settings=self.settings,
            seed=self.random_state,
            write=False,
        )
        self.folder_ = folder  # the previous one is removed now, as nothing refers to it any more
        self.classifier_ = classifier
        self.classes_, self.names_ = labels[:0], np.array([], dtype=str)
        return self._learn(images, labels)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> EaseClassifier:
        """Learn these images in addition: new classes as one task, more images of known classes.

        `classes` is accepted for compatibility and not used: the classes need not be known beforehand.
        """
        if not hasattr(self, "classifier_"):
            return self.fit(X, y)
        images, labels = _checked(X, y)
        if _is_text(labels) != _is_text(self.classes_):
            kinds = ("text", "numbers") if _is_text(self.classes_) else ("numbers", "text")
            raise ValueError(f"the labels so far are {kinds[0]}, these are {kinds[1]}: give one kind")
        return self._learn(images, labels)

    def predict(self, X: Any) -> np.ndarray:
        """Labels [N]."""
        best = self.predict_proba(X).argmax(axis=1)
        return self.classes_[best]

    def predict_proba(self, X: Any) -> np.ndarray:
        """Calibrated confidences [N, len(classes_)], with columns in the order of `classes_`; each row sums to 1."""
        if not hasattr(self, "classifier_"):
            raise NotFittedError("this EaseClassifier is not fitted yet: call fit or partial_fit first")
        classifier = self.classifier_
        logits = classifier.logits(_images(X))
        position = {name: at for at, name in enumerate(classifier.classes)}
        if set(position) != set(self.names_.tolist()):
            raise EaseError(
                f"the classes of the model in {classifier.path} were changed outside of this estimator: "
                "open it again with EaseClassifier.open"
            )
        # In double precision: a row that sums to 1 within single precision is not enough for scikit-learn's log_loss.
        sure = classifier.calibration.confidences(logits.double()).numpy()
        return sure[:, [position[name] for name in self.names_.tolist()]]

    def _learn(self, images: Sequence[Any], labels: np.ndarray) -> EaseClassifier:
        found, first = np.unique(labels, return_index=True)
        names = dict(zip(self.classes_.tolist(), self.names_.tolist(), strict=True))
        new = [label for label in found[np.argsort(first)].tolist() if label not in names]
        for label in new:
            names[label] = _new_name(label, names.values())
        groups = {
            names[label]: [images[i] for i in np.flatnonzero(labels == label).tolist()]
            for label in found[np.argsort(first)].tolist()
        }
        self.classifier_.learn(groups, extend=True)
        added = np.array(new, dtype=labels.dtype)
        both = np.concatenate([self.classes_.astype(np.result_type(self.classes_, added)), added])
        self._set_classes(both, list(names.values()))
        return self

    def _set_classes(self, labels: np.ndarray, names: Sequence[str]) -> None:
        order = np.argsort(labels, kind="stable")
        self.classes_, self.names_ = labels[order], np.array(names, dtype=str)[order]

    # --- pickling ---------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """The parameters, the labels, and the model as the bytes of an archive, which holds no pickle."""
        state: dict[str, Any] = dict(super().__getstate__())
        classifier, _ = state.pop("classifier_", None), state.pop("folder_", None)
        if classifier is not None and classifier.generation:
            with tempfile.TemporaryDirectory(prefix="ease-") as folder:
                archive = Path(folder) / "model.ease"
                done = pack(
                    classifier.path, archive, weights=None if self.weights is None else Path(self.weights)
                )
                if done.generation != classifier.generation:
                    raise EaseError(
                        f"the model in {classifier.path} was changed outside of this estimator: "
                        "open it again with EaseClassifier.open"
                    )
                state[_ARCHIVE] = archive.read_bytes()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpack the model into a temporary folder, which is removed together with this object."""
        plain = dict(state)
        packed = plain.pop(_ARCHIVE, None)
        super().__setstate__(plain)
        if packed is None:
            return
        self.folder_ = tempfile.TemporaryDirectory(prefix="ease-")
        archive, model = Path(self.folder_.name) / "model.ease", Path(self.folder_.name) / "model"
        archive.write_bytes(packed)
        unpack(archive, model)
        archive.unlink()
        self.classifier_ = Classifier.open(model)

    def __sklearn_tags__(self) -> Any:
        """The input is images or their paths, not rows of numbers."""
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        tags.no_validation = True
        return tags


def _checked(X: Any, y: Any) -> tuple[Sequence[Any], np.ndarray]:
    """Images and their labels [N]. Errors are ValueErrors, as scikit-learn's own."""
    images = _images(X)
    if y is None:
        raise ValueError("EaseClassifier requires y to be passed, but the target y is None")
    labels = column_or_1d(y, warn=True)
    if len(labels) != len(images):
        raise ValueError(f"{len(images)} images need {len(images)} labels [N], not {len(labels)}")
    if not len(images):
        raise ValueError("there is no image to learn from")
    assert_all_finite(labels, input_name="y")
    check_classification_targets(labels)
    return images, labels


def _images(X: Any) -> Sequence[Any]:
    if hasattr(X, "__array__"):
        array = np.asarray(X)
        if array.dtype.kind in "OU" and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
            return [str(each) if isinstance(each, str) else each for each in array.ravel().tolist()]
        if array.ndim not in (3, 4):
            raise ValueError(
                f"images must be [N, H, W] or [N, H, W, 3], or paths [N], not {array.dtype} {list(array.shape)}"
            )
        return list(array)
    if isinstance(X, (str, bytes)) or not isinstance(X, Sequence):
        raise ValueError(f"images must be an array or a list, not a {type(X).__name__}")
    return X


def _is_text(labels: np.ndarray) -> bool:
    return labels.dtype.kind not in "biuf"


def _new_name(label: Any, taken: Any) -> str:
    """A name for a label, unlike the names of the others."""
    used = set(taken)
    try:
        name = class_name(str(label))
    except EaseError:
        name = ""
    number = 1
    while not name or name in used:
        name, number = f"label {number}", number + 1
    return name
