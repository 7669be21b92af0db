"""Commands that remove something for good say what goes and ask; scripts say --yes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from ease import Classifier
from ease.app.job_book import jobs_that_name
from tests.app.conftest import LIGHT, Digits, refused

JOB = "20260301-101500-0a1b2c"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def model(tmp_path: Path, digits: Digits) -> Path:
    """Three generations, of which the second is current, and a job that a server remembers."""
    classifier = Classifier.create(tmp_path / "model", input_size=16, settings=LIGHT, write=False)
    classifier.learn(digits("0", "1", count=3), thumbnails=True)
    classifier.learn(digits("2", count=3))
    classifier.learn(digits("3", count=3))
    classifier.rollback(2)
    book = tmp_path / "model.jobs"
    book.mkdir()
    learned = {"classes": ["0", "1"], "extended": [], "notes": ["'0' has few images"], "generation": 1}
    job = {"id": JOB, "created": "2026-03-01T10:15:00+00:00", "classes": ["0", "1"], "state": "done"}
    (book / f"{JOB}.json").write_text(json.dumps({**job, "message": "learned 0", "learned": learned}))
    return tmp_path / "model"


def answers(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(text))


@pytest.mark.parametrize("words", [("forget", "0"), ("compact", "--forget-history")])
def test_without_a_terminal_nothing_is_removed(ease: Any, model: Path, words: Any) -> None:
    line = refused(ease(*words, "--model", model))
    assert "--yes" in line
    assert "2 generations from 1 to 3, also generation 3, which came after the current one" in line
    assert Classifier.open(model).generations() == [1, 2, 3]
    assert "0" in Classifier.open(model).classes


def test_a_person_is_told_what_goes_and_may_say_no(
    ease: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "n\n")
    asked = ease("forget", "0", "--model", model)
    assert asked.code == 1
    assert "the class '0', learned from 3 images and its small picture" in asked.err
    assert "also generation 3" in asked.err
    assert f"its name in 1 job of {model}.jobs" in asked.err
    assert "nothing was changed" in asked.err
    assert Classifier.open(model).generations() == [1, 2, 3]


def test_a_person_says_yes_and_json_stays_json(
    ease: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "y\n")
    done = ease("forget", "0", "--model", model, "--json")
    assert done.code == 0
    assert json.loads(done.out)["name"] == "0"
    assert Classifier.open(model).classes == ["1", "2"]


def test_forgetting_without_a_server_leaves_no_name_in_the_jobs(ease: Any, model: Path) -> None:
    assert jobs_that_name(model, "0") == 1
    assert ease("forget", "0", "--model", model, "--yes").code == 0
    assert jobs_that_name(model, "0") == 0
    job = json.loads((model.with_name("model.jobs") / f"{JOB}.json").read_text())
    assert job["classes"] == job["learned"]["classes"] == ["1"]
    assert (job["learned"]["notes"], job["message"], job["error"]) == ([], "done", None)


@pytest.mark.parametrize(("standing", "given"), [("", "link"), ("model", "."), ("model/manifests", "..")])
def test_the_jobs_are_found_by_every_way_to_the_model(
    standing: str, given: str, ease: Any, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model.parent / "link").symlink_to(model)
    monkeypatch.chdir(model.parent / standing)
    assert f"its name in 1 job of {model}.jobs" in refused(ease("forget", "0", "--model", given))
    assert ease("forget", "0", "--yes", "--model", given).code == 0
    assert jobs_that_name(model, "0") == 0


def test_an_unknown_class_is_an_error_before_anybody_is_asked(ease: Any, model: Path) -> None:
    assert "unknown class 'zero'" in refused(ease("forget", "zero", "--model", model))


def test_a_dry_run_asks_nothing(ease: Any, model: Path) -> None:
    assert ease("compact", "--model", model, "--forget-history", "--dry-run").code == 0
    assert Classifier.open(model).generations() == [1, 2, 3]
