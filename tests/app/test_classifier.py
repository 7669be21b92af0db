"""A classifier that grows: classes over time, in one directory, without old images."""

from __future__ import annotations

import io
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from ease import Classifier
from ease.errors import EaseError
from ease.methods.ease import Ease
from ease.methods.strata import Strata
from ease.storage.model_directory import ModelDirectory
from tests.app.conftest import EASE, QUICK, Digits, write_folder


def learner_of(classifier: Classifier) -> Ease:
    learner = classifier._learner
    assert isinstance(learner, Ease)
    return learner


def test_it_learns_from_folders_and_names_what_it_sees(tmp_path: Path, digits: Digits) -> None:
    folder = write_folder(tmp_path / "march", digits("0", "1", "2", count=12))
    classifier = Classifier.create(tmp_path / "model", **QUICK)
    learned = classifier.learn(folder)
    assert (learned.classes, learned.images, learned.held_out) == (("0", "1", "2"), 36, 3)
    assert learned.accuracy is not None
    fresh = digits("0", "1", "2", count=6, skip=20)
    right = [p.name == name for name, images in fresh.items() for p in classifier.predict(images)]
    assert np.mean(right) > 0.6
    (one,) = classifier.predict(folder / "1" / "000.png", top_k=2)
    assert len(one.names) == 2
    assert one.calibrated
    (everything,) = classifier.predict(folder / "1" / "000.png", top_k=9)
    assert sum(everything.confidences) == pytest.approx(1)
    assert list(everything.confidences) == sorted(everything.confidences, reverse=True)


@pytest.mark.parametrize("making", [QUICK, EASE], ids=["strata", "ease"])
def test_one_class_at_a_time_and_a_handful_of_images(
    making: dict[str, Any], tmp_path: Path, digits: Digits
) -> None:
    classifier = Classifier.create(tmp_path / "model", **making)
    classifier.learn(digits("0", "1", "2", "3", "4", count=12))
    classifier.learn(digits("5", count=12))
    few = classifier.learn(digits("6", count=3))
    assert (few.held_out, few.accuracy) == (0, None)
    assert classifier.classes == list("0123456")
    if making is EASE:
        assert len(learner_of(classifier).tunings) == 1  # neither could have taught an adapter anything
    seen = [p.name for p in classifier.predict(digits("6", count=6, skip=20)["6"])]
    assert "6" in seen
    assert [entry.classes for entry in classifier.history] == [tuple("01234"), ("5",), ("6",)]


def test_a_single_class_is_a_beginning(tmp_path: Path, digits: Digits) -> None:
    classifier = Classifier.create(tmp_path / "model", **QUICK)
    classifier.learn(digits("0", count=4))
    (one,) = classifier.predict(digits("0", count=1)["0"])
    assert (one.names, one.confidences, one.calibrated, one.is_unknown) == (("0",), (1.0,), True, False)
    paper = Classifier.create(tmp_path / "paper", **EASE)
    paper.learn(digits("0", count=4))
    (one,) = paper.predict(digits("0", count=1)["0"])
    assert (one.names, one.confidences, one.unknown, one.calibrated) == (("0",), (1.0,), None, False)


def test_opened_again_it_is_the_same(grown: Classifier, digits: Digits) -> None:
    images = [image for own in digits("0", "5", "7", count=3, skip=20).values() for image in own]
    again = Classifier.open(grown.path)
    assert torch.equal(again.logits(images), grown.logits(images))
    assert again.predict(images) == grown.predict(images)
    assert (again.classes, again.history, again.generation) == (
        grown.classes,
        grown.history,
        grown.generation,
    )


