"""Models of strata made smaller: what they lose, that they stay small while they go on, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ease import Classifier
from ease.app.archive import pack, unpack
from ease.app.compact import Compacted, Compaction, compact
from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.methods import save_model
from ease.methods.strata import Strata, StrataSettings
from ease.storage.model_directory import ModelDirectory
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from tests.app.conftest import Digits, refused, write_folder

TASKS = ("01", "23", "4", "567")


def new(folder: Path, **settings: Any) -> Classifier:
    """A model of strata that knows no class yet."""
    backbone = load_backbone("ease-vit", input_size=16)
    learner = Strata(Engine(backbone, Transforms(backbone.pixels), seed=1993), StrataSettings(**settings))
    save_model(ModelDirectory(folder), learner, [], augmentation="gentle", seed=1993, next_id=0, history=[])
    return Classifier.open(folder)


@pytest.fixture(scope="module", params=["never", "first"])
def taught(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    """Eight digits in four tasks, without and with an adapter; copy it before changing it."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    classifier = new(folder, adapt=request.param, layers=1, rank=4, epochs=1, batch_size=4)
    for names in TASKS:
        classifier.learn(digits(*names, count=10))
    return folder


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    shutil.copytree(taught, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def plain(tmp_path: Path, digits: Digits) -> Path:
    """Two digits, without an adapter."""
    classifier = new(tmp_path / "plain", layers=1)
    classifier.learn(digits("0", "1", count=6))
    return classifier.path


@pytest.fixture(scope="module")
def shown(digits: Digits) -> list[np.ndarray]:
    return [image for images in digits(*"01234567", count=3, skip=20).values() for image in images]


def squeeze(model: Path, **wish: Any) -> Compacted:
    more = {key: wish.pop(key) for key in ("dry_run", "forget_history", "check") if key in wish}
    return compact(model, Compaction(**wish), **more)


def is_adapted(model: Path) -> bool:
    return bool(described(model)["adapted"])


def described(model: Path) -> dict[str, Any]:
    learner: dict[str, Any] = ModelDirectory(model).manifest().learner
    return learner


def storage(model: Path) -> str:
    found: str = described(model).get("scatter", {"storage": "fp32"})["storage"]
    return found


def tensor_files(model: Path) -> dict[str, bytes]:
    """Of the current generation, by logical name."""
    return {
        name: (model / entry.path).read_bytes()
        for name, entry in ModelDirectory(model).manifest().files.items()
    }


def content(model: Path) -> dict[str, bytes]:
    files = (p for p in model.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(model)): p.read_bytes() for p in files}


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max())


