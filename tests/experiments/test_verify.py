"""Agreement with the authors' released code."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from ease.errors import EaseError
from ease.experiments.verify import verify_file

FILES = ["default", "diagonal", "exemplar_bound", "large_base", "no_recalc", "no_reweight", "with_ptm"]


@pytest.mark.parametrize("name", FILES)
def test_prototypes_and_logits_agree_with_the_released_code(name: str, golden_folder: Path) -> None:
    found = verify_file(golden_folder / f"{name}.npz")
    assert found.within()
    assert max(found.prototypes, found.logits) <= 1e-5
    assert found.argmax == 0
    assert found.accuracy < 0.01


def test_training_agrees_with_the_released_code(golden_folder: Path) -> None:
    found = verify_file(golden_folder / "default.npz", train=True)
    assert found.adapters is not None
    assert found.adapters <= 1e-4
    assert found.within()


def test_a_changed_prototype_is_noticed(golden_folder: Path, tmp_path: Path) -> None:
    shutil.copy(golden_folder / "common.npz", tmp_path)
    with np.load(golden_folder / "default.npz") as content:
        arrays = {name: content[name] for name in content.files}
    arrays["task2/prototypes"][3, 50] += 1e-3
    np.savez(tmp_path / "bent.npz", **arrays)
    assert not verify_file(tmp_path / "bent.npz").within()


def test_what_is_no_golden_file_is_one_line(golden_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="does not exist"):
        verify_file(tmp_path / "nothing.npz")
    (tmp_path / "text.npz").write_text("hello")
    shutil.copy(golden_folder / "common.npz", tmp_path)
    with pytest.raises(EaseError, match="cannot be read"):
        verify_file(tmp_path / "text.npz")
    with pytest.raises(EaseError, match="not a golden file"):
        verify_file(tmp_path / "common.npz")


def test_nan_never_agrees(golden_folder: Path, tmp_path: Path) -> None:
    shutil.copy(golden_folder / "common.npz", tmp_path)
    with np.load(golden_folder / "large_base.npz") as content:
        arrays = {name: content[name] for name in content.files}
    arrays["task0/prototypes"][:] = np.nan
    np.savez(tmp_path / "nan.npz", **arrays)
    assert not verify_file(tmp_path / "nan.npz").within()


@pytest.mark.parametrize(
    "change",
    [
        {"config": np.array("[" * 5000)},
        {"config": np.array("[]")},
        {"config": np.array('{"init_cls": 2}')},
        {"class_order": np.array(["a"])},
        {"class_order": np.array([0, 0, 1])},
        {"task0/logits": np.zeros(3)},
        {"task1/labels": np.array(["x"])},
        {"task0/prototypes": np.array(7)},
        {"task0/adapters/0.down_proj.weight": np.zeros((1, 1))},
        {"task0/adapters/nonsense": np.zeros(1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_damaged_golden_file_is_one_line(
    change: dict[str, np.ndarray], golden_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(golden_folder / "common.npz", tmp_path)
    with np.load(golden_folder / "large_base.npz") as content:
        arrays = {name: content[name] for name in content.files}
    np.savez(tmp_path / "bent.npz", **{**arrays, **change})
    with pytest.raises(EaseError) as error:
        verify_file(tmp_path / "bent.npz")
    assert len(str(error.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("heads", 0),
        ("heads", 2**70),
        ("increment", -1),
        ("init_cls", 10**9),
        ("curve", []),
        ("curve", None),
        ("seed", -5),
        ("optimizer", "x"),
        ("ffn_num", 2**40),
        ("alpha", "x"),
    ],
)
def test_a_damaged_golden_configuration_is_one_line(
    key: str, value: object, golden_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(golden_folder / "common.npz", tmp_path)
    with np.load(golden_folder / "large_base.npz") as content:
        arrays = {name: content[name] for name in content.files}
    config = {**json.loads(str(arrays["config"])), key: value}
    np.savez(tmp_path / "bent.npz", **{**arrays, "config": np.array(json.dumps(config))})
    with pytest.raises(EaseError) as error:
        verify_file(tmp_path / "bent.npz")
    assert len(str(error.value).splitlines()) == 1
