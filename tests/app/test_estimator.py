"""scikit-learn's habits: its own checks, and its tools with values that are computed by hand beside them."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.isotonic import IsotonicRegression
from sklearn.metrics import get_scorer
from sklearn.model_selection import GridSearchCV, StratifiedKFold, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks

from ease import Classifier, EaseClassifier
from ease.errors import EaseError
from tests.app.conftest import LIGHT, QUICK, Digits, write_folder

frozen = pytest.importorskip("sklearn.frozen", reason="FrozenEstimator came with scikit-learn 1.6")
PLAIN: dict[str, Any] = {"input_size": 16, "augment": "gentle"}
SMALL: dict[str, Any] = {**PLAIN, "settings": LIGHT}


def arrays(digits: Digits, *names: str, count: int = 10, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
    found = digits(*names, count=count, skip=skip)
    images = np.stack([image for own in found.values() for image in own])
    return images, np.repeat([int(name) for name in names], count)


def as_rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


def as_images(rows: np.ndarray) -> np.ndarray:
    side = round((rows.shape[1] / 3) ** 0.5)
    return rows.reshape(-1, side, side, 3)


@pytest.fixture(scope="module")
def fitted(digits: Digits) -> EaseClassifier:
    """Learned in an order that is not sorted, in two steps."""
    estimator = EaseClassifier(**QUICK)
    estimator.fit(*arrays(digits, "4", "1", "7"))
    return estimator.partial_fit(*arrays(digits, "9", "0"))


@pytest.fixture(scope="module")
def unseen(digits: Digits) -> tuple[np.ndarray, np.ndarray]:
    images, labels = arrays(digits, "0", "1", "4", "7", "9", count=8, skip=20)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order], labels[order]


# --- labels and columns ---------------------------------------------------------------------------


def test_classes_are_sorted_and_columns_are_in_their_order(fitted: EaseClassifier, unseen: Any) -> None:
    images, labels = unseen
    assert fitted.classifier_.classes == ["4", "1", "7", "9", "0"]
    assert fitted.classes_.tolist() == [0, 1, 4, 7, 9]
    sure = fitted.predict_proba(images)
    assert sure.shape == (40, 5)
    assert np.abs(sure.sum(axis=1) - 1).max() < 1e-12
    for row, answer in zip(sure, fitted.classifier_.predict(list(images), top_k=5), strict=True):
        for one in answer.classes:
            assert row[fitted.classes_.tolist().index(int(one.name))] == pytest.approx(
                one.confidence, abs=1e-5
            )
    found = fitted.predict(images)
    assert found.dtype == labels.dtype
    assert (found == fitted.classes_[sure.argmax(axis=1)]).all()
    assert fitted.score(images, labels) == np.mean(found == labels)
    assert fitted.score(images, labels) > 0.7


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (np.array([7, 3], np.int8), [3, 7]),
        (np.array([2.0, 1.0], np.float32), [1.0, 2.0]),
        (np.array([True, False]), [False, True]),
        (np.array(["zero", "one"]), ["one", "zero"]),
        (np.array(["zero", "one"], dtype=object), ["one", "zero"]),
        (np.array(["a/b", ""]), ["", "a/b"]),  # not names of classes for the model
        (np.array(["x ", "x"]), ["x", "x "]),  # the same name for the model
    ],
)
def test_labels_of_any_type_keep_it(digits: Digits, labels: np.ndarray, classes: list[Any]) -> None:
    images, numbers = arrays(digits, "0", "1", count=6)
    estimator = EaseClassifier(**SMALL).fit(images, labels[numbers])
    assert estimator.classes_.tolist() == classes
    found = estimator.predict(images)
    assert found.dtype == estimator.classes_.dtype == labels.dtype
    assert np.mean(found == labels[numbers]) > 0.8
    again, more = arrays(digits, "1", "0", count=3, skip=6)
    assert estimator.partial_fit(again, labels[more]).classes_.tolist() == classes
    assert len(estimator.classifier_.classes) == 2


def test_labels_of_another_kind_are_refused_later(digits: Digits) -> None:
    images, numbers = arrays(digits, "0", "1", count=3)
    estimator = EaseClassifier(**SMALL).fit(images, numbers)
    with pytest.raises(ValueError, match="so far are numbers, these are text"):
        estimator.partial_fit(images, numbers.astype(str))
    assert estimator.partial_fit(images, numbers + 0.0).classes_.tolist() == [0.0, 1.0]


def test_arrays_of_paths_are_images(digits: Digits, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", digits("0", "1", count=6))
    paths = sorted(folder.glob("*/*.png"))
    labels = np.array([path.parent.name for path in paths])
    expected = EaseClassifier(**SMALL).fit([str(path) for path in paths], labels).predict_proba(paths)
    for given in (
        np.array([str(path) for path in paths]),
        np.array([str(path) for path in paths], dtype=object),
        np.array(paths, dtype=object),
        np.array([[str(path)] for path in paths]),
    ):
        found = EaseClassifier(**SMALL).fit(given, labels)
        assert np.allclose(found.predict_proba(given), expected, atol=1e-6)
    paths_of_strings = np.array([str(path) for path in paths])
    assert cross_val_score(EaseClassifier(**SMALL), paths_of_strings, labels, cv=2).shape == (2,)


# --- metrics and tools, beside values computed by hand --------------------------------------------


def area_under_curve(scores: np.ndarray, positive: np.ndarray) -> float:
    """The share of pairs in which the positive one has the higher score."""
    pairs = scores[positive][:, None] - scores[~positive][None]
    return float(np.mean((pairs > 0) + 0.5 * (pairs == 0)))


def test_metrics_are_those_of_the_right_columns(fitted: EaseClassifier, unseen: Any) -> None:
    images, labels = unseen
    sure = fitted.predict_proba(images)
    own = np.array([sure[i, fitted.classes_.tolist().index(label)] for i, label in enumerate(labels)])
    areas = [area_under_curve(sure[:, k], labels == label) for k, label in enumerate(fitted.classes_)]
    assert get_scorer("accuracy")(fitted, images, labels) == np.mean(fitted.predict(images) == labels)
    assert get_scorer("roc_auc_ovr")(fitted, images, labels) == pytest.approx(np.mean(areas), abs=1e-9)
    assert np.mean(areas) > 0.9
    assert get_scorer("neg_log_loss")(fitted, images, labels) == pytest.approx(np.log(own).mean(), abs=1e-9)


def test_cross_validation_is_fitting_on_each_fold_also_in_two_processes(digits: Digits) -> None:
    images, labels = arrays(digits, "6", "0", "3", count=8)
    folds = StratifiedKFold(2)
    expected = []
    for learn, test in folds.split(images, labels):
        one = EaseClassifier(**SMALL).fit(images[learn], labels[learn])
        expected.append(np.mean(one.predict(images[test]) == labels[test]))
    assert cross_val_score(EaseClassifier(**SMALL), images, labels, cv=folds).tolist() == expected
    both = cross_val_score(EaseClassifier(**SMALL), images, labels, cv=folds, n_jobs=2)
    assert both.tolist() == expected


def test_grid_search_finds_the_best_mean(digits: Digits) -> None:
    images, labels = arrays(digits, "6", "0", "3", count=8)
    grid = {"method": ["simplecil", "strata"]}
    search = GridSearchCV(EaseClassifier(**PLAIN), grid, cv=2, scoring="neg_log_loss").fit(images, labels)
    means = [
        cross_val_score(
            EaseClassifier(**PLAIN, method=method), images, labels, cv=2, scoring="neg_log_loss"
        ).mean()
        for method in grid["method"]
    ]
    assert search.cv_results_["mean_test_score"] == pytest.approx(means, abs=1e-9)
    assert search.best_params_ == {"method": grid["method"][int(np.argmax(means))]}
    assert search.predict(images).dtype == labels.dtype


def test_calibration_by_scikit_learn_reads_each_column_of_its_class(
    fitted: EaseClassifier, digits: Digits, unseen: Any
) -> None:
    images, labels = arrays(digits, "0", "1", "4", "7", "9", count=8, skip=10)
    calibrated = CalibratedClassifierCV(frozen.FrozenEstimator(fitted), method="isotonic").fit(images, labels)
    given, asked = fitted.predict_proba(images), fitted.predict_proba(unseen[0])
    columns = [
        IsotonicRegression(out_of_bounds="clip").fit(given[:, k], labels == label).predict(asked[:, k])
        for k, label in enumerate(fitted.classes_)
    ]
    sums = np.stack(columns, axis=1)
    expected = sums / sums.sum(axis=1, keepdims=True)
    found = calibrated.predict_proba(unseen[0])
    assert calibrated.classes_.tolist() == [0, 1, 4, 7, 9]
    assert found[sums.sum(axis=1) > 0] == pytest.approx(expected[sums.sum(axis=1) > 0], abs=1e-6)


def test_votes_are_the_mean_of_confidences(digits: Digits) -> None:
    images, labels = arrays(digits, "6", "0", "3", count=8)
    members = [("one", EaseClassifier(**SMALL)), ("two", EaseClassifier(**PLAIN, method="simplecil"))]
    voting = VotingClassifier(members, voting="soft", n_jobs=2).fit(images, labels)
    alone = [clone(member).fit(images, labels).predict_proba(images) for _, member in members]
    assert voting.classes_.tolist() == [0, 3, 6]
    assert voting.predict_proba(images) == pytest.approx(np.mean(alone, axis=0), abs=1e-5)
    assert (voting.predict(images) == np.array([0, 3, 6])[np.mean(alone, axis=0).argmax(axis=1)]).all()


def test_a_pipeline_makes_images_of_rows_of_numbers(digits: Digits) -> None:
    images, labels = arrays(digits, "6", "0", count=8)
    pipeline = make_pipeline(FunctionTransformer(as_images), EaseClassifier(**SMALL))
    found = pipeline.fit(as_rows(images), labels).predict_proba(as_rows(images))
    assert found == pytest.approx(EaseClassifier(**SMALL).fit(images, labels).predict_proba(images), abs=1e-6)
    out_of_fold = cross_val_predict(pipeline, as_rows(images), labels, cv=2, method="predict_proba")
    assert np.mean(out_of_fold.argmax(axis=1) == (labels == 6)) > 0.7


# --- copies ---------------------------------------------------------------------------------------


def _through_pickle(estimator: EaseClassifier, folder: Path) -> EaseClassifier:
    return pickle.loads(pickle.dumps(estimator))  # type: ignore[no-any-return]


def _through_joblib(estimator: EaseClassifier, folder: Path) -> EaseClassifier:
    joblib.dump(estimator, folder / "estimator.joblib")
    return joblib.load(folder / "estimator.joblib")  # type: ignore[no-any-return]


def _through_copy(estimator: EaseClassifier, folder: Path) -> EaseClassifier:
    return copy.deepcopy(estimator)


@pytest.mark.parametrize("through", [_through_pickle, _through_joblib, _through_copy])
def test_a_fitted_estimator_survives_being_copied(
    fitted: EaseClassifier, digits: Digits, unseen: Any, tmp_path: Path, through: Any
) -> None:
    again = through(fitted, tmp_path)
    assert again.classes_.tolist() == fitted.classes_.tolist()
    assert again.get_params() == fitted.get_params()
    assert np.array_equal(again.predict_proba(unseen[0]), fitted.predict_proba(unseen[0]))
    assert again.classifier_.path != fitted.classifier_.path
    again.partial_fit(*arrays(digits, "5"))  # it goes on in a folder of its own
    assert again.classes_.tolist() == [0, 1, 4, 5, 7, 9]
    assert fitted.classifier_.classes == ["4", "1", "7", "9", "0"]
    folder = again.classifier_.path
    del again
    assert not folder.exists()


def test_a_pickle_names_no_class_of_torch_or_of_the_model(fitted: EaseClassifier) -> None:
    """The model is in it as bytes of an archive; what runs on loading is the estimator's own code and numpy's."""
    named = set()

    class Watching(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            named.add(module.split(".")[0])
            return super().find_class(module, name)

    Watching(io.BytesIO(pickle.dumps(fitted))).load()
    assert named <= {"ease", "numpy", "_codecs"}
    assert "ease" in named


def test_an_estimator_without_a_model_is_copied_too() -> None:
    again = pickle.loads(pickle.dumps(EaseClassifier(**SMALL)))
    assert again.get_params()["input_size"] == 16
    assert not hasattr(again, "classifier_")


def test_a_model_is_opened_and_goes_on(digits: Digits, tmp_path: Path) -> None:
    model = Classifier.create(tmp_path / "model", **QUICK, seed=7)
    model.learn(digits("7", "1", count=8))
    estimator = EaseClassifier.open(tmp_path / "model")
    assert estimator.classes_.tolist() == ["1", "7"]
    assert (estimator.random_state, estimator.augment, estimator.input_size) == (7, "gentle", 16)
    images, labels = arrays(digits, "1", "7", "3", count=6, skip=10)
    assert estimator.score(images[:12], labels[:12].astype(str)) > 0.8
    estimator.partial_fit(images, labels.astype(str))
    assert Classifier.open(tmp_path / "model").classes == ["7", "1", "3"]
    assert EaseClassifier.open(tmp_path / "model", dtype=int).classes_.tolist() == [1, 3, 7]
    # A clone learns the same way in a folder of its own, and leaves the model alone.
    scores = cross_val_score(estimator, images, labels.astype(str), cv=2)
    assert scores.shape == (2,)
    assert estimator.classifier_.generation == Classifier.open(tmp_path / "model").generation
    model.refresh()
    model.rename("3", "three")
    with pytest.raises(EaseError, match="cannot be read as int"):
        EaseClassifier.open(tmp_path / "model", dtype=int)
    estimator.classifier_.refresh()
    with pytest.raises(EaseError, match="changed outside of this estimator"):
        estimator.predict(images)


def test_fit_begins_anew_and_partial_fit_goes_on(digits: Digits) -> None:
    estimator = EaseClassifier(**QUICK)
    estimator.partial_fit(*arrays(digits, "0", "1"))
    estimator.partial_fit(*arrays(digits, "1", "2", skip=10))
    assert estimator.classes_.tolist() == [0, 1, 2]
    estimator.fit(*arrays(digits, "5", "6"))
    assert estimator.classes_.tolist() == [5, 6]
    assert not hasattr(clone(estimator), "classifier_")


def test_the_model_directory_may_be_named(digits: Digits, tmp_path: Path) -> None:
    estimator = EaseClassifier(model=tmp_path / "model", **QUICK).fit(*arrays(digits, "0", "1"))
    assert (tmp_path / "model" / "manifest.json").exists()
    with pytest.raises(EaseError, match="already holds a model"):
        estimator.fit(*arrays(digits, "0", "1"))
    assert estimator.predict(arrays(digits, "0")[0]).shape == (10,)  # it is still what it was


# --- refusals, and scikit-learn's own checks ------------------------------------------------------


@pytest.mark.parametrize(
    ("X", "y", "says"),
    [
        (np.zeros((4, 9)), [0, 0, 1, 1], r"\[N, H, W\]"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1], "4 labels"),
        (np.zeros((0, 8, 8), np.uint8), [], "no image"),
        (np.zeros((4, 8, 8), np.uint8), [0.1, 0.2, 0.3, 0.4], "continuous"),
        (np.zeros((4, 8, 8), np.uint8), [0, 1, np.nan, 1], "NaN"),
        (np.zeros((4, 8, 8), np.uint8), None, "requires y"),
        ("photo.jpg", [0], "an array or a list"),
    ],
)
def test_what_is_no_images_is_refused(X: Any, y: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        EaseClassifier(**QUICK).fit(X, y)


def test_before_fit_there_is_nothing_to_predict() -> None:
    with pytest.raises(NotFittedError):
        EaseClassifier().predict(np.zeros((1, 8, 8), np.uint8))


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
def test_checks_of_scikit_learn_that_need_no_data(name: str) -> None:
    check = getattr(estimator_checks, name, None)
    if check is None:
        pytest.skip(f"this version of scikit-learn has no {name}")
    check("EaseClassifier", EaseClassifier())


class OfRows(EaseClassifier):
    """Reads rows of numbers as images of stripes, because scikit-learn's checks have no other data."""

    def fit(self, X: Any, y: Any) -> OfRows:
        return self._on(X, y, super().fit, reset=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> OfRows:
        if not hasattr(self, "classes_"):
            return self.fit(X, y)
        return self._on(X, y, super().partial_fit, reset=False)

    def _on(self, X: Any, y: Any, learn: Any, reset: bool) -> OfRows:
        from sklearn.utils.validation import validate_data

        rows, labels = validate_data(self, X, y, reset=reset)
        learn(self._stripes(rows), labels)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self)
        return super().predict_proba(self._stripes(validate_data(self, X, reset=False)))

    def _stripes(self, rows: np.ndarray) -> np.ndarray:
        grey = np.clip(rows.astype(np.float64) / 20 + 0.5, 0, 1)
        return np.repeat(np.repeat(grey[:, None, :], 8, axis=1), 8, axis=2)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array = True, False
        tags.input_tags.string = tags.no_validation = False
        return tags


FAIL = {
    "check_methods_subset_invariance": "asks for 1e-7; the backbone's fp32 differs by 2e-7 with the size of a batch"
}


@estimator_checks.parametrize_with_checks([OfRows(**SMALL)], expected_failed_checks=lambda _: FAIL)
@pytest.mark.filterwarnings("ignore")
def test_all_checks_of_scikit_learn_on_rows_that_are_drawn_as_images(estimator: Any, check: Any) -> None:
    check(estimator)