def test_a_known_class_is_refused_unless_it_is_to_be_extended(grown: Classifier, digits: Digits) -> None:
    before, generation = grown.logits(digits("0", count=2)["0"]), grown.generation
    with pytest.raises(EaseError, match="'3' is known already"):
        grown.learn(digits("3", "8"))
    assert grown.generation == generation
    assert grown.classes == list("01234567")
    assert torch.equal(grown.logits(digits("0", count=2)["0"]), before)
    learned = grown.learn(digits("3", "8", count=6, skip=12), extend=True)
    assert (learned.classes, learned.extended) == (("8",), ("3",))
    assert grown.classes == list("012345678")
    manifest = ModelDirectory(grown.path).manifest()
    assert {c.name: c.count for c in manifest.classes}["3"] == 12 + 6


def test_extending_equals_having_seen_all_images_in_the_first_place(tmp_path: Path, digits: Digits) -> None:
    settings = {**EASE, "settings": {"adapt": "never"}}  # one subspace that no training shapes
    parts, whole = (Classifier.create(tmp_path / name, **settings) for name in ("parts", "whole"))
    parts.learn(digits("0", "1", count=4))
    parts.learn(digits("0", count=5, skip=4), extend=True)
    whole.learn({**digits("0", count=4), **digits("1", count=4)})
    one, other = learner_of(parts).bank, learner_of(whole).bank
    assert torch.equal(one.cells[0, 0][1], other.cells[0, 0][1])
    images = digits("0", count=9)["0"]
    engine = parts._engine
    features = engine.features(whole_set(images), [None])[0]
    assert torch.allclose(one.cells[0, 0][0], features.mean(dim=0), atol=1e-6)


def whole_set(images: list[np.ndarray]):  # type: ignore[no-untyped-def]
    from ease.streams.intake import as_image_set

    return as_image_set(images)


def test_a_forgotten_class_is_gone_and_others_keep_their_real_prototypes(
    grown_ease: Classifier, digits: Digits
) -> None:
    grown = grown_ease
    bank = learner_of(grown).bank
    real = {key: cell.clone() for key, cell in bank.cells.items()}
    done = grown.forget("6")
    assert 0 <= done.moved < 2
    assert grown.classes == list("0123457")
    for (task, space), cell in learner_of(grown).bank.cells.items():
        assert torch.equal(cell, real[task, space] if task == 0 else real[task, space][[0, 2]])
    again = Classifier.open(grown.path)
    assert again.classes == grown.classes
    assert again.generations() == [again.generation]
    assert all("6" not in entry.classes for entry in again.history)
    stored = b"".join(p.read_bytes() for p in grown.path.rglob("*.safetensors"))
    assert real[1, 1][1].numpy().tobytes() not in stored
    images = digits("5", "7", count=3, skip=20)
    assert torch.equal(again.logits(images["5"]), grown.logits(images["5"]))
    grown.learn(digits("6", count=6, skip=6))  # it may come again, as a new class
    ids = [c.id for c in ModelDirectory(grown.path).manifest().classes]
    assert len(set(ids)) == len(ids)
    assert 6 not in ids


def test_a_whole_task_may_be_forgotten(grown: Classifier, digits: Digits) -> None:
    for name in "567":
        grown.forget(name)
    assert grown.classes == list("01234")
    assert grown.logits(digits("0", count=2)["0"]).isfinite().all()
    grown.learn(digits("8", "9", count=8))
    assert Classifier.open(grown.path).predict(digits("9", count=1, skip=20)["9"])


def test_rename_and_rollback(grown: Classifier, digits: Digits) -> None:
    images = digits("0", count=2, skip=20)["0"]
    before, then = grown.logits(images), grown.generation
    grown.rename("0", "zero")
    assert grown.classes[0] == "zero"
    assert torch.equal(grown.logits(images), before)
    with pytest.raises(EaseError, match="there is a class 'zero' already"):
        grown.rename("1", "zero")
    with pytest.raises(EaseError, match="did you mean 'zero'"):
        grown.rename("zerro", "one")
    grown.rollback(then)
    assert grown.classes[0] == "0"
    first = grown.generations()[1]
    grown.rollback(first)
    assert grown.classes == list("01234")
    assert grown.logits(images).shape == (2, 5)
    grown.rollback(then)
    assert torch.equal(grown.logits(images), before)


