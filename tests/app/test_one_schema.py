"""One schema for what a model says: Python, the command line in all formats and HTTP say the same in all fields."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ease import Classifier, Prediction
from ease.app.prediction import Predictions
from tests.app.conftest import LIGHT, Digits, Outcome
from tests.app.serving import serving

FORMAT = Path(__file__).parents[2] / "docs" / "format.md"
TOP = 2
NUMBERS = {".csv": 6e-5, ".jsonl": 1e-5, ".parquet": 1e-5}
"""How far numbers may be from those of Python: CSV has four digits, and batches differ in rounding."""
FLAGS = ("calibrated", "corrected", "is_unknown")


def documented() -> list[str]:
    """The fields in the table of the page on file formats."""
    section = FORMAT.read_text(encoding="utf-8").split("## Predictions\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.fixture
def photos(tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A known digit, one that is unknown, one that a person has named, and a file that is no image."""
    monkeypatch.chdir(tmp_path)
    shown = {"known.png": digits("0", skip=20)["0"][0], "named.png": digits("1", skip=20)["1"][1]}
    for name, pixels in shown.items():
        Image.fromarray(pixels).save(name)
    noise = np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8)
    Image.fromarray(noise).save("noise.png")
    Path("=bad.png").write_bytes(b"no image")
    return ["known.png", "named.png", "noise.png", "=bad.png"]


@pytest.fixture
def trained(tmp_path: Path, digits: Digits, photos: list[str]) -> Classifier:
    model = Classifier.create(tmp_path / "model", input_size=16, settings=LIGHT)
    model.learn(digits("0", "1", "2", count=10))
    model.correct(photos[1], "2")
    return Classifier.open(model.path)


def rows_of_csv(text: str) -> list[dict[str, Any]]:
    """Lines of CSV as the schema has them."""
    rows = []
    for line in csv.DictReader(io.StringIO(text)):
        pairs = [
            ("name", "confidence"),
            *((f"name_{rank}", f"confidence_{rank}") for rank in range(2, TOP + 1)),
        ]
        classes = [{"name": line.pop(n), "confidence": line.pop(c)} for n, c in pairs]
        row: dict[str, Any] = {
            **line,
            "classes": [
                {**each, "confidence": float(each["confidence"])} for each in classes if each["name"]
            ],
        }
        row |= {flag: {"true": True, "false": False}[row[flag]] for flag in FLAGS}
        row |= {"unknown": float(row["unknown"]) if row["unknown"] else None, "error": row["error"] or None}
        row |= {"threshold": float(row["threshold"]), "generation": int(row["generation"])}
        row["file"] = row["file"].removeprefix("'")  # that spreadsheets take no cell for a formula
        rows.append(row)
    return rows


def rows_of(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".csv":
        return rows_of_csv(path.read_text(encoding="utf-8"))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found: list[dict[str, Any]] = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    return found


def check_same(found: list[dict[str, Any]], expected: list[dict[str, Any]], within: float) -> None:
    """The same fields and values; numbers within a distance."""
    for one, other in zip(found, expected, strict=True):
        assert set(one) == set(documented()), one["file"]
        one, other = dict(one), dict(other)
        classes, wanted = one.pop("classes"), other.pop("classes")
        assert [set(each) for each in classes] == [{"name", "confidence"}] * len(wanted)
        assert [each["name"] for each in classes] == [each["name"] for each in wanted]
        sure, unknown = [each["confidence"] for each in classes], one.pop("unknown")
        assert sure == pytest.approx([each["confidence"] for each in wanted], abs=within)
        assert (unknown is None) == (other["unknown"] is None)
        assert unknown == (None if unknown is None else pytest.approx(other["unknown"], abs=within))
        other.pop("unknown")
        assert one == other


def test_every_way_says_the_same_in_every_documented_field(
    ease: Callable[..., Outcome], trained: Classifier, photos: list[str], tmp_path: Path
) -> None:
    assert set(documented()) == {*Prediction.model_fields, *Prediction.model_computed_fields}
    python = [
        {**one.model_dump(mode="json"), "file": name}
        for name, one in zip(
            photos[:3], trained.predict([Path(name) for name in photos[:3]], top_k=TOP), strict=True
        )
    ]
    assert [one["corrected"] for one in python] == [False, True, False]
    assert [one["is_unknown"] for one in python] == [False, False, True]

    done = ease("predict", *photos, "--model", trained.path, "--top", TOP, "--json")
    assert done.code == 1
    printed = json.loads(done.out)
    assert set(printed) == set(Predictions.model_fields)
    assert printed["generation"] == trained.generation
    failed = printed["predictions"][-1]
    assert (failed["file"], failed["classes"], failed["unknown"]) == ("=bad.png", [], None)
    assert failed["error"]
    expected = [*python, failed]
    check_same(printed["predictions"], expected, 1e-5)

    with serving(trained.path, inbox=True) as world:
        files = [("image", (name, Path(name).read_bytes())) for name in photos[:3]]
        answer = world.client.post(f"/predict?top={TOP}", files=files).json()
        described = world.get("/openapi.json")["components"]["schemas"]
    assert {**answer, "predictions": []} == {**printed, "predictions": []}
    check_same(answer["predictions"], python, 1e-5)
    for name, schema in (("Prediction", Prediction), ("Predictions", Predictions)):
        fields = schema.model_json_schema(mode="serialization")["properties"]
        assert set(described[name]["properties"]) == set(fields)

    for ending, within in NUMBERS.items():
        out = tmp_path / f"rows{ending}"
        assert ease("predict", *photos, "--model", trained.path, "--top", TOP, "--out", out).code == 1
        rows = rows_of(out)
        assert [row.pop("generation") for row in rows] == [trained.generation] * len(photos)
        check_same(rows, expected, within)
