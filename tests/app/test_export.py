"""A saved model as an ONNX file: the same figures, and all that a stranger needs to use it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F

from ease import __version__
from ease.app import export
from ease.app.calibration import Calibration
from ease.app.compact import Compaction, compacted
from ease.app.export import Exported, export_onnx, onnx_of
from ease.backbone import Backbone, Pixels, load_backbone
from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError
from ease.methods import Learner, backbone_fields, class_fields, methods, open_model, save_model
from ease.storage import files as durable
from ease.storage.manifest import ModelState
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.memory import Memory
from tests.backbone.small_vits import small_vit
from tests.test_cli import ease, refused

PIXELS = Pixels(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
QUICK = {"epochs": 1, "rank": 4, "length": 2, "optimizer": "sgd"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ease": ("ease", {"ptm": True}),
    "ease compacted": ("ease", {}),
    "ease vpt-deep": ("ease", {"tuning": "vpt-deep"}),
    "strata": ("strata", {}),
    "strata adapted": ("strata", {"adapt": "first", "lr": 0.05}),
    "strata patches": ("strata", {"patches": True, "layers": 2}),
    "strata compacted": ("strata", {"adapt": "first", "lr": 0.05}),
    "finetune": ("finetune", {}),
    "l2p": ("l2p", {"pool": 4, "top_k": 2}),
    "dap": ("dap", {}),
    "lae prefix": ("lae", {"pet": "prefix"}),
}


def learned(method: str, engine: Engine, data: Dataset, memory: Memory | None = None, **more: Any) -> Learner:
    """Two tasks."""
    kind = methods()[method]
    settings = {k: v for k, v in {**QUICK, **more}.items() if k in kind.Settings.model_fields}
    learner = kind(engine, kind.Settings.model_validate(settings))
    for task in make_stream(data, f"B0 Inc{len(data.class_names) // 2}").tasks:
        learner.learn(task, memory)
    return learner


def learn(
    folder: Path, method: str, backbone: str = EMBEDDED, weights: Path | None = None, input_size: int = 16
) -> Path:
    """As a run leaves it, a folder with a model inside: the digits in two tasks."""
    frozen = load_backbone(backbone, weights=weights, input_size=input_size)
    data = load_dataset("digits", None, 5)
    memory = Memory(2) if methods()[method].kind == "exemplar-based" else None
    learner = learned(method, Engine(frozen, Transforms(frozen.pixels)), data, memory)
    files, meta = learner.state()
    state = ModelState(
        method=learner.name,
        settings=learner.settings.model_dump(mode="json"),
        backbone=backbone_fields(frozen),
        classes=class_fields(make_stream(data, "B0 Inc5"), 2),
        passes_per_image=learner.passes_per_image(),
        learner=meta,
    )
    ModelDirectory(folder / "model").commit(state, files | (memory.state() if memory else {}))
    return folder


def scores(model: Path | bytes, pixels: torch.Tensor) -> list[torch.Tensor]:
    """All outputs of the graph: logits, probabilities and, if it is calibrated, unknown scores."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(a) for a in session.run(None, {"pixels": pixels.numpy()})]


