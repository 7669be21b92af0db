"""A model directory of format 1, written once and committed: every later version must open it."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from ease import Classifier
from ease.storage.model_directory import ModelDirectory

FORMAT_1 = Path(__file__).parent / "format-1"


@pytest.fixture
def old(tmp_path: Path) -> Classifier:
    shutil.copytree(FORMAT_1 / "model", tmp_path / "model")
    return Classifier.open(tmp_path / "model", precision="32-true")


def test_it_scores_as_it_did(old: Classifier) -> None:
    with np.load(FORMAT_1 / "expected.npz") as expected:
        images, logits, classes = (expected[name] for name in ("images", "logits", "classes"))
    assert old.classes == classes.tolist() == ["0", "1", "2", "3", "four", "5"]
    exact = Classifier.open(old.path, precision="32-true")  # what its version computed in
    assert np.allclose(exact.logits(list(images)).numpy(), logits, atol=1e-5)
    rough = Classifier.open(old.path, precision="bf16-mixed").logits(list(images)).numpy()
    assert (rough.argmax(1) == logits.argmax(1)).mean() >= 0.9
    assert old.facts.learned_in == "32-true"
    assert old.predict(list(images))[0].calibrated


def test_its_past_is_there(old: Classifier) -> None:
    assert [entry.classes for entry in old.history] == [("0", "1", "2"), ("3", "4"), ("5",)]
    assert old.history[2].extended == ("1",)
    assert old.thumbnail("four") is not None
    for number in old.generations():
        ModelDirectory(old.path).verify(number)
    old.rollback(2)
    assert old.classes == ["0", "1", "2"]


def test_it_can_be_changed(old: Classifier) -> None:
    images = [np.full((8, 8, 3), value, np.uint8) for value in (0, 20, 40, 200, 220, 240)]
    old.learn({"dark": images[:3], "bright": images[3:]})
    old.forget("four")
    again = Classifier.open(old.path)
    assert again.classes == ["0", "1", "2", "3", "5", "dark", "bright"]
    assert again.predict(images[4])[0].name == "bright"


def test_names_that_no_class_gets_any_more_can_be_read_and_mended(
    old: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("ease.app.stored_model.class_name", str)
        old.rename("four", "fo\u00adur")
        old.rename("5", "\u3164")
    again = Classifier.open(old.path)
    assert again.classes == ["0", "1", "2", "3", "fo\u00adur", "\u3164"]
    again.rename("fo\u00adur", "four")
    again.rename("\u3164", "5")
    assert Classifier.open(old.path).classes == ["0", "1", "2", "3", "four", "5"]
