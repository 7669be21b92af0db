"""Growing a classifier from the command line."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.app.conftest import Digits, refused, write_folder

QUICK = ["--input-size", "16", "--augment", "gentle", "--set", "epochs=2", "--set", "rank=4"]


def test_the_story_of_a_model(ease, digits: Digits, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    march = write_folder(tmp_path / "march", digits("0", "1", "2", "3", "4", count=12))
    april = write_folder(tmp_path / "april", digits("5", "6", "7", count=12))
    test = write_folder(tmp_path / "test", digits("0", "5", "6", "8", count=6, skip=20))
    model = tmp_path / "model"
    first = ease("learn", march, "--model", model, "--method", "ease", *QUICK)
    assert first.code == 0, first.err
    assert "learned 5 new classes from 55 images; the model has 5 classes" in first.out
    assert "% of 5 held-out images of the new classes" in first.out
    told = json.loads(ease("learn", april, "--model", model, "--json").out)
    assert told["classes"] == ["5", "6", "7"]

    answer = json.loads(ease("predict", test / "5" / "000.png", test / "6", "--model", model, "--json").out)
    assert answer["generation"] == told["generation"]
    limited = ease("predict", test / "6", "--model", model, "--budget", "1", "--json")
    assert json.loads(limited.out)["predictions"] != answer["predictions"][1:]
    exact = ease("predict", test / "6", "--model", model, "--budget", "2", "--json")
    assert json.loads(exact.out)["predictions"] == answer["predictions"][1:]
    shown = ease("info", model).out
    assert "task 2: 5, 6, 7" in shown
    assert f"{told['date'][:10]}: 3 classes, 33 images; " in shown
    assert "of 3 held-out images recognised then" in shown
    assert len(answer["predictions"]) == 7
    assert len(answer["predictions"][0]["classes"]) == 5
    rows = list(
        csv.DictReader(io.StringIO(ease("predict", test / "6", "--model", model, "--csv", "--top", 2).out))
    )
    assert len(rows) == 12
    assert rows[0]["class"] == answer["predictions"][1]["classes"][0]["name"]

    out = tmp_path / "scores"
    scored = ease("eval", "--model", model, test, "--out", out)
    assert scored.code == 0, scored.err
    assert "% of 18 images, 8 classes" in scored.out
    assert "images of unknown classes (8)" in scored.out
    page = (out / "evaluation.html").read_text()
    assert "data:image/jpeg" in page
    table = list(csv.reader((out / "confusion.csv").read_text().splitlines()))
    assert sum(int(cell) for row in table[1:] for cell in row[1:]) == 18
    found = json.loads((out / "evaluation.json").read_text())
    right = sum(found["confusion"][i][i] for i in range(8))
    assert found["accuracy"] == pytest.approx(100 * right / 18)
    assert 0 <= found["auroc"] <= 1

    assert "renamed '0' to 'zero'" in ease("rename", "0", "zero", "--model", model).out
    assert "forgot 'zero'" in ease("forget", "zero", "--model", model, "--yes").out
    assert "zero" not in ease("info", model).out
    listed = ease("rollback", "--model", model).out
    assert len(listed.splitlines()) == 1  # forgetting clears what came before
    assert ease("learn", march / "0" / "..", "--model", model).code == 2


def test_extending_and_rolling_back(ease, digits: Digits, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder, model = write_folder(tmp_path / "a", digits("0", "1", count=6)), tmp_path / "model"
    assert ease("learn", folder, "--model", model, *QUICK).code == 0
    assert "is known already" in refused(ease("learn", folder, "--model", model))
    more = ease("learn", folder, "--model", model, "--extend")
    assert "learned more of 2 known classes from 12 images; the model has 2 classes" in more.out
    lines = ease("rollback", "--model", model).out.splitlines()
    assert [line[0] for line in lines] == [" ", "*"]
    assert "is at generation 1: 2 classes" in ease("rollback", "--model", model, 1).out
    assert "no generation 9" in refused(ease("rollback", "--model", model, 9))


def test_a_first_learning_that_fails_leaves_nothing_and_its_advice_can_be_followed(  # type: ignore[no-untyped-def]
    ease, digits: Digits, tmp_path: Path
) -> None:
    folder, model = write_folder(tmp_path / "a", digits("0", "1", count=6)), tmp_path / "new" / "model"
    words = ("learn", folder, "--model", model, "--method", "ease", *QUICK)
    assert "lower the rate with --set lr=" in refused(ease(*words, "--set", "lr=1e9"))
    assert not model.parent.exists()
    assert ease(*words, "--set", "lr=0.01").code == 0
    assert len(ease("rollback", "--model", model).out.splitlines()) == 1


def test_wrong_inputs_are_one_line_and_write_nothing(ease, digits: Digits, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    folder, model = write_folder(tmp_path / "a", digits("0", "1", count=6)), tmp_path / "model"
    assert "does not exist" in refused(ease("learn", tmp_path / "nothing", "--model", model))
    (tmp_path / "empty").mkdir()
    refused(ease("learn", tmp_path / "empty", "--model", model))
    (folder / "1" / "bad.jpg").write_text("no image")
    assert "bad.jpg" in refused(ease("learn", folder, "--model", model, *QUICK))
    assert not model.exists()
    skipped = ease("learn", folder, "--model", model, "--unreadable", "skip", *QUICK)
    assert skipped.code == 0
    assert "bad.jpg" in skipped.out
    assert "--seed 7 is not what the model in" in refused(
        ease("learn", folder, "--model", model, "--seed", 7)
    )
    assert "no model in" in refused(ease("predict", folder / "0", "--model", tmp_path / "none"))
    assert "bad.jpg" in refused(ease("predict", folder / "1" / "bad.jpg", "--model", model))
    assert "does not exist" in refused(ease("predict", tmp_path / "no.png", "--model", model))
    assert "give a folder of photos" in refused(ease("eval", "--model", model))
    other = write_folder(tmp_path / "other", digits("8", count=2))
    assert "is a class of the model" in refused(ease("eval", "--model", model, other))
    assert "unknown class 'zero'" in refused(ease("forget", "zero", "--model", model))


def test_names_are_text_on_the_page(ease, digits: Digits, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    images = digits("0", "1", count=6)
    folder = write_folder(tmp_path / "a", {"<b>bold<script>": images["0"], "one": images["1"]})
    mixed = write_folder(tmp_path / "t", {"<b>bold<script>": images["1"], "one": images["0"]})
    assert ease("learn", folder, "--model", tmp_path / "m", *QUICK).code == 0
    assert ease("eval", "--model", tmp_path / "m", mixed, "--out", tmp_path / "o").code == 0
    page = (tmp_path / "o" / "evaluation.html").read_text()
    assert "<script>" not in page
    assert "&lt;b&gt;bold&lt;script&gt;" in page
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(tmp_path / "x.png")
    assert "<b>bold<script>" in ease("predict", tmp_path / "x.png", "--model", tmp_path / "m").out


@pytest.mark.parametrize("method", ["simplecil", "l2p", "APER-adapter"])
def test_any_exemplar_free_method_grows_a_model(ease, digits: Digits, tmp_path: Path, method: str) -> None:  # type: ignore[no-untyped-def]
    model = tmp_path / "model"
    quick = [
        "--method",
        method,
        "--input-size",
        "16",
        *(["--set", "epochs=1"] if method != "simplecil" else []),
    ]
    for number, names in enumerate(("01", "23")):
        folder = write_folder(tmp_path / names, digits(*names, count=6))
        done = ease("learn", folder, "--model", model, *(quick if number == 0 else []))
        assert done.code == 0, done.err
    found = json.loads(ease("predict", folder, "--model", model, "--json").out)
    assert {each["name"] for each in found["predictions"][0]["classes"]} == set("0123")


def test_a_method_is_no_setting_and_only_its_own_settings_are_taken(
    ease, digits: Digits, tmp_path: Path
) -> None:  # type: ignore[no-untyped-def]
    folder, model = write_folder(tmp_path / "a", digits("0", "1", count=6)), tmp_path / "model"
    words = ("learn", folder, "--model", model)
    assert "--method" in refused(ease(*words, "--set", "method=ease"))
    assert "did you mean 'layers'" in refused(ease(*words, "--set", "layer=2"))
    assert "unknown setting of method 'strata' 'dataset'" in refused(ease(*words, "--set", "dataset=digits"))
    assert "icarl" in refused(ease(*words, "--method", "icarl"))
    assert "joint" in refused(ease(*words, "--method", "joint"))
    assert not model.exists()
