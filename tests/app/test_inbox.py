"""The review inbox: what people say about answers is kept, looked up, learned, and follows the model."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from PIL import Image

from ease import Classifier
from ease.app import classifier as classifier_module
from ease.app import inbox as inbox_module
from ease.app import inbox_folder, outcomes
from ease.app.inbox import Inbox
from ease.app.inbox_folder import InboxFullError
from ease.app.inbox_photos import Known
from ease.app.names import LikeNameError, alike_name, similar_names
from ease.app.prediction import ClassConfidence, Prediction
from ease.app.unsure import Groups, groupable, is_unsure, look_alikes
from ease.errors import EaseError
from ease.streams.images import content_hash
from ease.streams.intake import LabelledImages
from tests.app.conftest import Digits, refused
from tests.app.serving import png
from tests.faults.specification import files_with

SMALL: dict[str, Any] = {"input_size": 16, "augment": "gentle", "settings": {"layers": 2}}


class Later(datetime):
    """A clock that is an hour ahead."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + timedelta(hours=1)


@pytest.fixture
def model(tmp_path: Path, digits: Digits) -> Classifier:
    """Five digits."""
    made = Classifier.create(tmp_path / "model", **SMALL)
    made.learn(digits("0", "1", "2", "3", "4", count=10))
    return made


@pytest.fixture
def photo(digits: Digits) -> np.ndarray:
    """A five, which the model does not know."""
    return digits("5", count=1)["5"][0]


# --- correcting -----------------------------------------------------------------------------------


def test_a_model_has_no_inbox_until_somebody_asks_for_one(model: Classifier) -> None:
    assert not model.inbox.on
    assert not model.inbox.path.exists()
    assert model.inbox.photos() == []
    assert model.predict(np.zeros((8, 8, 3), np.uint8))[0].corrected is False


def test_a_corrected_photo_is_answered_with_that_name_at_once_and_after_learning(
    model: Classifier, photo: np.ndarray
) -> None:
    wrong = model.predict(photo)[0]
    name = next(each for each in model.classes if each != wrong.name)
    done = model.correct(photo, name)
    assert (done.known, done.confirmed) == (True, False)
    for _ in range(2):
        answer = model.predict(photo, top_k=3)[0]
        assert (answer.name, answer.confidence, answer.corrected) == (name, 1.0, True)
        assert answer.confidences[1:] == (0.0, 0.0)
        assert not answer.is_unknown
        if model.inbox.photos():
            model.learn_inbox()
    assert len(model.inbox) == 0
    assert Classifier.open(model.path).predict(photo)[0].name == name


def test_learning_moves_the_class_itself_not_only_the_answer_for_that_photo(
    model: Classifier, photo: np.ndarray
) -> None:
    other = photo.copy()
    other[0, 0] ^= 1  # another hash
    name = model.predict(photo)[0].names[-1]
    position = model.classes.index(name)
    before = float(model.logits([other])[0, position])
    model.correct(photo, name)
    assert float(model.logits([other])[0, position]) == before
    model.learn_inbox()
    assert not model.predict(other)[0].corrected
    assert float(model.logits([other])[0, position]) > before + 0.05


def test_a_new_class_is_learned_from_the_inbox(model: Classifier, digits: Digits) -> None:
    fives = digits("5", count=6)["5"]
    for five in fives:
        assert model.correct(five, "five").known is False
    learned = model.learn_inbox()
    assert (learned.classes, learned.images) == (("five",), 6)
    rest = digits("5", count=6, skip=8)["5"]
    assert [answer.name for answer in model.predict(rest)].count("five") >= 4


def test_files_and_bytes_and_pixels_can_be_corrected(
    model: Classifier, photo: np.ndarray, tmp_path: Path
) -> None:
    Image.fromarray(photo).save(tmp_path / "five.png")
    name = model.predict(photo)[0].names[-1]
    first = model.correct(tmp_path / "five.png", name)
    again = model.correct((tmp_path / "five.png").read_bytes(), name)
    assert (first.id, again.confirmed) == (again.id, True)
    assert model.correct(photo, name).id != first.id  # pixels have a hash of their own
    kept = model.inbox.photos()
    assert kept[0].file == "five.png"
    assert kept[0].path.read_bytes() == (tmp_path / "five.png").read_bytes()
    assert model.learn_inbox().images == 2