def normalised(images: torch.Tensor) -> torch.Tensor:
    """As `PIXELS` says."""
    return torch.stack([(images[:, c] - PIXELS.mean[c]) / PIXELS.std[c] for c in range(3)], dim=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_gives_the_learners_logits_for_every_batch_size(
    kind: str, six_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SIDE_BY_SIDE", 2)  # of three subspaces: two as one, and one alone
    method, settings = KINDS[kind]
    # Hardly any blocks: tracing takes a second for each block of each subspace.
    depth = 2 if kind in ("ease", "strata", "strata patches") else 1
    backbone = Backbone(small_vit(depth=depth), "small", "0", PIXELS)
    learner = learned(method, Engine(backbone, Transforms.raw(PIXELS)), six_digits, **settings)
    if method == "strata":
        assert (learner.subspaces()[0].tuning is not None) == ("adapt" in settings)
    if kind.endswith("compacted"):
        learner = compacted(learner, Compaction("int8", 0.9))
    data, difference = onnx_of(learner, {})
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    wanted = learner.logits(normalised(images))
    assert wanted.std(dim=0).min() > 1e-3  # the images differ, so mixing them up would show
    for rows in (slice(0, 1), slice(1, 3), slice(0, 5)):
        logits, probabilities = scores(data, images[rows])
        assert (logits - wanted[rows]).abs().max() <= 1e-4
        assert torch.allclose(probabilities, wanted[rows].softmax(dim=-1), atol=1e-5)
    assert difference is not None
    assert difference <= 1e-4
    kept = [i.raw_data for i in onnx.load_from_string(data).graph.initializer if len(i.raw_data) > 2**15]
    assert len(kept) == len(set(kept)) >= 2  # a weight of the backbone is there once


@pytest.mark.parametrize(("method", "classes"), [("strata", 6), ("strata", 1), ("ease", 6)])
def test_a_calibrated_graph_gives_the_unknown_score_of_a_prediction(
    method: str, classes: int, six_digits: Dataset
) -> None:
    backbone = Backbone(small_vit(depth=1), "small", "0", PIXELS)
    engine = Engine(backbone, Transforms.raw(PIXELS))
    few = replace(
        six_digits,
        class_names=six_digits.class_names[:classes],
        train=six_digits.train.of_classes(range(classes)),
        test=six_digits.test.of_classes(range(classes)),
    )
    kind = methods()[method]
    learner = kind(engine, kind.Settings.model_validate({"epochs": 1, "rank": 4} if method == "ease" else {}))
    for task in make_stream(few, f"B0 Inc{max(1, classes // 2)}").tasks:
        learner.learn(task)
    held_out = learner.logits(engine.pixels(few.test))
    calibration = Calibration.fit(held_out, torch.from_numpy(few.test.labels))
    data, difference = onnx_of(learner, {}, calibration)
    assert difference is not None
    assert difference <= 1e-4
    noise = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    seen = torch.stack([six_digits.test.image(i).float() / 255 for i in range(0, 48, 4)])
    images = torch.cat([noise, F.interpolate(seen, (32, 32))])
    logits, probabilities, unknown = scores(data, images)
    wanted = learner.logits(normalised(images))
    assert (logits - wanted).abs().max() <= 1e-4
    assert torch.allclose(probabilities, calibration.confidences(logits), atol=1e-5)
    assert unknown.shape == (len(images),)
    assert unknown.dtype == torch.float32
    assert torch.allclose(unknown, calibration.unknown(logits), atol=1e-5)
    # On both sides of the threshold, and there exactly where a prediction says so.
    meant = calibration.unknown(wanted)
    assert (meant > 0.5).any()
    assert (meant <= 0.5).any()
    clear = (meant - 0.5).abs() > 1e-2
    assert torch.equal((unknown > export.UNKNOWN_THRESHOLD)[clear], (meant > 0.5)[clear])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("one") / "run", "simplecil")


def calibrated(run: Path, folder: Path, **wrong: Any) -> Path:
    """A copy of the model, calibrated on a few images; `wrong` overwrites what it says."""
    shutil.copytree(run / "model", folder)
    learner, manifest = open_model(folder)
    data = load_dataset("digits", None, 5)
    logits = learner.logits(learner.engine.pixels(data.test))
    fitted = Calibration.fit(logits, torch.from_numpy(data.test.labels)).as_json()
    changed = manifest.model_copy(update={"calibration": {**fitted, **wrong}})
    ModelDirectory(folder).commit(changed, {}, keep=list(manifest.files))
    return folder


def test_the_file_says_all_that_a_caller_needs_and_nothing_of_this_machine(run: Path, tmp_path: Path) -> None:
    model = calibrated(run, tmp_path / "calibrated")
    result = ease("export", model, "--onnx", tmp_path / "deep" / "model.onnx", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    done = Exported(**{**told, "path": Path(told["path"])})
    learner, manifest = open_model(model)
    calibration = Calibration.of_json(manifest.calibration)
    assert calibration.temperature != 1
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    logits, probabilities, unknown = scores(done.path, images)
    # ease-vit wants (pixels - .5) / .5: the graph does that by itself.
    assert (logits - learner.logits((images - 0.5) / 0.5)).abs().max() <= 1e-4
    assert torch.allclose(probabilities, (logits / calibration.temperature).softmax(dim=-1), atol=1e-5)
    assert torch.allclose(unknown, calibration.unknown(logits), atol=1e-5)
    assert list(done.outputs) == ["logits", "probabilities", "unknown"]
    proto = onnx.load(done.path)
    onnx.checker.check_model(proto)
    facts = {p.key: p.value for p in proto.metadata_props}
    assert json.loads(facts["classes"]) == manifest.class_names
    asked = json.loads(facts["preprocessing"])
    assert (asked["input_size"], asked["interpolation"]) == (16, "bicubic")
    assert asked["mean"] == asked["std"] == [0.5, 0.5, 0.5]
    assert "short side to 18 px" in asked["resize"]
    assert "inside the graph" in asked["normalisation"]
    assert (facts["method"], facts["backbone"]) == ("simplecil", "ease-vit")
    assert json.loads(facts["temperature"]) == calibration.temperature
    assert (facts["calibrated"], facts["unknown_threshold"]) == ("true", "0.5")
    assert (facts["generation"], facts["ease_version"]) == ("2", __version__)
    content = done.path.read_bytes()
    for trace in (b".py", b"site-packages", b"File ", str(Path.cwd()).encode(), str(tmp_path).encode()):
        assert trace not in content
    assert not [node.name for node in proto.graph.node if node.doc_string or node.metadata_props]
    assert (done.bytes, done.classes, done.opset) == (len(content), 10, proto.opset_import[0].version)
    assert done.largest_difference is not None
    assert done.largest_difference <= 1e-4
    assert done.bytes < 4 * (learner.backbone.parameter_count() + learner.costs().stored) + 2**19


def test_without_calibration_there_is_no_unknown_score_and_the_file_says_so(
    run: Path, tmp_path: Path
) -> None:
    done = export_onnx(run, tmp_path / "m.onnx")
    proto = onnx.load(done.path)
    assert [output.name for output in proto.graph.output] == list(done.outputs) == ["logits", "probabilities"]
    facts = {p.key: p.value for p in proto.metadata_props}
    assert (facts["calibrated"], facts["unknown_threshold"], facts["temperature"]) == ("false", "null", "1.0")


def test_the_command_says_in_one_line_what_it_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    done = Exported(out, 3 * 2**20, 2e-7, 18, 10, ("logits", "probabilities"))
    monkeypatch.setattr(export, "export_onnx", lambda *_, **__: done)
    result = ease("export", tmp_path, "--onnx", out)
    said = "3.1 MB, 10 classes, opset 18, outputs logits, probabilities, largest difference 2.0e-07"
    assert result.stdout == f"{out}: {said}\n"


def refusal(model: Path, out: Path) -> str:
    """The one line, and nothing written."""
    with pytest.raises(EaseError) as caught:
        export_onnx(model, out)
    assert not out.exists()
    assert not durable.sweep(out.parent)
    return str(caught.value)


def test_a_graph_that_differs_or_does_not_run_is_not_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for output, message in (("probabilities", "differs from the model by"), ("scores", "does not run")):
        text = f"""<ir_version: 8, opset_import: ["": 18]>
            wrong (float[N, 3, 16, 16] pixels) => (float[N, K] logits, float[N, K] {output})
            {{ logits = Flatten(pixels)
               {output} = Softmax(logits) }}"""
        monkeypatch.setattr(export, "_traced", lambda *_, text=text: onnx.parser.parse_model(text))
        monkeypatch.setattr("ease.methods._saving.check_answers", lambda *_: None)
        monkeypatch.setattr(Learner, "logits", lambda _, x: torch.zeros(len(x), 3 * 16 * 16))
        assert message in refusal(run, tmp_path / "m.onnx")


def test_a_wrong_unknown_score_is_found_before_anything_is_written(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = export.Network.forward

    def shifted(self: export.Network, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits, probabilities, unknown = whole(self, pixels)
        return logits, probabilities, unknown + 0.1

    monkeypatch.setattr(export.Network, "forward", shifted)
    model = calibrated(run, tmp_path / "calibrated")
    assert "differs from the model by 1.0e-01" in refusal(model, tmp_path / "m.onnx")


def test_what_cannot_be_traced_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def peeks(self: export.Network, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1)[:, :10] if float(x.sum()) > 0 else x.flatten(1)[:, 1:11]

    monkeypatch.setattr(export.Network, "_logits", peeks)
    assert "simplecil cannot be exported" in refusal(run, tmp_path / "m.onnx")


def test_two_gigabytes_are_the_limit(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LIMIT", 2**20)
    assert "an ONNX file holds 2 GB" in refusal(run, tmp_path / "m.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_packages(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == package else find_spec(name))
    message = refusal(run, tmp_path / "m.onnx")
    assert message == "ONNX export needs more packages: pip install 'ease-cil[onnx]'"


def test_models_that_are_not_there_or_damaged(run: Path, tmp_path: Path) -> None:
    assert "holds no model" in refusal(tmp_path, tmp_path / "m.onnx")
    for name, wrong in (("temperature", 0.0), ("temperature", "warm"), ("threshold", None)):
        model = calibrated(run, tmp_path / f"{name}-{wrong}", **{name: wrong})
        assert f"{name} is" in refusal(model, tmp_path / "m.onnx")
    shutil.copytree(run / "model", tmp_path / "model")
    file = next((tmp_path / "model" / "prototypes").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert "is damaged" in refusal(tmp_path / "model", tmp_path / "m.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EaseError, match="is a folder"):
        export_onnx(run, tmp_path / "folder")


def test_wrong_exports_of_strata_are_one_line_and_write_nothing(tmp_path: Path) -> None:
    run = learn(tmp_path / "run", "strata")
    out = tmp_path / "out" / "m.onnx"
    wrong = calibrated(run, tmp_path / "wrong", temperature=-1.0)
    damaged = tmp_path / "damaged"
    shutil.copytree(run / "model", damaged)
    file = damaged / "learner" / "scatter.safetensors"
    file.write_bytes(file.read_bytes()[:-4] + b"\1\2\3\4")
    forged = tmp_path / "forged"
    shutil.copytree(run / "model", forged)
    generation = ModelDirectory(forged).load()
    generation.files["learner/scatter"]["scatter"] = torch.zeros(3)
    ModelDirectory(forged).commit(generation.manifest, generation.files)
    empty = tmp_path / "empty"
    learner, _ = open_model(run / "model")
    fresh = type(learner)(learner.engine, learner.settings)
    save_model(ModelDirectory(empty), fresh, [])
    for model, says in (
        (tmp_path / "none", "holds no model"),
        (wrong, "temperature is -1.0"),
        (damaged, "is damaged"),
        (forged, "does not make sense"),
        (empty, "knows no class yet"),
    ):
        assert says in refused(ease("export", model, "--onnx", out))
        assert not out.parent.exists()
    (tmp_path / "folder").mkdir()
    assert "is a folder" in refused(ease("export", run, "--onnx", tmp_path / "folder"))
    assert not list((tmp_path / "folder").iterdir())
