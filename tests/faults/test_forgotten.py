"""What the campaign found about classes: names that were forgotten, and ids that were given twice."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from campaign.injection import KILLED, Injection, in_child, injected

from ease import Classifier
from tests.faults.specification import CREATE, digits, files_with

IMAGES = digits()


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    made = Classifier.create(tmp_path / "model", **CREATE)  # type: ignore[arg-type]
    made.learn({"zebra": IMAGES[:2], "horse": IMAGES[2:8]})
    return made


def test_notes_do_not_keep_the_name_of_a_forgotten_class(model: Classifier) -> None:
    assert any("zebra" in note for note in model.history[0].notes), "it had fewer than 5 images"
    model.forget("zebra")
    assert files_with(model.path, b"zebra") == []
    assert model.history[0].classes == ("horse",)


def test_a_class_is_forgotten_under_the_names_it_had_before(model: Classifier) -> None:
    model.rename("zebra", "quagga")
    assert model.history[0].classes == ("quagga", "horse")
    model.forget("quagga")
    assert files_with(model.path, b"zebra") == files_with(model.path, b"quagga") == []


def test_notes_of_other_acts_stay(model: Classifier) -> None:
    model.learn({"camel": IMAGES[10:12]})
    model.forget("zebra")
    assert any("camel" in note for note in model.history[1].notes)


def test_an_id_of_a_generation_that_was_given_up_is_not_given_again(model: Classifier) -> None:
    before = model.generation
    model.learn({"camel": IMAGES[10:12]})
    assert ids(model)["camel"] == 2
    model.rollback(before)
    Classifier.open(model.path).learn({"goat": IMAGES[12:14]})
    model.refresh()
    assert ids(model)["goat"] == 3
    model.forget("goat")
    model.learn({"sheep": IMAGES[14:16]})
    assert ids(model)["sheep"] == 4


def test_an_id_stays_taken_when_its_generation_is_cleared(model: Classifier) -> None:
    before = model.generation
    model.learn({"camel": IMAGES[10:12], "goat": IMAGES[12:14]})
    model.rollback(before)
    model.forget("zebra")
    model.learn({"sheep": IMAGES[14:16]})
    assert ids(model)["sheep"] == 4


def test_the_history_is_not_cleared_by_a_forget_that_was_killed_before_it_counted(model: Classifier) -> None:
    """Its generation was listed. Going back to it, and then to another one, removed all others."""
    before, number = model.generations(), 0
    while model.generations() == before:  # until it is written, and is not the current one
        number += 1
        assert in_child(partial(forget_struck, model.path, number)) == KILLED
        assert not model.refresh()
    model.rename("horse", "pony")
    after = [*before, model.generation]
    assert model.generations() == after
    assert model.generation > before[-1] + 1, "the number stays taken"
    for generation in reversed(after):
        model.rollback(generation)
        assert model.generations() == after


def forget_struck(path: Path, number: int) -> None:
    with injected(Injection(path, "rename", number, "kill")):
        Classifier.open(path).forget("zebra")


def ids(model: Classifier) -> dict[str, int]:
    from ease.storage.contents import read_json

    return {entry["name"]: entry["id"] for entry in read_json(model.path / "manifest.json")["classes"]}