# --- fewer digits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("wish", "share", "tolerance"), [("fp16", 0.51, 2e-3), ("int8", 0.27, 5e-2)])
def test_smaller_files_and_nearly_the_same_scores(
    model: Path,
    shown: list[np.ndarray],
    wish: str,
    share: float,
    tolerance: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("EASE_PRECISION", "32-true")  # bf16 rounds more than fp16 storage does
    before = Classifier.open(model)
    wanted, old = before.logits(shown), before.generation
    done = squeeze(model, storage=wish)
    assert (done.generation, done.previous, done.changed) == (old + 1, old, True)
    assert 0 < done.after.statistics_bytes < share * done.before.statistics_bytes
    assert 0 < done.after.prototype_bytes < 0.6 * done.before.prototype_bytes
    assert done.before.passes == done.after.passes == 1
    assert done.before.subspaces == done.after.subspaces == int(is_adapted(model))
    if is_adapted(model):
        assert 0 < done.after.subspace_bytes < 0.7 * done.before.subspace_bytes
    written = {name: len(data) for name, data in tensor_files(model).items()}
    after = done.after
    assert sum(written.values()) == after.subspace_bytes + after.prototype_bytes + after.statistics_bytes
    assert storage(model) == wish
    again = Classifier.open(model)
    found = again.logits(shown)
    assert found.dtype == torch.float32
    assert 0 < apart(found, wanted) < tolerance
    again.rollback(old)
    assert torch.equal(again.logits(shown), wanted)


def test_the_adapters_matrices_as_thin_factors(model: Path, shown: list[np.ndarray]) -> None:
    wanted, before = Classifier.open(model).logits(shown), content(model)
    if not is_adapted(model):
        with pytest.raises(EaseError, match="energy"):
            squeeze(model, energy=0.9)
        assert content(model) == before
        return
    done = squeeze(model, energy=0.5)
    assert done.after.subspace_bytes < done.before.subspace_bytes
    assert done.after.statistics_bytes == done.before.statistics_bytes
    assert described(model)["subspace"]["energy"] == 0.5
    found = Classifier.open(model).logits(shown)
    assert 0 < apart(found, wanted) < 0.5
    squeeze(model, storage="int8")
    assert (described(model)["subspace"]["energy"], described(model)["subspace"]["storage"]) == (0.5, "int8")
    assert apart(Classifier.open(model).logits(shown), found) < 5e-2


def test_asked_for_again_nothing_changes(model: Path, shown: list[np.ndarray]) -> None:
    for wish in ("int8", "fp16", "fp32"):
        assert squeeze(model, storage=wish).changed
        before, scores = content(model), Classifier.open(model).logits(shown)
        again = squeeze(model, storage=wish)
        assert (again.changed, again.generation) == (False, None)
        assert content(model) == before
        assert torch.equal(Classifier.open(model).logits(shown), scores)
    assert "scatter" not in described(model)
    assert "prototypes" not in described(model)
    assert tensor_files(model).keys() >= {"learner/scatter"}


def test_the_one_compacted_stays_as_it_is(model: Path, shown: list[np.ndarray], digits: Digits) -> None:
    classifier = Classifier.open(model)
    learner, wanted = classifier.learner, classifier.logits(shown)
    assert isinstance(learner, Strata)
    files, _ = learner.state()
    other = learner.compacted(Compaction("int8"))
    other.forget(0)
    assert torch.equal(classifier.logits(shown), wanted)
    assert learner.classes == other.classes + 1
    after, _ = learner.state()
    assert all(
        torch.equal(after[name][key], value) for name, part in files.items() for key, value in part.items()
    )


def test_history_is_freed_when_asked(model: Path, shown: list[np.ndarray]) -> None:
    wanted = Classifier.open(model).logits(shown)
    cleared = squeeze(model, forget_history=True)
    assert (cleared.changed, cleared.history_bytes) == (False, 0)
    assert len(Classifier.open(model).generations()) == 1
    assert torch.equal(Classifier.open(model).logits(shown), wanted)
    squeeze(model, storage="fp16", forget_history=True)
    sizes = cleared.after
    kept = sum(p.stat().st_size for p in model.rglob("*.safetensors"))
    assert kept < 0.6 * (sizes.subspace_bytes + sizes.prototype_bytes + sizes.statistics_bytes)


# --- going on -------------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["fp16", "int8"])
def test_it_goes_on_learning_and_stays_small(
    model: Path, shown: list[np.ndarray], digits: Digits, wish: str, tmp_path: Path
) -> None:
    shutil.copytree(model, tmp_path / "plain")
    first = squeeze(model, storage=wish)
    before = tensor_files(model)
    for path in (model, tmp_path / "plain"):
        Classifier.open(path).learn(digits("8", "9", count=10))
    classifier = Classifier.open(model)
    after = tensor_files(model)
    old = {name: data for name, data in before.items() if name != "learner/scatter"}
    assert {name: after[name] for name in old} == old  # of old tasks nothing is written again
    # The sum of all images is: in fp16, in which it can be rounded again and again.
    assert storage(model) == "fp16"
    assert len(after["learner/scatter"]) < 0.51 * first.before.statistics_bytes
    assert [spec["storage"] for spec in described(model)["prototypes"]] == ["fp16"] * 5
    if is_adapted(model):
        assert described(model)["subspace"]["storage"] == wish
    whole = Classifier.open(tmp_path / "plain")
    assert apart(classifier.logits(shown), whole.logits(shown)) < {"fp16": 5e-3, "int8": 5e-2}[wish]


@pytest.mark.parametrize("wish", ["fp16", "int8"])
def test_what_is_in_memory_is_what_was_saved_whatever_happens_next(
    model: Path, shown: list[np.ndarray], digits: Digits, wish: str
) -> None:
    squeeze(model, storage=wish)
    classifier = Classifier.open(model)

    def same() -> bool:
        return torch.equal(Classifier.open(model).logits(shown), classifier.logits(shown))

    files = tensor_files(model)
    classifier.rename("0", "zero")
    assert tensor_files(model) == files
    classifier.forget("3")
    assert storage(model) == wish  # no image came
    assert tensor_files(model)["learner/scatter"] == files["learner/scatter"]
    assert same()
    classifier.learn(digits("4", count=3, skip=30), extend=True)
    assert same()
    classifier.learn(digits("9", count=1))
    assert same()
    classifier.learn(digits("8", count=6))
    assert same()
    assert storage(model) == "fp16"
    assert squeeze(model, storage="int8").changed


def test_classes_that_come_one_by_one_add_up_to_what_they_do_in_fp32(
    tmp_path: Path, shown: list[np.ndarray], digits: Digits
) -> None:
    models = [new(tmp_path / name, layers=2) for name in ("fp32", "fp16")]
    for at, name in enumerate("01234567"):
        for classifier in models:
            classifier.learn(digits(name, count=10))
        if at == 0:
            squeeze(models[1].path, storage="fp16")
    wanted, found = (Classifier.open(each.path).logits(shown) for each in models)
    assert storage(models[1].path) == "fp16"
    assert 0 < apart(found, wanted) < 1e-2


def test_a_compacted_model_is_packed_and_unpacked(
    model: Path, shown: list[np.ndarray], tmp_path: Path
) -> None:
    squeeze(model, storage="int8")
    wanted = Classifier.open(model).logits(shown)
    other = unpack(pack(model, tmp_path / "m.ease").path, tmp_path / "other").path
    assert torch.equal(Classifier.open(other).logits(shown), wanted)


def test_a_manifest_that_makes_no_sense_is_one_line(plain: Path) -> None:
    squeeze(plain, storage="int8")
    directory = ModelDirectory(plain)
    generation = directory.load()
    right = generation.manifest.learner
    for wrong in (
        {"scatter": {"storage": "int4"}},
        {"scatter": {"storage": "fp32"}},
        {"scatter": "int8"},
        {"prototypes": [{"storage": "fp16"}] * 3},
        {"freedom": -1},
    ):
        changed = generation.manifest.model_copy(update={"learner": {**right, **wrong}})
        directory.commit(changed, generation.files)
        with pytest.raises(EaseError, match="does not make sense"):
            Classifier.open(plain)


# --- the commands ---------------------------------------------------------------------------------


def test_the_command_says_what_it_costs(ease: Any, plain: Path, digits: Digits, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", digits("0", "1", count=3, skip=20))
    before = content(plain)
    tried = ease("compact", "--model", plain, "--storage", "int8", "--check", folder, "--dry-run")
    assert tried.code == 0, tried.err
    assert "statistics bytes" in tried.out
    assert content(plain) == before
    told = json.loads(ease("compact", "--model", plain, "--storage", "fp16", "--check", folder, "--json").out)
    assert told["after"]["statistics_bytes"] < told["before"]["statistics_bytes"]
    assert told["after"]["subspace_bytes"] == told["after"]["subspaces"] == 0
    assert told["after"]["passes"] == 1
    assert 0 <= told["after"]["accuracy"] <= 100
    rows = [line.split() for line in ease("compact", "--model", plain, "--storage", "int8").out.splitlines()]
    assert rows[1][0] == "before"
    assert int(rows[2][3]) < int(rows[1][3])
    assert rows[2][4:] == ["0", "1"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to do"),
        (["--max-subspaces", "1"], "takes one pass per image, however many classes it knows"),
        (["--storage", "int8", "--max-subspaces", "2"], "takes one pass per image"),
        (["--energy", "0.9"], "this model of 'strata' has none"),
        (["--storage", "fp16", "--energy", "0.9"], "this model of 'strata' has none"),
        (["--storage", "int4"], "did you mean 'int8'"),
        (["--energy", "2"], "is no share to keep"),
        (["--storage", "int8", "--check", "nowhere"], "does not exist"),
    ],
)
def test_wrong_wishes_are_one_line_and_write_nothing(
    ease: Any, plain: Path, words: list[str], says: str
) -> None:
    before = content(plain)
    assert says in refused(ease("compact", "--model", plain, *words))
    assert content(plain) == before


def test_a_damaged_model_and_an_empty_one_are_refused(ease: Any, plain: Path, tmp_path: Path) -> None:
    new(tmp_path / "empty")
    assert "knows no class yet" in refused(
        ease("compact", "--model", tmp_path / "empty", "--storage", "int8")
    )
    file = plain / ModelDirectory(plain).manifest().files["learner/scatter"].path
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    before = content(plain)
    assert "is damaged" in refused(ease("compact", "--model", plain, "--storage", "int8"))
    assert content(plain) == before


def test_one_pass_is_within_any_budget(ease: Any, plain: Path, digits: Digits, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", digits("0", "1", count=2, skip=20))
    whole = json.loads(ease("predict", folder, "--model", plain, "--json").out)["predictions"]
    for budget in (1, 7):
        found = ease("predict", folder, "--model", plain, "--budget", budget, "--json")
        assert json.loads(found.out)["predictions"] == whole
    assert ease("eval", "--model", plain, folder, "--budget", 1).code == 0
    assert "--budget" in refused(ease("predict", folder, "--model", plain, "--budget", 0))
