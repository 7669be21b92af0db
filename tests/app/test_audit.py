"""The label audit: wrong labels, near-duplicates and equal classes are found, and nothing is changed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from ease import Classifier
from ease.app.audit import Audit, audit
from ease.app.audit_page import write_audit
from ease.errors import EaseError
from ease.streams.intake import collect_images
from tests.app.conftest import Digits, refused, write_folder
from tests.app.serving import images, png, sentence, serving, state_of, zipped

Pictures = dict[str, list[np.ndarray]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Classifier:
    """A model of three digits with a small input, so that features are quick."""
    model = Classifier.create(tmp_path_factory.mktemp("audit") / "model", input_size=32, augment="gentle")
    model.learn(digits("7", "8", "9", count=12))
    return model


def files(found: Audit, *kinds: str) -> set[str]:
    return {file for finding in found.findings if finding.kind in kinds for file in finding.files}


def test_five_photos_in_the_folder_of_another_class_are_found(digits: Digits) -> None:
    photos = digits("0", "1", "2", "3", "4", count=20)
    photos["0"] += digits("1", count=5, skip=20)["1"]
    found = audit(collect_images(photos))  # as the embedded backbone sees them, at its own size
    moved = {f"0[{at}]" for at in range(20, 25)}
    like = [f for f in found.findings if f.kind == "like-other" and f.files[0] in moved]
    assert {f.files[0] for f in like} == moved
    assert {(f.label, f.other) for f in like} == {("0", "1")}
    others = files(found, "like-other", "unlike") - moved
    assert len(others) <= 4  # 2 % of 105, and some room for chance
    assert (found.images, found.classes) == (105, 5)


def test_the_surest_findings_come_first(known: Classifier, digits: Digits) -> None:
    photos = digits("0", "1", "2", count=12)
    photos["2"].append(photos["1"][5])  # a copy under another name
    photos["0"].append(digits("1", count=1, skip=25)["1"][0])
    scores = [finding.score for finding in audit(collect_images(photos), known).findings]
    assert len(scores) >= 2
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_a_photo_may_look_like_a_class_that_only_the_model_knows(known: Classifier, digits: Digits) -> None:
    photos = digits("0", "1", count=12)
    photos["0"].append(digits("7", count=1, skip=20)["7"][0])
    found = audit(collect_images(photos), known)
    (finding,) = [f for f in found.findings if f.files == ("0[12]",)]
    assert (finding.kind, finding.other) == ("like-other", "7")


def test_a_class_under_two_names_is_found(known: Classifier, digits: Digits) -> None:
    photos = {**digits("0", "1", count=12), "nought": digits("0", count=12, skip=12)["0"]}
    found = audit(collect_images(photos), known)
    pairs = [{f.label, f.other} for f in found.findings if f.kind == "same-classes"]
    assert pairs == [{"0", "nought"}]


def test_a_new_name_for_a_class_of_the_model_is_found(known: Classifier, digits: Digits) -> None:
    photos = {"zero": digits("0", count=12)["0"], "seven": digits("7", count=12, skip=14)["7"]}
    found = audit(collect_images(photos), known)
    pairs = [{f.label, f.other} for f in found.findings if f.kind == "same-classes"]
    assert pairs == [{"seven", "7"}]


def photograph(seed: int) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), np.uint8)
    return Image.fromarray(noise).resize((96, 96), Image.Resampling.BICUBIC)


def test_scaled_compressed_and_brighter_copies_are_found_across_and_within_classes(known: Classifier) -> None:
    buffer = io.BytesIO()
    photograph(1).resize((64, 64)).save(buffer, "JPEG", quality=60)
    photos = {
        "first": [photograph(seed) for seed in range(6)],
        "second": [*(photograph(seed) for seed in range(10, 15)), buffer.getvalue()],
    }
    photos["second"].append(ImageEnhance.Brightness(photograph(11)).enhance(1.15))
    found = audit(collect_images(photos), known)
    copies = [f for f in found.findings if f.kind == "duplicate"]
    assert {f.files for f in copies} == {("first[1]", "second[5]"), ("second[1]", "second[6]")}
    assert [f.other for f in copies] == ["second", None]  # across classes first: one label must be wrong


def test_nothing_is_found_among_few_right_labels_and_blank_photos_are_no_copies(known: Classifier) -> None:
    blank = [np.full((16, 16, 3), value, np.uint8) for value in (250, 251, 252, 253)]
    found = audit(collect_images({"blank": blank}), known)
    assert files(found, "duplicate") == set()


def test_a_single_class_and_single_photos_are_noted(digits: Digits) -> None:
    found = audit(collect_images({"0": digits("0", count=4)["0"]}))
    assert any("single class" in note for note in found.notes)
    found = audit(collect_images({**digits("0", count=4), "1": digits("1", count=1)["1"]}))
    assert any("could not be judged" in note for note in found.notes)


def test_a_model_of_another_method_sees_the_folder_alone(grown_ease: Classifier, digits: Digits) -> None:
    found = audit(collect_images(digits("8", "9", count=6)), grown_ease)
    assert any("cannot judge labels" in note for note in found.notes)


def test_an_impossible_rate_is_refused(known: Classifier, digits: Digits) -> None:
    with pytest.raises(EaseError, match="false-alarm rate"):
        audit(collect_images(digits("0", "1")), known, false_alarms=0.5)


def test_the_model_is_not_changed(known: Classifier, digits: Digits) -> None:
    before, logits = state_of(known.path), known.logits(digits("8")["8"])
    audit(collect_images(digits("8", "0", count=6)), known)
    assert state_of(known.path) == before
    assert known.logits(digits("8")["8"]).equal(logits)


def test_the_page_shows_every_finding_with_pictures(
    known: Classifier, digits: Digits, tmp_path: Path
) -> None:
    photos = digits("0", "1", count=12)
    photos["0"].append(photos["1"][0])
    collected = collect_images(write_folder(tmp_path / "<b>photos", photos))
    found = audit(collected, known)
    page, document = write_audit(found, collected, tmp_path / "out")
    text = page.read_text()
    assert text.count("<article>") == len(found.findings) > 0
    assert text.count("data:image/jpeg") >= 3
    assert json.loads(document.read_text()) == found.document()
    assert found.document()["findings"][0]["class"] in ("0", "1")


def test_the_command_prints_and_writes(ease: Any, known: Classifier, digits: Digits, tmp_path: Path) -> None:
    photos = digits("0", "1", count=12)
    photos["0"].append(digits("1", count=1, skip=25)["1"][0])
    folder = write_folder(tmp_path / "photos", photos)
    told = ease("check", folder, "--model", known.path, "--out", tmp_path / "out")
    assert told.code == 0, told.err
    assert "0/012.png looks like '1'" in told.out
    assert (tmp_path / "out" / "audit.html").exists()
    document = json.loads(ease("check", folder, "--model", known.path, "--json").out)
    assert document["images"] == 25
    assert "no class folder" in refused(ease("check", tmp_path / "out", "--model", known.path))
    assert "--model" in refused(ease("check", folder, "--weights", "some.safetensors"))


def test_the_server_answers_with_the_same_document(known: Classifier, digits: Digits) -> None:
    photos = digits("0", "1", count=10)
    photos["0"].append(digits("1", count=1, skip=25)["1"][0])
    sent = {f"{name}/{at}.png": png(image) for name, own in photos.items() for at, image in enumerate(own)}
    before = state_of(known.path)
    with serving(known.path) as world:
        answer = world.client.post("/check", files=[("archive", ("photos.zip", zipped(sent)))])
        assert answer.status_code == 200, answer.text
        found = answer.json()
        assert (found["images"], found["classes"]) == (21, 2)
        assert {"0/10.png"} <= {f for each in found["findings"] for f in each["files"]}
        assert world.litter() == []
        loose = images(photos["0"][0])
        assert "no class folder" in sentence(world.client.post("/check", files=loose), 422)
        wrong = world.client.post("/check", files=loose, data={"name": "0", "unreadable": "maybe"})
        assert "unreadable" in sentence(wrong, 422)
        damaged = world.client.post("/check", files=[("image", ("0/a.png", b"no image"))])
        assert "cannot be read" in sentence(damaged, 422)
        assert world.litter() == []
    assert state_of(known.path) == before


def test_checking_is_bounded_in_images_and_seconds(known: Classifier, digits: Digits) -> None:
    from tests.app.serving import ROOM

    few = images(*digits("0", count=4)["0"], name="0/{}.png")
    with serving(known.path, limits=ROOM.model_copy(update={"check_files": 3})) as world:
        sentence(world.client.post("/check", files=few), 413)
    with serving(known.path, limits=ROOM.model_copy(update={"check_seconds": 1e-6})) as world:
        assert "took longer" in sentence(world.client.post("/check", files=few), 503)
        assert world.litter() == []
