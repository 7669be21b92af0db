"""A saved model as an ONNX file: the same figures, and all that a stranger needs to use it."""

from __future__ import annotations

import builtins
import json
import shutil
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch

from ease import __version__
from ease.app import export
from ease.app.compact import Compaction, compacted
from ease.app.export import Exported, export_onnx, onnx_of
from ease.backbone import Backbone, Pixels, load_backbone
from ease.backbone.zoo import EMBEDDED
from ease.engine import files as durable
from ease.engine.engine import Engine
from ease.engine.memory import Memory
from ease.engine.store import ModelDirectory
from ease.errors import EaseError
from ease.methods.base import Learner
from ease.methods.ease import Ease
from ease.methods.model import backbone_fields, class_fields, open_model
from ease.methods.registry import methods
from ease.streams import Dataset
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from tests.backbone.small_vits import small_vit
from tests.test_cli import ease

PIXELS = Pixels(32, (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
QUICK = {"epochs": 1, "rank": 4, "length": 2, "optimizer": "sgd"}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ease": ("ease", {"ptm": True}),
    "ease compacted": ("ease", {}),
    "ease vpt-deep": ("ease", {"tuning": "vpt-deep"}),
    "finetune": ("finetune", {}),
    "l2p": ("l2p", {"pool": 4, "top_k": 2}),
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
    fields = {
        "method": learner.name,
        "settings": learner.settings.model_dump(mode="json"),
        "backbone": backbone_fields(frozen),
        "classes": class_fields(make_stream(data, "B0 Inc5"), 2),
        "passes_per_image": learner.passes_per_image(),
        "learner": meta,
    }
    ModelDirectory(folder / "model").commit(fields, files | (memory.state() if memory else {}))
    return folder


def scores(model: Path | bytes, pixels: torch.Tensor) -> list[torch.Tensor]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [torch.from_numpy(a) for a in session.run(["logits", "probabilities"], {"pixels": pixels.numpy()})]


@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_gives_the_learners_logits_for_every_batch_size(
    kind: str, six_digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "SIDE_BY_SIDE", 2)  # of three subspaces: two as one, and one alone
    method, settings = KINDS[kind]
    # Hardly any blocks: tracing takes a second for each block of each subspace.
    backbone = Backbone(small_vit(depth=2 if kind == "ease" else 1), "small", "0", PIXELS)
    learner = learned(method, Engine(backbone, Transforms.raw(PIXELS)), six_digits, **settings)
    if kind == "ease compacted":
        assert isinstance(learner, Ease)
        learner = compacted(learner, Compaction("int8", 0.9))
    data, difference = onnx_of(learner, {})
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    normal = torch.stack([(images[:, c] - PIXELS.mean[c]) / PIXELS.std[c] for c in range(3)], dim=1)
    wanted = learner.logits(normal)
    assert wanted.std(dim=0).min() > 1e-3  # the images differ, so mixing them up would show
    for rows in (slice(0, 1), slice(1, 3), slice(0, 5)):
        logits, probabilities = scores(data, images[rows])
        assert (logits - wanted[rows]).abs().max() <= 1e-4
        assert torch.allclose(probabilities, wanted[rows].softmax(dim=-1), atol=1e-5)
    assert difference is not None
    assert difference <= 1e-4
    kept = [i.raw_data for i in onnx.load_from_string(data).graph.initializer if len(i.raw_data) > 2**15]
    assert len(kept) == len(set(kept)) >= 2  # a weight of the backbone is there once


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("one") / "run", "simplecil")


def with_temperature(run: Path, folder: Path, temperature: float) -> Path:
    """A copy of the model, calibrated."""
    shutil.copytree(run / "model", folder)
    directory = ModelDirectory(folder)
    manifest = directory.manifest()
    of_the_store = ("format", "generation", "created", "files", "checksum")
    own = {key: value for key, value in manifest.items() if key not in of_the_store}
    directory.commit({**own, "calibration": {"temperature": temperature}}, {}, keep=manifest["files"])
    return folder


def test_the_file_says_all_that_a_caller_needs_and_nothing_of_this_machine(run: Path, tmp_path: Path) -> None:
    model = with_temperature(run, tmp_path / "calibrated", 0.05)
    result = ease("export", model, "--onnx", tmp_path / "deep" / "model.onnx", "--json")
    assert (result.returncode, result.stderr) == (0, "")
    told = json.loads(result.stdout)
    done = Exported(**{**told, "path": Path(told["path"])})
    learner, manifest = open_model(model)
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    logits, probabilities = scores(done.path, images)
    # ease-vit wants (pixels - .5) / .5: the graph does that by itself.
    assert (logits - learner.logits((images - 0.5) / 0.5)).abs().max() <= 1e-4
    assert torch.allclose(probabilities, (logits / 0.05).softmax(dim=-1), atol=1e-5)
    proto = onnx.load(done.path)
    onnx.checker.check_model(proto)
    facts = {p.key: p.value for p in proto.metadata_props}
    assert json.loads(facts["classes"]) == [entry["name"] for entry in manifest["classes"]]
    asked = json.loads(facts["preprocessing"])
    assert (asked["input_size"], asked["interpolation"]) == (16, "bicubic")
    assert asked["mean"] == asked["std"] == [0.5, 0.5, 0.5]
    assert "short side to 18 px" in asked["resize"]
    assert "inside the graph" in asked["normalisation"]
    assert (facts["method"], facts["backbone"], facts["temperature"]) == ("simplecil", "ease-vit", "0.05")
    assert (facts["generation"], facts["ease_version"]) == ("2", __version__)
    content = done.path.read_bytes()
    for trace in (b".py", b"site-packages", b"File ", str(Path.cwd()).encode(), str(tmp_path).encode()):
        assert trace not in content
    assert not [node.name for node in proto.graph.node if node.doc_string or node.metadata_props]
    assert (done.bytes, done.classes, done.opset) == (len(content), 10, proto.opset_import[0].version)
    assert done.largest_difference is not None
    assert done.largest_difference <= 1e-4
    assert done.bytes < 4 * (learner.backbone.parameter_count() + learner.costs().stored) + 2**19


def test_the_command_says_in_one_line_what_it_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out = tmp_path / "m.onnx"
    monkeypatch.setattr(export, "export_onnx", lambda *_, **__: Exported(out, 3 * 2**20, 2e-7, 18, 10))
    result = ease("export", tmp_path, "--onnx", out)
    assert result.stdout == f"{out}: 3.0 MB, 10 classes, opset 18, largest difference 2.0e-07\n"


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
        monkeypatch.setattr(Learner, "logits", lambda _, x: torch.zeros(len(x), 3 * 16 * 16))
        assert message in refusal(run, tmp_path / "m.onnx")


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
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.split(".")[0] == package:
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    message = refusal(run, tmp_path / "m.onnx")
    assert message == "ONNX export needs more packages: pip install 'ease-cil[onnx]'"


def test_models_that_are_not_there_or_damaged(run: Path, tmp_path: Path) -> None:
    assert "holds no model" in refusal(tmp_path, tmp_path / "m.onnx")
    assert "temperature" in refusal(with_temperature(run, tmp_path / "cold", 0.0), tmp_path / "m.onnx")
    shutil.copytree(run / "model", tmp_path / "model")
    file = next((tmp_path / "model" / "prototypes").iterdir())
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert "is damaged" in refusal(tmp_path / "model", tmp_path / "m.onnx")
    (tmp_path / "folder").mkdir()
    with pytest.raises(EaseError, match="is a folder"):
        export_onnx(run, tmp_path / "folder")
