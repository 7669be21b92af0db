"""What a served model was asked: counted, kept across restarts, without names."""

from __future__ import annotations

import errno
import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from ease import Classifier, Prediction
from ease.app import activity as module
from ease.app.activity import Activity
from ease.app.server.watching import activity_text
from ease.storage import files
from ease.storage.manifest import Manifest
from ease.storage.model_directory import ModelDirectory
from tests.app.conftest import QUICK, Digits
from tests.app.serving import images, serving


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 2, 12, tzinfo=timezone.utc)

    def __call__(self) -> datetime:
        return self.now


def answers(
    name: str, count: int = 1, unknown: float | None = 0.1, confidence: float = 0.9
) -> list[Prediction]:
    one = Prediction(classes=[{"name": name, "confidence": confidence}], unknown=unknown, calibrated=True)
    return [one] * count


@pytest.fixture
def manifest(served_model: Path) -> Manifest:
    return ModelDirectory(served_model).manifest()


def test_days_have_counts_shares_and_means(tmp_path: Path, manifest: Manifest) -> None:
    clock = Clock()
    watched = Activity(tmp_path / "activity.json", clock=clock)
    watched.add([*answers("d0", 2), *answers("d1"), *answers("d1", unknown=0.9)], manifest, manifest)
    clock.now += timedelta(days=1)
    watched.add(answers("d2", unknown=None, confidence=0.5), manifest, manifest)
    first, second = watched.report(manifest).days
    assert (first.date, first.images, first.unknown) == ("2026-11-02", 4, 0.25)
    assert first.classes == {"d0": 0.5, "d1": 0.25}
    assert first.others == 0
    assert (second.unknown, second.confidence, second.classes) == (None, 0.5, {"d2": 1.0})


def test_only_the_last_days_are_remembered(tmp_path: Path, manifest: Manifest) -> None:
    clock = Clock()
    watched = Activity(tmp_path / "activity.json", clock=clock)
    for _ in range(module.DAYS + 5):
        watched.add(answers("d0"), manifest, manifest)
        clock.now += timedelta(days=1)
    days = watched.report(manifest).days
    assert len(days) == module.DAYS
    assert days[0].date == "2026-11-07"


def test_counts_outlive_the_process_and_the_file_holds_no_name(tmp_path: Path, manifest: Manifest) -> None:
    path = tmp_path / "activity.json"
    before = Activity(path, clock=Clock())
    for _ in range(250):
        before.add(answers("d0"), manifest, manifest)
    before.write()
    after = Activity(path, clock=Clock())
    assert after.report(manifest) == before.report(manifest)
    assert after.report(manifest).reference is not None
    assert not any(f'"{name}"' in path.read_text() for name in manifest.class_names)


def test_a_full_disk_is_said_once_and_nothing_is_lost(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    path = tmp_path / "activity.json"
    watched = Activity(path, said.append, Clock())

    def full(point: str, where: Path) -> None:
        if point == "before-write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(files, "fault", full)
        for _ in range(3):
            watched.add(answers("d0"), manifest, manifest)
            watched.write()
    assert len(said) == 1
    assert not path.exists()
    watched.write()
    assert Activity(path).report(manifest).days[0].images == 3


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"days": {"never": {}}}',
        b'{"days": {"2026-11-02": {"images": -1}}}',
        b'{"watch": {"reference": {"unknown": [1e999, 0, 0]}}}',
        json.dumps({"days": {f"{y}-01-01": {} for y in range(1900, 2000)}}).encode(),
    ],
)
def test_a_damaged_file_is_begun_anew(tmp_path: Path, manifest: Manifest, content: bytes) -> None:
    said: list[str] = []
    path = tmp_path / "activity.json"
    path.write_bytes(content)
    watched = Activity(path, said.append, Clock())
    assert len(said) == 1
    watched.add(answers("d0"), manifest, manifest)
    watched.write()
    assert len(Activity(path).report(manifest).days) == 1