def test_a_name_that_was_the_answer_already_is_counted_and_not_kept(
    model: Classifier, digits: Digits
) -> None:
    sure = digits("0", count=1)["0"][0]
    assert model.predict(sure)[0].name == "0"
    done = model.correct(sure, "0")
    assert (done.id, done.confirmed) == (None, True)
    assert len(model.inbox) == 0
    assert (model.inbox.outcomes().right, model.inbox.outcomes().wrong) == (1, 0)


def test_a_photo_is_kept_once_and_its_name_can_be_changed(model: Classifier, photo: np.ndarray) -> None:
    names = model.predict(photo)[0].names
    first, second = model.correct(photo, names[-1]), model.correct(photo, names[-2])
    assert first.id == second.id
    assert model.predict(photo)[0].name == names[-2]
    assert model.inbox.outcomes().count == 1, "the second answer was a person's"


def test_a_damaged_photo_and_a_wrong_name_leave_nothing(model: Classifier, photo: np.ndarray) -> None:
    for image, name in ((b"no image", "0"), (photo, "a/b"), (photo, "")):
        with pytest.raises(EaseError):
            model.correct(image, name)
    assert not model.inbox.on


def test_an_empty_model_takes_corrections(tmp_path: Path, photo: np.ndarray) -> None:
    model = Classifier.create(tmp_path / "model", **SMALL)
    model.correct(photo, "five")
    with pytest.raises(EaseError, match="cannot be read"):
        model.correct(b"no image", "five")
    model.correct(255 - photo, "evif")
    assert model.learn_inbox().classes == ("five", "evif")


@pytest.mark.parametrize("name", ["Zebra", " ze bra", "ZEBRA", "ｚｅｂｒａ"])
def test_a_name_like_another_must_be_confirmed(model: Classifier, photo: np.ndarray, name: str) -> None:
    model.rename("0", "zebra")
    with pytest.raises(LikeNameError, match="very like 'zebra'"):
        model.correct(photo, name)
    assert not model.inbox.on
    assert model.correct(photo, name, confirm=True).known is False


def test_similar_names_are_suggested_not_refused(model: Classifier, photo: np.ndarray) -> None:
    model.rename("0", "zebra")
    assert model.correct(photo, "zebras").similar == ("zebra",)
    assert similar_names("d1", ["d0"]) == ()
    assert alike_name("cafe\u0301", ["caf\u00e9", "cafe"]) == "caf\u00e9"


# --- undoing --------------------------------------------------------------------------------------


def test_the_last_correction_can_be_taken_back(model: Classifier, digits: Digits) -> None:
    one, two = digits("5", count=2)["5"]
    for image in (one, two):
        model.correct(image, "five")
    count = model.inbox.outcomes().count
    taken = model.inbox.undo()
    assert taken.digest != model.inbox.photos()[0].digest
    assert len(model.inbox) == 1
    assert model.inbox.outcomes().count <= count
    model.inbox.undo()
    with pytest.raises(EaseError, match="no correction to take back"):
        model.inbox.undo()


def test_a_name_that_is_taken_back_leaves_an_unsure_photo(model: Classifier, photo: np.ndarray) -> None:
    answer = model.predict(photo)[0]
    number = str(model.correct(photo, answer.names[-1]).id)
    before = model.inbox.outcomes().wrong
    taken = model.inbox.rename(number, None)
    assert (taken.state, taken.name) == ("unsure", None)
    assert model.inbox.outcomes().wrong == before - 1
    assert model.predict(photo)[0].corrected is False
    with pytest.raises(EaseError, match="nothing to learn"):
        model.learn_inbox()
    assert model.inbox.rename(number, "five").state == "named"
    assert model.inbox.undo().state == "named"
    assert model.inbox.photo(number).state == "unsure"


