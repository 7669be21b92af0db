"""scikit-learn's habits. Of its own checks, those that say nothing about two-dimensional numbers are run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks

from ease import EaseClassifier
from ease.errors import EaseError
from tests.app.conftest import QUICK, Digits

CHECKS = [
    "check_estimator_cloneable",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_do_not_raise_errors_in_init_or_set_param",
    "check_mixin_order",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
]


@pytest.mark.parametrize("name", CHECKS)
def test_checks_of_scikit_learn(name: str) -> None:
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip(f"this version of scikit-learn has no {name}")
    check("EaseClassifier", EaseClassifier())


def arrays(digits: Digits, *names: str, count: int = 10, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    found = digits(*names, count=count, skip=skip)
    images = np.stack([image for own in found.values() for image in own])
    return images, np.repeat([int(name) for name in names], count)


@pytest.fixture(scope="module")
def fitted(digits: Digits) -> EaseClassifier:
    estimator = EaseClassifier(**QUICK)
    estimator.fit(*arrays(digits, "1", "0", "4"))
    return estimator.partial_fit(*arrays(digits, "7", "9"))


def test_labels_keep_their_type_and_columns_their_class(fitted: EaseClassifier, digits: Digits) -> None:
    images, labels = arrays(digits, "0", "7", "9", count=6, skip=20)
    assert fitted.classes_.tolist() == [1, 0, 4, 7, 9]  # as they came
    found, sure = fitted.predict(images), fitted.predict_proba(images)
    assert found.dtype == labels.dtype
    assert sure.shape == (18, 5)
    assert np.allclose(sure.sum(axis=1), 1)
    assert (fitted.classes_[sure.argmax(axis=1)] == found).all()
    assert fitted.score(images, labels) > 0.5


def test_fit_begins_anew_and_partial_fit_goes_on(digits: Digits) -> None:
    estimator = EaseClassifier(**QUICK)
    estimator.partial_fit(*arrays(digits, "0", "1"))
    estimator.partial_fit(*arrays(digits, "1", "2", skip=10))
    assert estimator.classes_.tolist() == [0, 1, 2]
    estimator.fit(*arrays(digits, "5", "6"))
    assert estimator.classes_.tolist() == [5, 6]
    assert not hasattr(clone(estimator), "classifier_")


def test_text_labels_grey_images_and_cross_validation(digits: Digits) -> None:
    images, labels = arrays(digits, "0", "1")
    grey, names = images[..., 0], np.array(["zero", "one"])[labels]
    scores = cross_val_score(EaseClassifier(**QUICK), grey, names, cv=2)
    assert scores.mean() > 0.6


def test_the_model_directory_may_be_named(digits: Digits, tmp_path: Path) -> None:
    estimator = EaseClassifier(model=tmp_path / "model", **QUICK).fit(*arrays(digits, "0", "1"))
    assert (tmp_path / "model" / "manifest.json").exists()
    with pytest.raises(EaseError, match="already holds a model"):
        estimator.fit(*arrays(digits, "0", "1"))


@pytest.mark.parametrize(
    ("X", "y", "says"),
    [
        (np.zeros((4, 9)), [0, 0, 1, 1], r"\[N, H, W\]"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1], "4 labels"),
        (np.zeros((0, 8, 8), np.uint8), [], "no image"),
    ],
)
def test_what_is_no_images_is_refused(X: Any, y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EaseClassifier(**QUICK).fit(X, y)


def test_before_fit_there_is_nothing_to_predict() -> None:
    with pytest.raises(NotFittedError):
        EaseClassifier().predict(np.zeros((1, 8, 8), np.uint8))