def test_a_failure_leaves_the_model_as_it_was(
    grown: Classifier, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = digits("0", count=2)["0"]
    before, files = grown.logits(images), sorted(p.name for p in grown.path.rglob("*"))

    def full_disk(*args: object, **kwargs: object) -> int:
        raise EaseError("the disk is full")

    monkeypatch.setattr("ease.app.stored_model.save_model", full_disk)
    with pytest.raises(EaseError, match="disk is full"):
        grown.learn(digits("8", "9"))
    assert grown.classes == list("01234567")
    assert torch.equal(grown.logits(images), before)
    assert sorted(p.name for p in grown.path.rglob("*")) == files


@pytest.mark.parametrize("method", ["strata", "ease"])
@pytest.mark.parametrize("accident", [KeyboardInterrupt, EaseError("diverged"), MemoryError], ids=str)
def test_a_model_is_on_disk_once_it_has_learned_and_not_before(
    method: str, accident: Any, tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deep" / "model"
    classifier = Classifier.create(path, write=False, **(EASE if method == "ease" else QUICK))
    assert (classifier.classes, classifier.generations()) == ([], [])
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "_conclude", lambda *_: (_ for _ in ()).throw(accident))
        with pytest.raises(accident if isinstance(accident, type) else type(accident)):
            classifier.learn(digits("0", "1", count=6))
    assert not path.parent.exists()
    assert classifier.classes == []
    assert classifier.learn(digits("0", "2", count=6), thumbnails=True).generation == 1
    assert Classifier.open(path).classes == classifier.classes == ["0", "2"]


def test_a_killed_first_learning_leaves_nothing(tmp_path: Path, digits: Digits) -> None:
    child = os.fork()
    if child == 0:
        try:
            classifier = Classifier.create(tmp_path / "model", write=False, **QUICK)
            classifier._conclude = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
            classifier.learn(digits("0", "1", count=6))
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_of_two_first_learnings_the_second_is_refused(tmp_path: Path, digits: Digits) -> None:
    first, second = (Classifier.create(tmp_path / "model", write=False, **QUICK) for _ in range(2))
    first.learn(digits("0", "1", count=6))
    with pytest.raises(EaseError, match="already holds a model"):
        second.learn(digits("2", "3", count=6))
    assert Classifier.open(tmp_path / "model").classes == ["0", "1"]
    assert second.classes == []


def test_a_second_writer_gets_one_clear_line(grown: Classifier, digits: Digits) -> None:
    with ModelDirectory(grown.path).writing(), pytest.raises(EaseError, match="another process is writing"):
        grown.learn(digits("8", "9"))


def test_what_another_process_wrote_is_not_overwritten(grown: Classifier, digits: Digits) -> None:
    other = Classifier.open(grown.path)
    other.learn(digits("8", "9"))
    assert grown.refresh()
    assert not grown.refresh()
    assert grown.classes == other.classes
    third = Classifier.open(grown.path)
    grown.rename("8", "eight")
    third.rename("9", "nine")  # it looks before it writes
    assert Classifier.open(grown.path).classes[-2:] == ["eight", "nine"]


def test_no_image_is_kept(grown: Classifier, digits: Digits) -> None:
    manifest = ModelDirectory(grown.path).manifest()
    kinds = {name.split("/")[0] for name in manifest.files}
    assert kinds == {"prototypes", "learner"}
    stored = b"".join(p.read_bytes() for p in grown.path.rglob("*") if p.is_file())
    for image in digits("0", "5", count=12)["0"]:
        assert image.tobytes() not in stored


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"augment": "wild"}, "unknown augmentation"),
        ({"backbone": "resnet50"}, "resnet50"),
        ({"settings": {"lajers": 1}}, "did you mean 'layers'"),
        ({"settings": {"alpha": 1}}, "unknown setting of method 'strata' 'alpha'"),
        ({"settings": {"method": "ease"}}, "choose the method with --method"),
        ({"settings": {"layers": 0}}, "layers"),
        ({"method": "starta"}, "did you mean 'strata'"),
        ({"method": "icarl"}, "exemplar-free method"),
    ],
)
def test_wrong_choices_write_nothing(tmp_path: Path, wrong: dict[str, object], says: str) -> None:
    with pytest.raises(EaseError, match=says):
        Classifier.create(tmp_path / "model", **{**QUICK, **wrong})
    assert not (tmp_path / "model").exists()