def test_a_note_says_what_changed_since_when_and_what_it_was(tmp_path: Path, manifest: Manifest) -> None:
    clock = Clock()
    watched = Activity(tmp_path / "activity.json", clock=clock)
    for number in range(450):
        watched.add(answers(f"d{number % 4}", unknown=0.9 if number % 20 == 0 else 0.1), manifest, manifest)
    assert watched.report(manifest).notes == []
    clock.now = datetime(2026, 11, 17, 8, tzinfo=timezone.utc)
    for number in range(250):
        watched.add(answers(f"d{number % 4}", unknown=0.9 if number % 3 == 0 else 0.1), manifest, manifest)
    (note,) = watched.report(manifest).notes
    assert note == (
        "Since Tuesday, 17 November 2026, 34 % of the photos look like nothing the model knows; in the first 200 "
        "photos after it learned it was 5 %. Look at some of them: perhaps there is something new to teach."
    )
    assert "\nease_drift_notes 1\n" in activity_text(watched, manifest)


def test_learning_begins_a_new_reference_but_a_new_name_does_not(digits: Digits, tmp_path: Path) -> None:
    model = Classifier.create(tmp_path / "model", **QUICK)
    model.learn(digits("0", "1", count=4))
    directory = ModelDirectory(tmp_path / "model")
    first = directory.manifest()
    watched = Activity(tmp_path / "activity.json", clock=Clock())
    for _ in range(30):
        watched.add(answers("0"), first, first)
    model.rename("0", "zero")
    renamed = directory.manifest()
    watched.add(answers("zero"), renamed, renamed)
    found = watched.report(renamed)
    assert found.reference is not None
    assert found.reference.images == 31
    assert found.reference.classes == found.days[0].classes == {"zero": 1.0}
    model.learn(digits("2", count=4))
    learned = directory.manifest()
    assert watched.report(learned).reference is None
    watched.add(answers("zero"), renamed, learned)  # answered by the old one, just before
    watched.add(answers("2"), learned, learned)
    found = watched.report(learned)
    assert found.reference is not None
    assert found.reference.images == 1
    assert found.days[0].images == 33


def test_the_server_counts_its_answers_and_a_forgotten_class_is_not_named(
    model: Path, pictures: dict[str, Any]
) -> None:
    with serving(model) as world:
        assert world.get("/activity") == {"days": [], "reference": None, "recent": None, "notes": []}
        for name in ("d0", "d1"):
            assert world.client.post("/predict", files=images(*pictures[name][:3])).status_code == 200
        (day,) = world.get("/activity")["days"]
        assert day["images"] == 6
        text = world.client.get("/metrics").text
        assert "ease_answers_judged_total" in text
        shown = {line for line in text.splitlines() if line.startswith("ease_answers_class_total")}
        total = sum(int(line.rsplit(" ", 1)[1]) for line in shown)
        unknown = int(text.split("\nease_answers_unknown_total ")[1].split()[0])
        assert total + unknown == 6
        assert world.client.delete("/classes/0").status_code == 200
        assert "d0" not in json.dumps(world.get("/activity"))
        assert 'class="d0"' not in world.client.get("/metrics").text
    with serving(model) as world:
        assert world.get("/activity")["days"][0]["images"] == 6


def test_the_number_of_labels_is_bounded_and_odd_names_are_escaped(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [manifest.classes[0].model_copy(update={"id": i, "name": f'class "{i}" \\'}) for i in range(150)]
    large = manifest.model_copy(update={"classes": many})
    watched = Activity(tmp_path / "activity.json", clock=Clock())
    for entry in many:
        watched.add(answers(entry.name), large, large)
    lines = [
        line
        for line in activity_text(watched, large).splitlines()
        if line.startswith("ease_answers_class_total")
    ]
    assert len(lines) == module.CLASSES_SHOWN + 1
    assert lines[0] == r'ease_answers_class_total{id="0",class="class \"0\" \\"} 1'
    assert lines[-1] == 'ease_answers_class_total{id="",class="other"} 50'
    day = watched.report(large).days[0]
    assert len(day.classes) == module.CLASSES_SHOWN
    assert day.others == pytest.approx(50 / 150, abs=0.01)
