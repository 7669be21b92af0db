"""A classifier whose method can leave learned images out is calibrated by all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ease import Classifier
from ease.backbone.zoo import EMBEDDED, load_backbone
from ease.errors import EaseError
from ease.methods import find_method, save_model
from ease.storage.model_directory import ModelDirectory
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from tests.app.conftest import EASE, LIGHT, Digits


def empty(path: Path, method: str = "strata", **settings: object) -> Classifier:
    backbone = load_backbone(EMBEDDED, input_size=16)
    engine = Engine(backbone, Transforms(backbone.pixels))
    learner_type = find_method(method)
    settings = {**LIGHT, **settings} if method == "strata" else settings
    learner = learner_type(engine, learner_type.Settings.model_validate(settings))
    directory = ModelDirectory(path)
    save_model(directory, learner, [], augmentation="gentle", seed=1993, next_id=0, history=[])
    return Classifier(directory, engine, learner, directory.manifest())


def test_every_image_counts_and_confidences_are_right_on_average(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model", layers=4)  # as everybody has it
    for some in ("01234", "567"):
        classifier.learn(digits(*some, count=16))
    assert classifier.calibration.images == 8 * 16
    truth = digits(*"01234567", count=20, skip=16)
    answers = {name: classifier.predict(images) for name, images in truth.items()}
    right = np.mean([a.name == name for name, found in answers.items() for a in found])
    sure = np.mean([a.confidences[0] for found in answers.values() for a in found])
    assert sure == pytest.approx(right, abs=0.12)
    known = [a.is_unknown for found in answers.values() for a in found]
    strange = [
        a.is_unknown for images in digits("8", "9", count=20).values() for a in classifier.predict(images)
    ]
    assert np.mean(known) < 0.3  # other people wrote these
    assert np.mean(strange) > 2 * np.mean(known)


def test_three_photos_per_class_are_enough_to_be_calibrated(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model")
    learned = classifier.learn(digits("0", "1", "2", count=3))
    assert learned.held_out == 0
    (answer,) = classifier.predict(digits("1", count=1, skip=5)["1"])
    assert answer.calibrated
    assert answer.unknown is not None
    assert 0 <= answer.unknown <= 1


def test_one_photo_per_class_says_nothing(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model")
    classifier.learn(digits("0", "1", count=1))
    assert classifier.predict(digits("1", count=1, skip=5)["1"])[0].unknown is None


def test_a_single_class_knows_what_is_not_it(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model")
    classifier.learn(digits("0", count=16))
    own, noise = digits("0", count=8, skip=16)["0"], np.random.default_rng(0)
    assert np.mean([a.is_unknown for a in classifier.predict(own)]) < 0.5
    strange = [noise.integers(0, 256, (16, 16, 3), dtype=np.uint8) for _ in range(4)]
    assert all(a.is_unknown for a in classifier.predict(strange))


def test_copies_of_a_photo_prove_nothing(tmp_path: Path, digits: Digits) -> None:
    photos = {name: images * 2 for name, images in digits("0", "1", count=2).items()}
    classifier = empty(tmp_path / "model")
    classifier.learn(photos)
    assert not classifier.calibration.calibrated


def test_it_is_the_same_after_opening_and_follows_a_forgotten_class(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model")
    classifier.learn(digits("0", "1", "2", count=8))
    again = Classifier.open(classifier.path)
    assert again.calibration == classifier.calibration
    assert again.calibration.evidence is not None
    own = again.calibration.evidence.own
    again.forget("1")
    left = Classifier.open(classifier.path).calibration.evidence
    assert left is not None
    assert left.own == (own[0], own[2])


def test_a_calibration_for_other_classes_is_refused(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model")
    classifier.learn(digits("0", "1", count=8))
    manifest = ModelDirectory(classifier.path).manifest()
    assert manifest.calibration is not None
    manifest.calibration["evidence"]["own"] *= 2
    with pytest.raises(EaseError, match="for 4 classes, not 2"):
        Classifier(ModelDirectory(classifier.path), classifier.learner.engine, classifier.learner, manifest)


def test_images_that_trained_an_adapter_are_not_judged_again(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model", adapt="first", epochs=1, rank=4)
    first = classifier.learn(digits("0", "1", "2", count=12))
    assert classifier.calibration.images == first.held_out == 3
    classifier.learn(digits("3", "4", count=12))
    assert classifier.calibration.images == 3 + 24


def test_methods_that_cannot_tell_have_the_held_out_images(tmp_path: Path, digits: Digits) -> None:
    classifier = empty(tmp_path / "model", "ease", **EASE["settings"])
    learned = classifier.learn(digits("0", "1", "2", count=12))
    assert classifier.learner.left_out is None
    assert classifier.calibration.images == learned.held_out == 3