def test_photos_are_discarded_and_cleared(model: Classifier, digits: Digits) -> None:
    ids = [model.correct(image, "five").id for image in digits("5", count=3)["5"]]
    model.inbox.discard(str(ids[0]))
    assert [photo.id for photo in model.inbox.photos()] == ids[1:]
    with pytest.raises(EaseError, match="there is no photo"):
        model.inbox.discard(str(ids[0]))
    assert model.inbox.clear() == 2
    assert list(model.inbox.path.glob("*.photo")) == []


# --- bounds ---------------------------------------------------------------------------------------


def answer(confidence: float = 0.3, unknown: float = 0.9) -> Prediction:
    return Prediction(
        classes=(ClassConfidence(name="0", confidence=confidence),), unknown=unknown, calibrated=True
    )


def test_a_full_inbox_refuses_corrections_in_one_line_after_unsure_photos_gave_way(
    model: Classifier,
) -> None:
    known = model.known
    inbox = Inbox(model.path, most_images=3, most_bytes=1000)
    inbox.open()

    def judge(content: bytes, name: str = "x") -> Any:
        return inbox.judge(content, content_hash(content), name, None, known)

    assert inbox.collect(b"u", content_hash(b"u"), answer(), known, per_day=9)
    for content in (b"a", b"b"):
        judge(content)
    assert inbox.collect(b"v", content_hash(b"v"), answer(), known, per_day=9) is None, "it is full"
    judge(b"c")
    assert [photo.state for photo in inbox.photos()] == ["corrected"] * 3
    with pytest.raises(InboxFullError, match="the inbox is full"):
        judge(b"d")
    inbox.clear()
    with pytest.raises(InboxFullError):
        judge(bytes(1001))
    judge(bytes(1000))
    assert inbox.total_bytes == 1000


