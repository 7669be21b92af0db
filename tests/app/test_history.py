"""What each generation did, by name, from the manifests alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ease import Classifier
from ease.app.compact import Compaction, compact
from ease.app.history import HistoryReader
from ease.reporting.significance import wilson
from ease.storage import model_directory
from tests.app.conftest import QUICK, Digits
from tests.app.serving import images, sentence, serving


def said(model: Path) -> list[str]:
    return [one.what for one in HistoryReader(model).read().generations]


def test_every_kind_of_change_is_told_by_name(digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model = Classifier.create(path, **QUICK)
    model.learn(digits("0", "1", count=12))
    model.learn({**digits("1", count=4, skip=12), **digits("2", count=4)}, extend=True)
    model.rename("0", "zero")
    compact(path, Compaction("fp16", None, None))
    found = HistoryReader(path).read()
    assert [one.what for one in found.generations[:4]] == [
        "Created without classes.",
        f"Learned 0 and 1 from {found.generations[1].what.split()[-2]} photos.",
        f"Learned 2, and more of 1 from {found.generations[2].what.split()[-2]} photos.",
        "Renamed 0 to zero.",
    ]
    assert found.generations[4].what.startswith("Compacted the model from ")
    second, third, fourth = found.generations[1:4]
    assert (second.classes, second.extended, second.total) == (["0", "1"], [], 2)
    assert (third.classes, third.extended, third.total) == (["2"], ["1"], 3)
    assert [(one.old, one.new) for one in fourth.renamed] == [("0", "zero")]
    assert [one.base for one in found.generations] == [None, 1, 2, 3, 4]
    assert found.current == 5
    assert [one.current for one in found.generations] == [False] * 4 + [True]


def test_the_accuracy_of_the_day_comes_with_its_count_and_interval(digits: Digits, tmp_path: Path) -> None:
    model = Classifier.create(tmp_path / "model", **QUICK)
    learned = model.learn(digits("0", "1", count=12))
    figures = HistoryReader(tmp_path / "model").read().generations[-1].measured
    assert figures is not None
    assert figures.count == learned.held_out
    assert 100 * figures.right / figures.count == pytest.approx(learned.accuracy)
    assert (figures.low, figures.high) == tuple(round(end, 1) for end in wilson(figures.right, figures.count))
    assert "held out" in figures.about
    model.learn(digits("2", count=1))
    assert HistoryReader(tmp_path / "model").read().generations[-1].measured is None


def test_generations_behind_a_rollback_are_undone_and_the_next_one_names_its_base(
    digits: Digits, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    model = Classifier.create(path, **QUICK)
    model.learn(digits("0", "1", count=4))
    model.learn(digits("2", count=4))
    model.rollback(2)
    back = HistoryReader(path).read()
    assert back.current == 2
    assert [one.undone for one in back.generations] == [False, False, True]
    model.learn(digits("3", count=4))
    found = HistoryReader(path).read()
    assert [one.base for one in found.generations] == [None, 1, 2, 2]
    assert [one.undone for one in found.generations] == [False, False, True, False]
    assert found.generations[-1].what.endswith("This was made from generation 2.")
    assert found.generations[-1].classes == ["3"]
    model.rollback(3)
    assert [one.undone for one in HistoryReader(path).read().generations] == [False, False, False, True]


def test_a_forgotten_class_leaves_no_name_and_no_earlier_generation(digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model = Classifier.create(path, **QUICK)
    model.learn({"secret": digits("0", count=4)["0"], "kept": digits("1", count=4)["1"]})
    reader = HistoryReader(path)
    assert "secret" in reader.read().model_dump_json()
    model.forget("secret")
    found = reader.read()
    assert "secret" not in found.model_dump_json()
    assert [one.what for one in found.generations] == [
        "Removed all earlier generations: a class was forgotten, or the history was to be cleared."
    ]
    assert [one.classes for one in found.earlier] == [["kept"]]
    model.rename("kept", "found")
    assert said(path)[-1] == "Renamed kept to found."


def test_clearing_the_history_without_forgetting_is_told_as_that(digits: Digits, tmp_path: Path) -> None:
    path = tmp_path / "model"
    model = Classifier.create(path, **QUICK)
    model.learn(digits("0", "1", count=4))
    compact(path, Compaction("fp16", None, None), forget_history=True)
    assert said(path) == ["Removed all earlier generations: as it was asked for."]


def test_each_manifest_is_read_once(grown: Classifier, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        grown.rename(grown.classes[0], f"name {number}")
    reads: list[Path] = []
    original = model_directory.decode_manifest

    def counted(raw: bytes, path: Path):  # type: ignore[no-untyped-def]
        reads.append(path)
        return original(raw, path)

    monkeypatch.setattr(model_directory, "decode_manifest", counted)
    reader = HistoryReader(grown.path)
    first = reader.read()
    generations = len(first.generations)
    assert generations == 9
    assert len(reads) <= generations + 1  # and the current one
    reads.clear()
    assert reader.read() == first
    assert len(reads) == 1
    grown.rename(grown.classes[0], "last")
    reads.clear()
    assert reader.read().generations[-1].what == "Renamed name 5 to last."
    new = grown.path / "manifests" / f"{grown.generation:04d}.json"
    old = grown.path / "manifests" / f"{grown.generation - 1:04d}.json"
    assert sorted(reads) == sorted([grown.path / "manifest.json", new, old])


def test_a_damaged_generation_is_left_out(grown: Classifier) -> None:
    damaged = grown.path / "manifests" / "0002.json"
    os.chmod(damaged, 0o600)
    damaged.write_bytes(damaged.read_bytes()[:-40])
    found = HistoryReader(grown.path).read()
    assert [one.generation for one in found.generations] == [1, 3]


def test_the_command_lists_what_each_generation_did(ease, grown: Classifier) -> None:  # type: ignore[no-untyped-def]
    lines = ease("rollback", "--model", grown.path).out.splitlines()
    assert [line[0] for line in lines] == [" ", " ", "*"]
    assert "Learned 0, 1, 2, 3 and 4 from" in lines[1]
    assert "held-out photos recognised then (" in lines[1]
    found = json.loads(ease("rollback", "--model", grown.path, "--json").out)
    assert found["current"] == 3
    assert "95 % interval" in ease("info", grown.path).out
    assert ease("rollback", "--model", grown.path, 1, "--json").code == 2
    ease("rollback", "--model", grown.path, 2)
    assert ease("rollback", "--model", grown.path).out.splitlines()[-1].endswith("Undone by a rollback.")


def test_the_server_tells_the_history_and_follows_changes(model: Path, pictures) -> None:  # type: ignore[no-untyped-def]
    with serving(model) as world:
        found = world.get("/history")
        assert found["current"] == 3
        assert found["corrections"] is None
        assert [one["classes"] for one in found["generations"]] == [[], ["d0", "d1"], ["d2", "d3"]]
        assert world.client.patch("/classes/0", json={"name": "null"}).status_code == 200
        assert world.get("/history")["generations"][-1]["renamed"] == [{"old": "d0", "new": "null"}]
        assert world.client.delete("/classes/0").status_code == 200
        assert "null" not in [name for one in world.get("/history")["generations"] for name in one["classes"]]
        assert len(world.get("/history")["generations"]) == 1
        sentence(world.client.post("/history", json={}), 405)
        assert world.client.post("/predict", files=images(pictures["d1"][0])).status_code == 200


@given(count=st.integers(1, 10_000), share=st.floats(0, 1))
def test_an_interval_contains_its_share_and_stays_within_0_and_100(count: int, share: float) -> None:
    right = round(share * count)
    low, high = wilson(right, count)
    assert 0 <= low <= 100 * right / count + 1e-9
    assert 100 * right / count - 1e-9 <= high <= 100
    more, wider = wilson(right, count), wilson(round(right / count * 10 * count), 10 * count)
    assert wider[1] - wider[0] < more[1] - more[0]


def test_an_interval_is_the_published_one() -> None:
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    assert wilson(81, 263) == pytest.approx((25.53, 36.62), abs=0.005)
    assert wilson(15, 148) == pytest.approx((6.24, 16.05), abs=0.005)
    assert wilson(0, 20) == pytest.approx((0.0, 16.11), abs=0.005)
    assert wilson(1, 29) == pytest.approx((0.61, 17.18), abs=0.005)
    with pytest.raises(ValueError):
        wilson(3, 2)
