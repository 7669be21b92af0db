"""The precision of models of the app: chosen by the machine, written down, and free to change from day to day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ease import Classifier, EaseClassifier
from ease.app.bulk import place_inputs, predict_to_file
from ease.app.export import export_onnx
from ease.errors import EaseError
from ease.experiments.predictor import evaluate_model
from ease.methods import open_model
from ease.storage.manifest import decode_manifest, sealed
from ease.storage.model_directory import ModelDirectory
from tests.app.conftest import EASE, LIGHT, QUICK, Digits, refused, write_folder

NATIVE = {"architecture": "x86_64", "avx512_bf16": True}
EMULATING = {"architecture": "x86_64", "avx512_bf16": False}
BOTH = ("32-true", "bf16-mixed")


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that has bf16, and nothing in the environment."""
    monkeypatch.delenv("EASE_PRECISION", raising=False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: NATIVE, raising=False)


@pytest.fixture
def emulating(monkeypatch: pytest.MonkeyPatch, native: None) -> None:
    """A machine that only emulates bf16."""
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: EMULATING, raising=False)


def written(path: Path) -> Any:
    return json.loads((path / "manifest.json").read_text())["precision"]


def test_a_new_model_computes_in_bf16_where_the_machine_does_and_says_so(
    tmp_path: Path, digits: Digits
) -> None:
    model = Classifier.create(tmp_path / "model", **QUICK)
    model.learn(digits("0", "1"))
    assert model.precision == written(tmp_path / "model") == "bf16-mixed"


def test_where_bf16_is_emulated_it_computes_in_fp32(tmp_path: Path, digits: Digits, emulating: None) -> None:
    model = Classifier.create(tmp_path / "model", **QUICK)
    model.learn(digits("0", "1"))
    assert model.precision == written(tmp_path / "model") == "32-true"


def test_the_environment_decides_where_nothing_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EASE_PRECISION", "32-true")
    assert Classifier.create(tmp_path / "model", **QUICK).precision == "32-true"
    assert Classifier.open(tmp_path / "model").precision == "32-true"
    assert Classifier.open(tmp_path / "model", precision="auto").precision == "bf16-mixed"


def test_an_unknown_precision_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="precision"):
        Classifier.create(tmp_path / "model", precision="fp8", **QUICK)  # type: ignore[arg-type]
    assert not (tmp_path / "model").exists()


def test_the_manifest_says_what_was_last_learned_in_and_not_what_was_opened_in(
    tmp_path: Path, digits: Digits
) -> None:
    path = tmp_path / "model"
    Classifier.create(path, precision="32-true", **QUICK).learn(digits("0", "1"))
    model = Classifier.open(path)
    assert model.precision == "bf16-mixed"
    model.rename("0", "zero")
    assert written(path) == "32-true"
    model.learn(digits("2"))
    assert written(path) == "bf16-mixed"
    model.rollback(2)
    assert written(path) == "32-true"
    model.rename("1", "one")
    assert written(path) == "32-true"


def test_a_failed_learning_leaves_the_precision_of_the_last_one(tmp_path: Path, digits: Digits) -> None:
    path = tmp_path / "model"
    Classifier.create(path, precision="32-true", **QUICK).learn(digits("0", "1"))
    model = Classifier.open(path)
    with pytest.raises(EaseError, match="known already"):
        model.learn(digits("0"))
    model.rename("0", "zero")
    assert written(path) == "32-true"


def test_a_manifest_of_an_earlier_version_means_fp32(tmp_path: Path, digits: Digits) -> None:
    path = tmp_path / "model"
    Classifier.create(path, precision="32-true", **QUICK).learn(digits("0", "1"))
    without_field(path)
    assert ModelDirectory(path).manifest().learned_in == "32-true"
    learner, _ = open_model(path)
    assert learner.engine.precision == "32-true"
    model = Classifier.open(path)
    model.rename("0", "zero")
    assert written(path) == "32-true"


def without_field(path: Path) -> None:
    """Write the manifest as versions did that knew no precision."""
    current = path / "manifest.json"
    values = json.loads(current.read_text())
    del values["precision"], values["checksum"]
    raw = sealed(values)
    decode_manifest(raw, current)
    for file in (current, path / "manifests" / f"{values['generation']:04d}.json"):
        file.write_bytes(raw)