def test_unsure_photos_are_bounded_per_utc_day_and_kept_once(
    model: Classifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, inbox = model.known, model.inbox
    inbox.open()

    def collect(content: bytes) -> str | None:
        return inbox.collect(content, content_hash(content), answer(), known, per_day=2)

    first = collect(b"a")
    assert first is not None
    assert collect(b"a") is None
    assert collect(b"b") is not None
    inbox.discard(first)
    assert collect(b"c") is None, "two were collected today"
    assert Inbox(model.path).collected_today() == 2
    for module in (outcomes, inbox_module):
        monkeypatch.setattr(module, "today", lambda: "2126-01-01")
    assert collect(b"a") is None, "it was discarded by a person"
    assert collect(b"c") is not None


def test_only_calibrated_answers_can_be_unsure() -> None:
    assert is_unsure(answer(0.3, 0.1))
    assert is_unsure(answer(0.99, 0.45))
    assert not is_unsure(answer(0.99, 0.1))
    plain = Prediction(classes=(ClassConfidence(name="0", confidence=0.3),), unknown=None, calibrated=False)
    assert not is_unsure(plain)
    assert not is_unsure(answer().model_copy(update={"corrected": True}))


# --- following the model --------------------------------------------------------------------------


def test_a_kill_between_learning_and_emptying_neither_loses_nor_repeats_a_photo(
    model: Classifier, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = digits("5", count=2)["5"]
    model.correct(one, "five")
    real, calls = Inbox.settle, []

    def settle(inbox: Inbox, learned: Any = ()) -> None:
        calls.append(len(learned))
        if learned:
            raise KeyboardInterrupt
        real(inbox, learned)

    monkeypatch.setattr(Inbox, "settle", settle)
    with pytest.raises(KeyboardInterrupt):
        model.learn_inbox()
    monkeypatch.undo()
    assert calls == [0, 1]
    assert len(model.inbox) == 1, "its files are still there"
    reopened = Classifier.open(model.path)
    assert reopened.classes[-1] == "five"
    assert reopened.inbox.photos() == [], "but it is known to be learned"
    reopened.correct(two, "five")
    learned = reopened.learn_inbox()
    assert (learned.extended, learned.images) == (("five",), 1)
    assert len(reopened.inbox) == 0


def test_a_failure_while_learning_leaves_the_inbox_as_it_was(
    model: Classifier, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.correct(photo, "five")
    monkeypatch.setattr("ease.app.stored_model.save_model", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.learn_inbox()
    monkeypatch.undo()
    assert [p.name for p in model.inbox.photos()] == ["five"]
    assert model.learn_inbox().classes == ("five",)


def test_a_photo_that_was_renamed_while_it_was_learned_stays(
    model: Classifier, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = str(model.correct(photo, "five").id)
    real = Inbox.to_learn

    def to_learn(inbox: Inbox, *args: Any) -> Any:
        found = real(inbox, *args)
        inbox.rename(number, "six")
        return found

    monkeypatch.setattr(Inbox, "to_learn", to_learn)
    assert model.learn_inbox().classes == ("five",)
    monkeypatch.undo()
    assert [p.name for p in model.inbox.photos()] == ["six"]


def test_a_renamed_class_is_followed_by_pending_and_learned_corrections(
    model: Classifier, digits: Digits
) -> None:
    one, two, three = digits("5", count=3)["5"]
    model.correct(one, "five")
    model.learn_inbox()
    name = next(each for each in reversed(model.predict(two)[0].names) if each != "five")
    model.correct(two, name)
    model.rename("five", "fifth")
    model.rename(name, "renamed")
    assert [model.predict(image)[0].name for image in (one, two)] == ["fifth", "renamed"]
    model.correct(three, "later")
    model.learn({"later": digits("7", count=3)["7"]})
    model.rename("later", "sooner")
    assert model.inbox.photos()[-1].name == "sooner"
    assert model.learn_inbox().classes == ()


def test_a_forgotten_class_is_in_no_file_of_the_inbox(model: Classifier, digits: Digits) -> None:
    one, two, three = digits("5", count=3)["5"]
    model.rename("0", "zebra")
    model.correct(one, "okapi")
    model.learn_inbox()
    model.correct(digits("3", count=1, skip=20)["3"][0], "okapi")
    other = model.correct(two, "zebra")
    model.inbox.collect(
        png(three),
        content_hash(png(three)),
        model.predict(three)[0],
        model.known,
        per_day=5,
        file="Okapi 1.jpg",
    )
    model.forget("okapi")
    assert files_with(model.path, b"okapi") == files_with(model.inbox.path, b"okapi") == []
    assert files_with(model.inbox.path, b"Okapi") == []
    assert model.inbox.photos()[0].id == other.id
    assert len(model.inbox) == 2
    assert model.known.corrections == {}
    assert not model.predict(one)[0].corrected


def test_no_name_of_a_forgotten_class_stays_as_the_name_of_a_file(model: Classifier, digits: Digits) -> None:
    files = [
        "Cafe\u0301 Zoraida 1.png",
        "CAF\u00c9 ZORAIDA 2.png",
        "oldname-pic.png",
        "Final3.png",
        "kept.png",
    ]
    for name in ("Caf\u00e9 Zoraida", "oldname", "final"):
        model.rename(model.classes[0], name)
    model.inbox.open()
    for file, image in zip(files, digits("5", count=5)["5"], strict=True):
        prediction = model.predict(image)[0]
        content = png(image)
        model.inbox.collect(content, content_hash(content), prediction, model.known, per_day=9, file=file)
    model.forget("final")
    assert [photo.file for photo in model.inbox.photos()] == ["", "", "", "", "kept.png"]


def test_forgetting_is_finished_if_its_process_was_killed(
    model: Classifier, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = model.predict(photo)[0].names[-1]
    model.correct(photo, name)
    monkeypatch.setattr(inbox_folder.InboxFolder, "_finish_forgetting", lambda self: None)
    model.forget(name)
    monkeypatch.undo()
    assert len(model.inbox) == 1
    Classifier.open(model.path).rename(model.classes[0], "other")
    assert len(model.inbox) == 0
    assert sorted(path.name for path in model.inbox.path.iterdir()) == [".lock", "counts.json"]


def test_a_forget_that_failed_keeps_the_photos(
    model: Classifier, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = model.predict(photo)[0].names[-1]
    model.correct(photo, name)
    monkeypatch.setattr("ease.app.stored_model.save_model", lambda *a, **k: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model.forget(name)
    monkeypatch.undo()
    assert model.predict(photo)[0].corrected


def test_few_photos_of_a_known_class_are_no_remark(model: Classifier, digits: Digits) -> None:
    one, two = digits("5", count=2)["5"]
    model.correct(one, model.predict(one)[0].names[-1])
    assert model.learn_inbox().notes == ()
    model.correct(two, "five")
    assert model.learn_inbox().notes == ("fewer than 5 images (five: 1): more images would help",)


def test_rollback_takes_learned_corrections_back(model: Classifier, photo: np.ndarray) -> None:
    before = model.generation
    model.correct(photo, "five")
    model.learn_inbox()
    after = model.generation
    model.rollback(before)
    assert not model.predict(photo)[0].corrected
    model.rollback(after)
    assert model.predict(photo)[0].name == "five"


def test_a_pending_correction_of_a_class_that_was_rolled_back_is_a_new_class(
    model: Classifier, digits: Digits
) -> None:
    before = model.generation
    model.learn({"five": digits("5", count=6)["5"]})
    image = digits("3", count=1, skip=20)["3"][0]
    model.correct(image, "five")
    model.rollback(before)
    assert not model.predict(image)[0].corrected
    assert model.learn_inbox().classes == ("five",)


def test_an_inbox_that_is_left_says_nothing_of_another_model(
    model: Classifier, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and answers are those of the model that the photo was given to; its name is still a name."""
    one, two, three = digits("5", count=3)["5"]
    first, second = model.predict(one)[0].names[-2:]
    model.correct(one, first)
    model.correct(two, second)
    shutil.rmtree(model.path)
    monkeypatch.setattr(classifier_module, "datetime", Later)
    made = Classifier.create(model.path, **SMALL)
    names = [name for name in ("5", "6", "7", "8", "9") if name != second]
    made.learn({**digits(*names, count=10), second: digits("9", count=10, skip=10)["9"]})
    assert not made.predict(one)[0].corrected
    assert [made.predict(two)[0].name, made.predict(two)[0].corrected] == [second, True]
    left = made.inbox.photos()[0]
    assert (left.name, left.class_id, left.suggestions, left.unknown) == (first, None, (), None)
    assert made.learn_inbox().classes == (first,)
    made.correct(three, "6")
    made.rename("6", "six")
    assert made.predict(three)[0].name == "six"


def test_a_name_that_went_to_another_class_takes_no_photo_along(model: Classifier, digits: Digits) -> None:
    image = digits("5", count=1)["5"][0]
    first, second = model.predict(image)[0].names[-2:]
    model.correct(image, first)
    model.rename(first, "renamed")
    model.rename(second, first)
    model.rename(first, "other")
    assert model.predict(image)[0].name == "renamed"
    model.rename("other", first)
    model.forget(first)
    assert model.predict(image)[0].name == "renamed"
    assert json.loads(next(model.inbox.path.glob("*-*.json")).read_text())["name"] == "renamed"


@pytest.mark.parametrize(
    "forged",
    [
        {"name": "\x1b[31mred"},
        {"name": "a/../b" + "x" * 300},
        {"name": " "},
        {"name": 3},
        {"size": 10**12},
        {"unknown": 2.0},
        {"suggestions": [{"id": 0, "confidence": -1.0}]},
    ],
)
def test_forged_facts_are_passed_over_like_damaged_ones(
    forged: dict[str, Any], model: Classifier, digits: Digits
) -> None:
    one, two = digits("5", count=2)["5"]
    facts = model.inbox.path / f"{model.correct(one, 'five').id}.json"
    kept = model.correct(two, "six").id
    facts.write_text(json.dumps({**json.loads(facts.read_text()), **forged}))
    assert [photo.id for photo in model.inbox.photos()] == [kept]
    assert model.learn_inbox().classes == ("six",)


def test_a_correction_that_is_refused_leaves_no_trace(
    model: Classifier, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise EaseError("the disk is full")

    with monkeypatch.context() as failing:
        failing.setattr(inbox_folder.durable, "write_atomic", full)
        with pytest.raises(EaseError, match="the disk is full"):
            model.correct(photo, "five")
    assert not model.inbox.on
    model.inbox.open()
    os.mkfifo(model.inbox.path / "counts.json")
    with pytest.raises(EaseError, match="device or a pipe"):
        model.correct(photo, "five")
    assert len(model.inbox) == 0
    assert [path.name for path in model.inbox.path.glob("*-*")] == []


def test_an_inbox_that_leads_elsewhere_is_refused(
    model: Classifier, photo: np.ndarray, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    model.inbox.path.symlink_to(elsewhere)
    for act in (lambda: model.correct(photo, "five"), lambda: model.inbox.photos(), model.inbox.open):
        with pytest.raises(EaseError, match="is a link"):
            act()
    assert list(elsewhere.iterdir()) == []


def test_learned_corrections_are_bounded(model: Classifier) -> None:
    from ease.app.corrections import remembered

    known = Known(1, {0: "0"}, {})
    many = remembered({f"{i:032x}": 0 for i in range(2000)}, {"f" * 32: "0"}, known)
    assert len(many) == 2000
    assert list(many)[-1] == "f" * 32
    assert f"{0:032x}" not in many


def test_outcomes_are_counted_by_generation(model: Classifier, digits: Digits) -> None:
    model.correct(digits("0", count=1)["0"][0], "0")
    wrong = digits("5", count=1)["5"][0]
    model.correct(wrong, model.predict(wrong)[0].names[-1])
    model.learn_inbox()
    model.correct(digits("1", count=1)["1"][0], "1")
    whole, recent = model.inbox.outcomes(), model.inbox.outcomes(model.generation)
    assert (whole.right, whole.wrong) == (2, 1)
    assert (recent.right, recent.wrong, recent.count) == (1, 0, 1)
    assert whole.since is not None
    assert recent.since is not None
    assert whole.since < recent.since


# --- groups ---------------------------------------------------------------------------------------


def test_photos_of_a_class_that_was_left_out_are_found_as_a_group(tmp_path: Path) -> None:
    from ease.streams.datasets import load_dataset

    data = load_dataset("digits", None, 20)
    kept = [c for c in range(10) if c != 6]
    model = Classifier.create(tmp_path / "model", augment="gentle", input_size=32, settings={"layers": 2})
    images = data.train.of_classes(kept, relabel=kept.index)
    model.learn(LabelledImages(tuple(data.class_names[c] for c in kept), images, ()))
    model.inbox.open()
    sixes, others = (data.test.of_classes([c]) for c in (6, 4))
    for number, (own, unknown) in enumerate([(sixes, 0.9)] * 6 + [(others, 0.1)] * 3):
        content = png(own.image(number).permute(1, 2, 0).numpy())
        model.inbox.collect(
            content, content_hash(content), answer(unknown=unknown), model.known, per_day=99, file=f"{number}"
        )
    photos = model.inbox.photos()
    groups = Groups()
    (group,) = groups.of(model, photos)
    assert {photo.id for photo in photos if photo.id in group} <= {photo.id for photo in photos[:6]}
    assert len(group) >= 4
    assert groups.of(model, photos) is groups.of(model, photos), "computed once"
    model.inbox.rename(group[0], "six")
    assert all(group[0] not in ids for ids in groups.of(model, model.inbox.photos()))


def around(direction: int, count: int, cosine: float) -> torch.Tensor:
    """Vectors of length 1 whose cosines with each other are all `cosine`; other directions are at right angles."""
    vectors = torch.zeros(count, 40)
    vectors[:, 30 + direction] = cosine**0.5
    for at in range(count):
        vectors[at, 10 * direction + at] = (1 - cosine) ** 0.5
    return vectors


def test_a_group_has_a_photo_that_is_like_no_class_and_others_need_not_be() -> None:
    vectors = torch.cat([around(0, 4, 0.6), around(1, 4, 0.6), around(2, 2, 0.9)])
    unknown = torch.zeros(10, dtype=torch.bool)
    unknown[[1, 9]] = True
    assert look_alikes(vectors, unknown, 0.3) == [[0, 1, 2, 3]], "the second has none, the third is a pair"
    assert look_alikes(vectors, unknown | True, 0.3) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert look_alikes(vectors, unknown | True, 0.7) == []
    assert look_alikes(vectors[:2], unknown[:2], 0.3) == []


def test_the_most_telling_group_comes_first() -> None:
    """Three photos with a cosine of .9 say more than four with .6, but less than eight with .6."""
    known = torch.ones(11, dtype=torch.bool)
    few = torch.cat([around(0, 4, 0.6), around(1, 3, 0.9)])
    assert [len(group) for group in look_alikes(few, known[:7], 0.3)] == [3, 4]
    many = torch.cat([around(1, 3, 0.9), around(0, 8, 0.6)])
    assert [len(group) for group in look_alikes(many, known, 0.3)] == [8, 3]


def test_photos_without_names_are_compared_if_one_of_them_is_like_no_class(
    model: Classifier, digits: Digits
) -> None:
    model.inbox.open()
    for unknown, image in zip((0.1, 0.45, 0.2, 0.8), digits("5", count=4)["5"], strict=True):
        content = png(image)
        model.inbox.collect(
            content,
            content_hash(content),
            answer(unknown=unknown),
            model.known,
            per_day=99,
            file=f"{unknown}",
        )
    photos = model.inbox.photos()
    assert [photo.unknown for photo in groupable(photos)] == [0.8, 0.45, 0.2, 0.1], (
        "the most unknown ones first"
    )
    assert groupable([photo for photo in photos if photo.unknown != 0.8]) == []
    assert groupable(photos[:1] + photos[3:]) == []
    model.inbox.rename(photos[0].id, "six")
    assert len(groupable(model.inbox.photos())) == 3


# --- two processes, and any sequence --------------------------------------------------------------


def test_two_objects_may_change_one_inbox(model: Classifier, digits: Digits) -> None:
    import threading

    images = digits("5", count=6)["5"]
    known, errors = model.known, []

    def add(some: list[np.ndarray]) -> None:
        inbox = Inbox(model.path)
        try:
            for image in some:
                inbox.judge(png(image), content_hash(png(image)), "five", None, known)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=add, args=(images[i::2],)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(model.inbox.photos()) == 6


class InboxMachine(RuleBasedStateMachine):
    """An inbox beside a plain dict: content -> (state, name)."""

    @initialize()
    def create(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.inbox = Inbox(Path(self.folder.name) / "model", most_images=4)
        self.known = Known(1, {0: "cat", 1: "dog"}, {})
        self.inbox.known = lambda: self.known  # type: ignore[method-assign]
        self.inbox.open()
        self.spec: dict[bytes, tuple[str, str | None]] = {}
        self.dropped: set[bytes] = set()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def _id(self, content: bytes) -> str:
        return next(p.id for p in self.inbox.photos() if p.path.read_bytes() == content)

    @rule(content=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), name=st.sampled_from(["cat", "owl"]))
    def correct(self, content: bytes, name: str) -> None:
        unsure = [c for c, (state, _) in self.spec.items() if state == "unsure"]
        try:
            self.inbox.judge(content, content_hash(content), name, None, self.known)
        except InboxFullError:
            assert len(self.spec) == 4
            assert not unsure
            return
        if content in self.spec:
            state = "corrected" if self.spec[content][0] == "corrected" else "named"
            self.spec[content] = (state, name)
            return
        if len(self.spec) == 4:
            self.dropped.add(unsure[0])
            del self.spec[unsure[0]]
        self.spec[content] = ("corrected", name)

    @rule(content=st.sampled_from([b"a", b"b", b"u", b"v"]))
    def collect(self, content: bytes) -> None:
        kept = self.inbox.collect(content, content_hash(content), answer(), self.known, per_day=99)
        expected = content not in self.spec and content not in self.dropped and len(self.spec) < 4
        assert (kept is not None) == expected
        if expected:
            self.spec[content] = ("unsure", None)

    @precondition(lambda self: self.spec)
    @rule(data=st.data(), name=st.sampled_from([None, "dog", "emu"]))
    def rename(self, data: st.DataObject, name: str | None) -> None:
        content = data.draw(st.sampled_from(sorted(self.spec)))
        self.inbox.rename(self._id(content), name)
        state = self.spec[content][0]
        state = "unsure" if name is None else "named" if state == "unsure" else state
        self.spec[content] = (state, name)

    @precondition(lambda self: self.spec)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        content = data.draw(st.sampled_from(sorted(self.spec)))
        self.inbox.discard(self._id(content))
        if self.spec.pop(content)[0] != "corrected":
            self.dropped.add(content)

    @invariant()
    def is_what_it_should_be(self) -> None:
        if hasattr(self, "spec"):
            found = {
                p.path.read_bytes(): (p.state, p.name) for p in Inbox(self.inbox.model).photos(self.known)
            }
            assert found == self.spec
            assert [p.path.read_bytes() for p in self.inbox.photos()] == list(self.spec)
            assert len(list(self.inbox.path.glob("*.photo"))) == len(self.spec)


TestInboxMachine = InboxMachine.TestCase
TestInboxMachine.settings = settings(
    max_examples=15, stateful_step_count=12, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- the command line -----------------------------------------------------------------------------


def test_the_story_by_commands(model: Classifier, photo: np.ndarray, tmp_path: Path, ease: Any) -> None:
    file, path = tmp_path / "five.png", model.path
    Image.fromarray(photo).save(file)
    assert "no inbox" in ease("inbox", "--model", path).out
    assert "as 'five', a new class" in ease("correct", file, "five", "--model", path).out
    line = refused(ease("correct", file, "Five", "--model", path))
    assert "very like 'five'" in line
    listed = ease("inbox", "--model", path)
    assert "five (new)" in listed.out
    (number,) = [p.id for p in Inbox(path).photos()]
    assert "is 'fife', a new class" in ease("inbox", "--model", path, "--name", f"{number[-9:]}=fife").out
    assert "kept images: 1 photo" in ease("info", path).out
    assert "took back 'fife'" in ease("inbox", "--model", path, "--undo").out
    assert "nothing to learn" in refused(ease("learn", "--inbox", "--model", path))
    assert "as 'five'" in ease("correct", file, "five", "--model", path).out
    assert "1 new class from 1 image" in ease("learn", "--inbox", "--model", path).out
    assert "five 100.0 %" in ease("predict", file, "--model", path).out
    assert "already" in ease("correct", file, "five", "--model", path).out
    assert "0 photos" in ease("inbox", "--model", path).out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["learn"], "give a folder of photos, or a table with --labels"),
        (["learn", "photos", "--inbox"], "leave the other photos out"),
        (["learn", "--inbox", "--thumbnails"], "--thumbnails is for a folder"),
        (["learn", "--inbox", "--method", "ease"], "which is strata"),
        (["inbox", "--name", "x"], "is not ID=NAME"),
        (["inbox", "--discard", "x"], "no photo of the inbox has the id"),
        (["inbox", "--clear", "--undo"], "exclude each other"),
        (["serve", "--collect-unsure", "3"], "add --inbox"),
    ],
)
def test_wrong_commands_are_refused_in_one_line(
    model: Classifier, ease: Any, words: list[str], said: str
) -> None:
    assert said in refused(ease(*words, "--model", model.path))
    assert not model.inbox.on