def test_where_a_model_may_be_made_and_opened(grown: Classifier, tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="already holds a model"):
        Classifier.create(grown.path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("important")
    with pytest.raises(EaseError, match="is not empty"):
        Classifier.create(tmp_path / "full")
    with pytest.raises(EaseError, match=r"no model in .*nowhere"):
        Classifier.open(tmp_path / "nowhere")
    empty = Classifier.create(tmp_path / "empty", **QUICK)
    with pytest.raises(EaseError, match="knows no class yet"):
        empty.predict(np.zeros((8, 8, 3), np.uint8))
    with pytest.raises(EaseError, match="top_k"):
        grown.predict(np.zeros((8, 8, 3), np.uint8), top_k=0)


def test_pictures_are_kept_only_when_asked_for_and_go_with_their_class(
    tmp_path: Path, digits: Digits
) -> None:
    classifier = Classifier.create(tmp_path / "model", **QUICK)
    classifier.learn(digits("0", "1", count=6))
    assert classifier.thumbnail("0") is None
    classifier.learn(digits("2", "3", count=6), thumbnails=True)
    manifest = ModelDirectory(classifier.path).manifest()
    assert manifest.kept_images == {"2": "thumbnails/0002", "3": "thumbnails/0003"}
    picture = classifier.thumbnail("3")
    assert picture is not None
    assert Image.open(io.BytesIO(picture)).format == "JPEG"
    classifier.learn(digits("4", "5", count=6))
    again = Classifier.open(classifier.path)
    assert again.thumbnail("3") == picture
    again.forget("3")
    assert again.thumbnail("2") is not None
    assert [p.name for p in (classifier.path / "thumbnails").glob("*.safetensors")] == ["0002.safetensors"]


def test_a_budget_is_for_predictions_and_changes_nothing_else(
    grown_ease: Classifier, tmp_path: Path, digits: Digits
) -> None:
    grown = grown_ease
    shutil.copytree(grown.path, tmp_path / "twin")
    exact_model, limited = Classifier.open(grown.path), Classifier.open(tmp_path / "twin", budget=1)
    images = digits("0", "5", count=6, skip=20)
    several = [image for each in images.values() for image in each]
    exact = exact_model.logits(several)
    assert not torch.equal(limited.logits(several), exact)
    assert torch.equal(Classifier.open(grown.path, budget=2).logits(several), exact)
    for classifier in (exact_model, limited):
        classifier.learn(digits("8", "9", count=12))
    assert limited.predictor.budget == 1
    assert not torch.equal(limited.logits(several), exact_model.logits(several))
    assert torch.equal(Classifier.open(limited.path).logits(several), exact_model.logits(several))
    first, second = (ModelDirectory(c.path).manifest() for c in (exact_model, limited))
    for part in ("calibration", "passes_per_image", "settings", "classes"):
        assert getattr(first, part) == getattr(second, part)
    assert limited.reopened().logits(several).shape == (12, 10)
    with pytest.raises(EaseError, match="budget of 0"):
        Classifier.open(grown.path, budget=0)


def test_without_asking_for_a_method_it_is_one_pass_and_nothing_is_trained(grown: Classifier) -> None:
    assert isinstance(grown.learner, Strata)
    assert grown.learner.passes_per_image() == 1
    assert sum(grown.learner.costs().trained) == 0


def test_held_out_photos_are_learned_from_once_they_were_measured_on(tmp_path: Path, digits: Digits) -> None:
    photos = digits("0", "1", "2", count=12)
    classifier = Classifier.create(tmp_path / "model", **QUICK)
    learned = classifier.learn(photos)
    assert (learned.images, learned.held_out) == (36, 3)
    assert isinstance(classifier.learner, Strata)
    assert classifier.learner.sums.counts.tolist() == [12, 12, 12]
    features = classifier._engine.features(
        whole_set(photos["1"]), [None], reading=classifier.learner.reading
    )[0]
    assert torch.allclose(classifier.learner.sums.means[1].float(), features.mean(dim=0), atol=1e-5)
    assert [c.count for c in ModelDirectory(classifier.path).manifest().classes] == [12, 12, 12]


def test_a_new_model_can_take_more_time_and_says_what_it_measured(tmp_path: Path, digits: Digits) -> None:
    classifier = Classifier.create(tmp_path / "model", **QUICK)
    assert classifier.tunable
    learned = classifier.learn(digits("0", "1", "2", count=12), tune=True)
    assert any("held-out images of the first task" in note for note in learned.notes)
    assert sum(classifier.learner.costs().trained) > 0
    assert not classifier.tunable
    again = Classifier.open(classifier.path)
    assert again.learner.settings.adapt == "auto"
    trained = again.learner.costs().trained
    assert again.learn(digits("3", "4"), tune=True).classes == ("3", "4")  # the same line works every month
    assert again.learner.costs().trained == [*trained, 0]
    plain = Classifier.create(tmp_path / "plain", **QUICK)
    plain.learn(digits("0", "1"))
    with pytest.raises(EaseError, match="has learned already"):
        plain.learn(digits("3", "4"), tune=True)


def test_what_has_nothing_to_tune_says_so_and_writes_nothing(tmp_path: Path, digits: Digits) -> None:
    classifier = Classifier.create(tmp_path / "model", **EASE)
    assert not classifier.tunable
    with pytest.raises(EaseError, match="'ease' has nothing to tune"):
        classifier.learn(digits("0", "1"), tune=True)
    assert classifier.classes == []


@pytest.mark.parametrize("method", ["simplecil", "ranpac", "l2p"])
def test_any_method_that_keeps_no_image_can_be_chosen(method: str, tmp_path: Path, digits: Digits) -> None:
    settings = {"projection": 500} if method == "ranpac" else {}  # of 10,000, most of the time
    making = {"input_size": 16, "augment": "gentle", "method": method, "settings": settings}
    classifier = Classifier.create(tmp_path / "model", **making)  # type: ignore[arg-type]
    classifier.learn(digits("0", "1", count=6))
    classifier.learn(digits("2", "3", count=6))
    again = Classifier.open(classifier.path)
    assert again.learner.name == method
    assert len(again.predict(digits("2", count=1)["2"])[0].names) == 4


def test_a_forgotten_class_is_in_no_file_of_a_model_that_keeps_a_covariance(
    grown: Classifier, digits: Digits
) -> None:
    assert isinstance(grown.learner, Strata)
    mean = grown.learner.sums.means[6].float()
    assert mean.numpy().tobytes() in b"".join(p.read_bytes() for p in grown.path.rglob("*.safetensors"))
    done = grown.forget("6")
    assert "covariance" in done.kept
    assert mean.numpy().tobytes() not in b"".join(p.read_bytes() for p in grown.path.rglob("*.safetensors"))
    again = Classifier.open(grown.path)
    images = digits("5", "7", count=3, skip=20)["7"]
    assert torch.equal(again.logits(images), grown.logits(images))
    assert "6" not in again.predict(images[0])[0].names