@pytest.mark.parametrize("options", [QUICK, EASE], ids=["strata", "ease"])
def test_a_model_answers_alike_in_both_precisions(
    tmp_path: Path, digits: Digits, options: dict[str, Any]
) -> None:
    names = [str(n) for n in range(5)]
    test = [image for own in digits(*names, count=8, skip=12).values() for image in own]
    for learned_in in BOTH:
        path = tmp_path / learned_in
        Classifier.create(path, precision=learned_in, **options).learn(digits(*names, count=12))  # type: ignore[arg-type]
        logits = [Classifier.open(path, precision=one).logits(test) for one in BOTH]  # type: ignore[arg-type]
        assert not torch.equal(*logits)
        same = (logits[0].argmax(1) == logits[1].argmax(1)).double().mean()
        assert float(same) >= 0.9
        threshold = [Classifier.open(path, precision=one).predict(test) for one in BOTH]  # type: ignore[arg-type]
        apart = [
            abs(a.classes[0].confidence - b.classes[0].confidence) for a, b in zip(*threshold, strict=True)
        ]
        assert np.median(apart) < 0.05


def test_classes_can_be_learned_and_extended_in_another_precision(tmp_path: Path, digits: Digits) -> None:
    path = tmp_path / "model"
    Classifier.create(path, precision="32-true", **QUICK).learn(digits("0", "1"))
    model = Classifier.open(path, precision="bf16-mixed")
    model.learn({**digits("2"), **digits("0", count=4, skip=20)}, extend=True)
    answers = Classifier.open(path, precision="32-true").predict(digits("2", skip=20)["2"])
    assert sum(answer.name == "2" for answer in answers) >= 6


def test_in_fp32_a_model_is_bit_for_bit_the_same_on_every_machine(
    tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for number, flags in enumerate((NATIVE, EMULATING)):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda flags=flags: flags, raising=False)
        model = Classifier.create(tmp_path / str(number), precision="32-true", **EASE)
        model.learn(digits("0", "1"))
        found.append(model.logits(digits("0", skip=20)["0"]))
    assert torch.equal(*found)


def test_a_model_is_evaluated_in_what_it_was_learned_in(tmp_path: Path, digits: Digits) -> None:
    """So that the figure is that of the run or the day on which it was learned."""
    path = tmp_path / "model"
    Classifier.create(path, precision="bf16-mixed", **QUICK).learn(digits("0", "1"))
    learner, _ = open_model(path)
    assert learner.engine.precision == "bf16-mixed"
    assert evaluate_model(path, "digits", limit_per_class=3)["count"] == 6


def test_a_graph_is_made_in_fp32(tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def traced(learner: Any, *_: Any) -> tuple[bytes, float]:
        seen.append(learner.engine.precision)
        return b"graph", 0.0

    monkeypatch.setattr("ease.app.export.onnx_of", traced)
    monkeypatch.setattr("ease.app.export._need_packages", lambda check: None)
    path = tmp_path / "model"
    Classifier.create(path, precision="bf16-mixed", **QUICK).learn(digits("0", "1"))
    export_onnx(path, tmp_path / "model.onnx")
    assert seen == ["32-true"]


def test_a_file_is_continued_in_the_same_precision_only(
    tmp_path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    Classifier.create(path, **QUICK).learn(digits("0", "1"))
    photos = write_folder(tmp_path / "photos", digits("0", skip=20))
    monkeypatch.setattr("ease.app.bulk.output.PART_ROWS", 1)

    def write(precision: Any) -> int:
        classifier = Classifier.open(path, precision=precision)
        return predict_to_file(classifier, place_inputs([str(photos)]), tmp_path / "out.csv").rows

    with monkeypatch.context() as patched:
        patched.setattr("ease.app.bulk.output.PartsFolder.finish", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write("bf16-mixed")
    with pytest.raises(EaseError, match="another precision"):
        write("32-true")
    assert write("bf16-mixed") == 8


def test_the_commands_take_it(tmp_path: Path, digits: Digits, ease: Any) -> None:
    model, photos = tmp_path / "model", write_folder(tmp_path / "photos", digits("0", "1"))
    learn = ["learn", photos, "--model", model]
    assert ease(*learn, "--input-size", 16, "--set", "layers=1", "--precision", "32-true").code == 0
    assert written(model) == "32-true"
    assert ease(*learn, "--extend").code == 0
    assert written(model) == "bf16-mixed"
    for precision in BOTH:
        assert ease("predict", photos, "--model", model, "--precision", precision).code == 0
    for command in ([*learn, "--extend"], ["predict", photos, "--model", model], ["serve", "--model", model]):
        assert "'fp8'" in refused(ease(*command, "--precision", "fp8"))


def test_the_estimator_follows_the_environment(digits: Digits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EASE_PRECISION", "32-true")
    images = digits("0", "1")
    X, y = np.stack([*images["0"], *images["1"]]), np.repeat(["0", "1"], 8)
    assert EaseClassifier(input_size=16, settings=LIGHT).fit(X, y).classifier_.precision == "32-true"
