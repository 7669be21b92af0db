"""What `ease info` says of saved models, from their manifests alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ease.app.compact import Compaction, compact
from ease.reporting.describe import describe_model
from tests.test_cli import ease, refused


def run(folder: Path, *words: str) -> Path:
    result = ease(
        *(
            "run",
            "--dataset",
            "digits",
            "--protocol",
            "B0 Inc5",
            "--limit-per-class",
            "6",
            "--input-size",
            "16",
        ),
        *("--set", "epochs=1", "--set", "rank=4", *words, "--out", folder),
    )
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("plain") / "run", "--method", "strata")


def test_strata_takes_one_pass_and_says_what_its_bytes_are(plain: Path) -> None:
    found = json.loads(ease("info", plain, "--json").stdout)
    assert (found["method"], found["passes_per_image"], found["adapted"]) == ("strata", 1, False)
    assert found["bytes_by_kind"].keys() == {"prototypes", "learner"}
    assert sum(found["bytes_by_kind"].values()) == found["bytes"]
    width = 2 * 4 * 192  # class tokens and mean patch tokens of four blocks
    assert found["bytes_by_kind"]["learner"] == pytest.approx(4 * width * (width + 1) / 2, rel=1e-3)
    assert found["storages"] == []
    told = ease("info", plain).stdout.splitlines()
    assert told[0] == "strata on ease-vit, generation 2, 10 classes"
    assert told[-2].endswith("1 pass per image")
    assert "within-class covariance 4.72 MB" in told[-2]
    assert told[-1] == "backbone not adapted"


def test_a_compacted_model_says_so(plain: Path, tmp_path: Path) -> None:
    shutil.copytree(plain / "model", tmp_path / "model")
    compact(tmp_path / "model", Compaction("int8"))
    assert describe_model(tmp_path / "model")["storages"] == ["fp16", "int8"]  # means and factor
    assert "stored as fp16 and int8" in ease("info", tmp_path / "model").stdout


def test_an_adapter_is_told(tmp_path: Path) -> None:
    found = run(tmp_path / "run", "--method", "strata", "--set", "adapt=first")
    told = describe_model(found)
    assert told["adapted"] is True
    assert told["passes_per_image"] == 1
    assert told["bytes_by_kind"]["subspaces"] > 0
    assert ease("info", found).stdout.splitlines()[-1] == "backbone adapted to the first classes"


def test_other_methods_have_no_such_choice(tmp_path: Path) -> None:
    found = run(tmp_path / "run", "--method", "ease")
    told = describe_model(found)
    assert told["adapted"] is None
    assert told["bytes_by_kind"].keys() == {"subspaces", "prototypes"}
    assert ease("info", found).stdout.splitlines()[-1].endswith("2 passes per image")


def test_what_is_no_model_is_one_line(tmp_path: Path) -> None:
    assert "holds no model" in refused(ease("info", tmp_path))
