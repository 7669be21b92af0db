"""Digits as photos, and models small enough to learn in a second."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ease import Classifier
from ease.cli import main
from ease.streams.datasets import load_dataset

LIGHT: dict[str, Any] = {"layers": 1}
"""Settings of strata with 384 features instead of 1,536: the time of a whitening grows with their cube."""
QUICK: dict[str, Any] = {
    "input_size": 16,
    "augment": "gentle",
    "settings": {"epochs": 2, "rank": 4, **LIGHT},
}
EASE: dict[str, Any] = {**QUICK, "method": "ease", "settings": {"epochs": 2, "rank": 4}}
Digits = Callable[..., dict[str, list[np.ndarray]]]


@pytest.fixture(scope="session")
def digits() -> Digits:
    """Images of some digits by name, each uint8 [H, W, 3]."""
    data = load_dataset("digits", None, 40)

    def some(*names: str, count: int = 8, skip: int = 0) -> dict[str, list[np.ndarray]]:
        found = {}
        for name in names:
            own = data.train.of_classes([data.class_names.index(name)])
            found[name] = [own.image(i).permute(1, 2, 0).numpy() for i in range(skip, skip + count)]
        return found

    return some


@pytest.fixture(scope="session")
def pictures(digits: Digits) -> dict[str, list[np.ndarray]]:
    """12 images of each digit."""
    return {f"d{name}": own for name, own in digits(*"0123456789", count=12).items()}


@pytest.fixture(scope="session")
def served_model(tmp_path_factory: pytest.TempPathFactory, pictures: dict[str, list[np.ndarray]]) -> Path:
    """A model of four digits. Its later trainings never end; with so few images per class there was none yet."""
    path = tmp_path_factory.mktemp("served") / "model"
    model = Classifier.create(
        path, method="ease", input_size=16, augment="gentle", settings={"epochs": 1_000_000, "rank": 4}
    )
    model.learn({name: pictures[name][:4] for name in ("d0", "d1")})
    model.learn({name: pictures[name][:4] for name in ("d2", "d3")})
    return path


@pytest.fixture
def model(served_model: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(served_model, tmp_path / "model"))


def write_folder(root: Path, classes: dict[str, list[np.ndarray]]) -> Path:
    for name, images in classes.items():
        (root / name).mkdir(parents=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(root / name / f"{number:03d}.png")
    return root


@pytest.fixture
def grown(tmp_path: Path, digits: Digits) -> Classifier:
    """Five digits, then three more."""
    return _grown(tmp_path / "model", digits, QUICK)


@pytest.fixture
def grown_ease(tmp_path: Path, digits: Digits) -> Classifier:
    """The same with the paper's method, which has a subspace for each of the two."""
    return _grown(tmp_path / "model", digits, EASE)


def _grown(path: Path, digits: Digits, making: dict[str, Any]) -> Classifier:
    classifier = Classifier.create(path, **making)
    classifier.learn(digits("0", "1", "2", "3", "4", count=12))
    classifier.learn(digits("5", "6", "7", count=12))
    return classifier


class Outcome:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def ease(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # type: ignore[no-untyped-def]
    def run(*words: object) -> Outcome:
        monkeypatch.setattr("sys.argv", ["ease", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


def refused(outcome: Outcome) -> str:
    assert outcome.code == 2, outcome.out + outcome.err
    (line,) = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    assert "Traceback" not in outcome.err
    return line
