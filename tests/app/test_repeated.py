"""The same `ease learn` line every month: options may be repeated, and the weights file need not be named again."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import timm
from safetensors.torch import save_file

from ease import Classifier
from ease.errors import EaseError
from ease.methods import BACKBONE_FILE, open_model, remembered_weights
from ease.storage.model_directory import ModelDirectory
from tests.app.conftest import Digits, refused, write_folder
from tests.backbone.small_vits import randomised
from tests.backbone.test_zoo import no_network  # noqa: F401

OPTIONS = ("--input-size", 16, "--augment", "gentle", "--method", "strata", "--seed", 7, "--set", "layers=3")
VIT = "test_vit"  # timm's own smallest


@pytest.fixture
def months(tmp_path: Path, digits: Digits) -> tuple[Path, Path]:
    march = write_folder(tmp_path / "march", digits("0", "1", count=6))
    return march, write_folder(tmp_path / "april", digits("2", "3", count=6))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "downloads").mkdir()
    path = tmp_path / "downloads" / "small.safetensors"
    save_file(randomised(timm.create_model(VIT, num_classes=5), std=0.05).state_dict(), path)
    return path


def test_the_same_line_works_every_month(ease: Any, months: tuple[Path, Path], tmp_path: Path) -> None:
    march, april = months
    for folder in (march, april):
        done = ease(
            "learn", folder, "--model", tmp_path / "model", *OPTIONS, "--backbone", "ease-vit", "--tune"
        )
        assert done.code == 0, done.err
    model = Classifier.open_or_create(tmp_path / "model", "ease-vit", input_size=16, settings={"layers": 3})
    assert model.classes == ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (("--augment", "photos"), ("--augment photos", "gentle")),
        (("--input-size", 32), ("--input-size 32", "16")),
        (("--method", "ease"), ("--method ease", "strata")),
        (("--backbone", VIT), (f"--backbone {VIT}", "ease-vit")),
        (("--seed", 8), ("--seed 8", "7")),
        (("--set", "layers=2"), ("--set layers=2", "3")),
    ],
)
def test_another_value_is_refused_and_both_are_named(
    ease: Any, tmp_path: Path, months: tuple[Path, Path], words: Any, both: tuple[str, str]
) -> None:
    march, april = months
    assert ease("learn", march, "--model", tmp_path / "model", *OPTIONS).code == 0
    line = refused(ease("learn", april, "--model", tmp_path / "model", *words))
    assert f"{both[0]} is not what the model" in line
    assert f"which is {both[1]}:" in line
    assert ModelDirectory(tmp_path / "model").manifest().generation == 1


def test_tuning_later_than_at_the_beginning_is_refused(
    ease: Any, tmp_path: Path, months: tuple[Path, Path]
) -> None:
    march, april = months
    assert ease("learn", march, "--model", tmp_path / "model", "--input-size", 16).code == 0
    line = refused(ease("learn", april, "--model", tmp_path / "model", "--tune"))
    assert "has learned already without it" in line


@pytest.fixture
def learned(ease: Any, tmp_path: Path, months: tuple[Path, Path], weights: Path) -> Path:
    model = tmp_path / "models" / "model"
    words = ("--backbone", VIT, "--weights", weights, "--input-size", 32)
    assert ease("learn", months[0], "--model", model, *words).code == 0
    return model


@pytest.mark.usefixtures("no_network")
def test_the_weights_file_is_named_once(
    ease: Any, tmp_path: Path, months: tuple[Path, Path], learned: Path, weights: Path
) -> None:
    march, april = months
    path, sha256 = remembered_weights(ModelDirectory(learned))
    assert path == weights
    assert sha256 is not None
    for words in (
        ("learn", april, "--model", learned, "--backbone", VIT, "--input-size", 32),
        ("learn", march, "--model", learned, "--extend", "--weights", weights),
        ("predict", march / "0", "--model", learned),
        ("eval", march, "--model", learned),
        ("compact", "--model", learned, "--storage", "fp16"),
        ("rename", "0", "zero", "--model", learned),
        ("info", learned),
        ("pack", learned, "--out", tmp_path / "packed.ease"),
    ):
        done = ease(*words)
        assert done.code == 0, done.err
    open_model(learned)


@pytest.mark.usefixtures("no_network")
def test_a_packed_model_has_no_path_of_this_machine(ease: Any, tmp_path: Path, learned: Path) -> None:
    assert ease("pack", learned, "--out", tmp_path / "packed.ease").code == 0
    with zipfile.ZipFile(tmp_path / "packed.ease") as archive:
        for name in archive.namelist():
            assert str(tmp_path).encode() not in archive.read(name)
    assert ease("unpack", tmp_path / "packed.ease", tmp_path / "again").code == 0
    assert remembered_weights(ModelDirectory(tmp_path / "again")) == (None, None)
    assert Classifier.open(tmp_path / "again").classes == ["0", "1"]


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "place", ["a file", "a folder", "a folder, by the backbone's name", "beside the model"]
)
def test_a_file_that_was_moved_is_found_elsewhere(
    tmp_path: Path, learned: Path, weights: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    target = {
        "a file": elsewhere / "renamed.safetensors",
        "a folder": elsewhere / weights.name,
        "a folder, by the backbone's name": elsewhere / f"{VIT}.safetensors",
        "beside the model": learned.parent / weights.name,
    }[place]
    weights.rename(target)
    if place != "beside the model":
        with pytest.raises(EaseError, match="EASE_WEIGHTS"):
            Classifier.open(learned)
        monkeypatch.setenv("EASE_WEIGHTS", str(target if place == "a file" else elsewhere))
    assert Classifier.open(learned).classes == ["0", "1"]


@pytest.mark.usefixtures("no_network")
def test_the_error_names_every_place_and_wrong_weights_are_never_used(
    ease: Any, tmp_path: Path, months: tuple[Path, Path], learned: Path, weights: Path, monkeypatch: Any
) -> None:
    other = randomised(timm.create_model(VIT, num_classes=0), std=0.04).state_dict()
    weights.unlink()
    save_file(other, weights)
    save_file(other, learned.parent / f"{VIT}.safetensors")
    monkeypatch.setenv("EASE_WEIGHTS", str(tmp_path / "no-such"))
    line = refused(ease("predict", months[0] / "0", "--model", learned))
    assert f"'{weights}' (its weights differ)" in line
    assert f"EASE_WEIGHTS '{tmp_path / 'no-such'}' (no such file)" in line
    assert f"beside the model '{learned.parent / VIT}.safetensors' (its weights differ)" in line
    assert "the hub (" in line
    assert "--weights" in line
    assert str(remembered_weights(ModelDirectory(learned))[1]) in line
    assert "learned on another" in refused(
        ease("predict", months[0] / "0", "--model", learned, "--weights", weights)
    )


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    "content", ["", "[]", '{"path": 3}', '{"path": "/dev/zero"}', '{"path": "a\\u0000b"}']
)
def test_a_broken_note_of_the_path_does_no_harm(learned: Path, weights: Path, content: str) -> None:
    (learned / "weights.json").write_text(content)
    with pytest.raises(EaseError, match="tried"):
        Classifier.open(learned)
    assert Classifier.open(learned, weights).classes == ["0", "1"]


def test_reading_writes_no_note_and_writing_renews_it(
    ease: Any, tmp_path: Path, learned: Path, weights: Path
) -> None:
    moved = weights.rename(tmp_path / "moved.safetensors")
    before = (learned / "weights.json").read_bytes()
    Classifier.open(learned, moved)
    assert (learned / "weights.json").read_bytes() == before
    assert ease("rename", "0", "zero", "--model", learned, "--weights", moved).code == 0
    assert json.loads((learned / "weights.json").read_text())["path"] == str(moved)
    assert not (learned / BACKBONE_FILE).exists()
