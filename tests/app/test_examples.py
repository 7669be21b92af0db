"""The examples run, and the notebook was executed without an error."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from ease import Classifier
from tests.app.conftest import QUICK, Digits, write_folder

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_script_tells_a_story(
    tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for month, names in {"march": "01", "april": "23", "may": "45"}.items():
        write_folder(tmp_path / month, digits(*names, count=8))
    write_folder(tmp_path / "test", digits(*"012345", count=3, skip=20))
    write_folder(tmp_path / "test-march", digits(*"01", count=3, skip=20))
    create = Classifier.create
    monkeypatch.setattr(Classifier, "create", lambda path, augment: create(path, **QUICK))
    runpy.run_path(str(EXAMPLES / "monthly.py"))["main"](tmp_path, tmp_path / "model")
    said = capsys.readouterr().out
    assert "may: learned 4, 5" in said
    assert "forgot 0" in said
    assert Classifier.open(tmp_path / "model").classes == list("12345")


def test_the_folders_are_as_the_documents_say(tmp_path: Path) -> None:
    runpy.run_path(str(EXAMPLES / "glyph_folders.py"))["main"](tmp_path / "photos")
    assert sorted(p.name for p in (tmp_path / "photos").iterdir()) == [
        *("april", "march", "may", "test", "test-march", "test-with-strangers"),
    ]
    assert len(list((tmp_path / "photos" / "march").glob("*/*.png"))) == 150
    assert len(list((tmp_path / "photos" / "test-with-strangers").iterdir())) == 20


def test_the_notebook_was_executed() -> None:
    notebook = json.loads((EXAMPLES / "monthly.ipynb").read_text())
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert not any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
    assert sum(bool(cell["outputs"]) for cell in cells) >= 4
