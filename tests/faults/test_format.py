"""docs/format.md is enough to read a model: this reader uses json, hashlib and safetensors, and nothing of ease."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load

from ease import Classifier
from tests.faults.specification import CREATE, digits

IMAGES = digits()
PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.safetensors")


def encoded(value: Any) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def read_manifest(path: Path) -> dict[str, Any]:
    raw = path.read_bytes()
    manifest = json.loads(raw)
    assert manifest["format"] == 1
    body = {key: value for key, value in manifest.items() if key != "checksum"}
    assert encoded({**body, "checksum": hashlib.sha256(encoded(body)).hexdigest()}) == raw
    return dict(manifest)


def read_files(folder: Path, manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    found = {}
    for name, entry in manifest["files"].items():
        assert PATH.fullmatch(entry["path"])
        data = (folder / entry["path"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["size"], entry["sha256"])
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        assert header["__metadata__"] == {"ease.model": name}
        found[name] = load(data)
    return found


@pytest.fixture
def model(tmp_path: Path) -> Classifier:
    made = Classifier.create(tmp_path / "model", **CREATE)  # type: ignore[arg-type]
    made.learn({"é": IMAGES[:6], "two": IMAGES[6:12]}, thumbnails=True)
    made.learn({"three": IMAGES[12:15]})
    made.forget("two")
    return made


def test_a_model_is_what_the_specification_says(model: Classifier) -> None:
    manifest = read_manifest(model.path / "manifest.json")
    generation = manifest["generation"]
    assert manifest == read_manifest(model.path / "manifests" / f"{generation:04d}.json")
    assert [(entry["id"], entry["name"]) for entry in manifest["classes"]] == [(0, "é"), (2, "three")]
    assert manifest["learner"]["task_sizes"] == [1, 1]
    assert manifest["next_id"] == 3
    assert manifest["clears_history"] is True
    files = read_files(model.path, manifest)
    means = np.concatenate([files[f"prototypes/{task:04d}"]["means"] for task in range(2)])
    width = means.shape[1]
    assert files["learner/scatter"]["scatter"].shape == (width * (width + 1) // 2,)
    scatter = np.zeros((width, width), np.float32)
    scatter[np.tril_indices(width)] = files["learner/scatter"]["scatter"]
    assert np.allclose(means, model.learner.sums.means.numpy())  # type: ignore[attr-defined]
    whole = model.learner.sums.scatter.numpy()  # type: ignore[attr-defined]
    assert np.allclose(scatter, np.tril(whole))
    assert bytes(files[manifest["kept_images"]["0"]]["jpeg"])[:2] == b"\xff\xd8"


def test_the_keys_of_a_manifest_are_those_of_the_page(model: Classifier) -> None:
    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    for key in read_manifest(model.path / "manifest.json"):
        assert f"`{key}`" in page, key


def test_the_keys_of_a_record_are_those_of_the_page() -> None:
    from ease.experiments.record import RunRecord

    page = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
    for key in set(RunRecord.model_fields) - {"label"}:
        assert f"`{key}`" in page, key
