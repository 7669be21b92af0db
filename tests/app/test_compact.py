"""Models made smaller: what they lose, that they go on, and that the old one can be had back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ease import Classifier
from ease.app.archive import pack, unpack
from ease.app.compact import Compacted, Compaction, compact, compacted
from ease.errors import EaseError
from ease.heads.prototypes import PTM
from ease.methods import find_method
from ease.methods.ease import Ease, EaseSettings
from ease.methods.ease.compaction import with_fewer_subspaces
from ease.storage import files as durable
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, Stream
from ease.streams.protocol import make_stream
from ease.training.engine import Engine
from tests.app.conftest import Digits, refused, write_folder

MAKING: dict[str, Any] = {
    "method": "ease",
    "input_size": 16,
    "augment": "gentle",
    "settings": {"epochs": 1, "rank": 8},
}
TASKS = ("01", "23", "45", "67")


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    """Eight digits in four tasks; copy it before changing it."""
    classifier = Classifier.create(tmp_path_factory.mktemp("taught") / "model", **MAKING)
    for names in TASKS:
        classifier.learn(digits(*names, count=6))
    return classifier.path


@pytest.fixture
def model(taught: Path, tmp_path: Path) -> Path:
    shutil.copytree(taught, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture(scope="module")
def shown(digits: Digits) -> list[np.ndarray]:
    return [image for images in digits(*"01234567", count=2, skip=20).values() for image in images]


def learner_of(classifier: Classifier) -> Ease:
    assert isinstance(classifier.learner, Ease)
    return classifier.learner


def squeeze(model: Path, **wish: Any) -> Compacted:
    more = {key: wish.pop(key) for key in ("dry_run", "forget_history", "check") if key in wish}
    return compact(model, Compaction(**wish), **more)


def tensor_files(model: Path) -> dict[str, bytes]:
    return {str(p.relative_to(model)): p.read_bytes() for p in model.rglob("*.safetensors")}


def content(model: Path) -> dict[str, bytes]:
    files = (p for p in model.rglob("*") if p.is_file() and p.name != ".lock")
    return {str(p.relative_to(model)): p.read_bytes() for p in files}


def agree(found: Tensor, wanted: Tensor) -> None:
    """The same winner wherever it leads by more than the rounding."""
    best = wanted.topk(2, dim=1).values
    clear = best[:, 0] - best[:, 1] > 2 * (found - wanted).abs().max()
    assert clear.any()
    assert torch.equal(found.argmax(1)[clear], wanted.argmax(1)[clear])


# --- fewer digits ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wish", "share", "tolerance"),
    [
        ({"storage": "fp16"}, 0.62, 1e-3),
        ({"storage": "int8"}, 0.42, 2e-2),
        ({"energy": 0.9}, 0.99, 5e-2),
        ({"storage": "int8", "energy": 0.9}, 0.42, 5e-2),
    ],
)
def test_smaller_files_and_nearly_the_same_scores(
    model: Path, shown: list[np.ndarray], wish: dict[str, Any], share: float, tolerance: float
) -> None:
    before = Classifier.open(model)
    wanted, old = before.logits(shown), before.generation
    done = squeeze(model, **wish)
    assert (done.generation, done.previous) == (old + 1, old)
    assert done.after.subspace_bytes < share * done.before.subspace_bytes
    if "storage" in wish:
        assert done.after.prototype_bytes < 0.9 * done.before.prototype_bytes
    manifest = ModelDirectory(model).manifest()
    stored = sum(e.size for name, e in manifest.files.items() if name.startswith("subspaces/"))
    assert stored == done.after.subspace_bytes
    after = Classifier.open(model)
    found = after.logits(shown)
    assert found.dtype == torch.float32
    assert float((found - wanted).abs().max()) <= tolerance * float(wanted.abs().max())
    agree(found, wanted)
    after.rollback(old)
    assert torch.equal(after.logits(shown), wanted)


def test_it_goes_on_learning_and_files_of_old_tasks_stay_as_they_are(
    model: Path, shown: list[np.ndarray], digits: Digits
) -> None:
    squeeze(model, storage="int8", energy=0.8)
    before, classifier = tensor_files(model), Classifier.open(model)
    scores = classifier.logits(shown)
    classifier.rename("0", "zero")
    assert tensor_files(model) == before
    classifier.learn(digits("8", "9", count=6))
    after = tensor_files(model)
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 2  # a subspace and its prototypes, in fp32
    again = Classifier.open(model)
    assert torch.equal(again.logits(shown), classifier.logits(shown))
    assert again.classes == ["zero", *"123456789"]
    spec = ModelDirectory(model).manifest().learner
    assert [s.get("storage", "fp32") for s in spec["prototypes"]] == ["int8"] * 4 + ["fp32"]
    assert [s.get("storage", "fp32") for s in spec["subspaces"]] == ["int8"] * 4 + ["fp32"]
    again.rollback(again.generation - 1)
    assert torch.equal(again.logits(shown), scores)


def test_what_is_in_memory_is_what_was_saved_whatever_happens_next(
    model: Path, shown: list[np.ndarray], digits: Digits
) -> None:
    squeeze(model, storage="int8")
    classifier = Classifier.open(model)
    classifier.learn(digits("0", "4", count=3, skip=30), extend=True)
    assert torch.equal(Classifier.open(model).logits(shown), classifier.logits(shown))
    stored = ModelDirectory(model).manifest().learner["prototypes"]
    assert [bool(spec) for spec in stored] == [False, True, False, True]  # those of 0 and 4 do not fit 8 bits
    classifier.forget("3")
    assert torch.equal(Classifier.open(model).logits(shown), classifier.logits(shown))
    assert ModelDirectory(model).manifest().learner["prototypes"][1] == {"storage": "int8"}
    assert squeeze(model, storage="int8").changed
    assert not squeeze(model, storage="int8").changed


def test_one_storage_after_the_other(model: Path, shown: list[np.ndarray]) -> None:
    squeeze(model, energy=0.8)
    factors = Classifier.open(model).logits(shown)
    squeeze(model, storage="fp16")
    spec = ModelDirectory(model).manifest().learner["subspaces"][0]
    assert (spec["storage"], spec["energy"]) == ("fp16", 0.8)
    assert torch.allclose(Classifier.open(model).logits(shown), factors, atol=2e-3)
    plain = squeeze(model, storage="fp32")
    assert plain.after.prototype_bytes > plain.before.prototype_bytes
    assert "prototypes" not in ModelDirectory(model).manifest().learner


def test_other_tunings_are_narrowed_but_have_no_rank_to_lose(engine: Engine, stream: Stream) -> None:
    for kind in ("lora", "ssf"):
        learner = learned(engine, stream, tuning=kind)
        pixels = engine.pixels(stream.tasks[0].test)
        found = compacted(learner, Compaction("int8")).logits(pixels)
        assert torch.allclose(found, learner.logits(pixels), atol=3e-2)
        with pytest.raises(EaseError, match=f"this model has '{kind}'"):
            compacted(learner, Compaction(energy=0.9))


# --- fewer subspaces ------------------------------------------------------------------------------


def learned(engine: Engine, stream: Stream, **settings: Any) -> Ease:
    wish = {"epochs": 1, "lr": 0.05, "batch_size": 12, "rank": 4, "sigma": 8.0, **settings}
    learner = Ease(engine, EaseSettings(**wish))
    for task in stream.tasks:
        learner.learn(task)
    return learner


@pytest.mark.parametrize("most", [1, 2])
def test_so_many_passes_are_left_and_no_class_is_lost(
    model: Path, shown: list[np.ndarray], digits: Digits, most: int
) -> None:
    before = Classifier.open(model)
    wanted, old = before.logits(shown), before.generation
    done = squeeze(model, max_subspaces=most)
    assert (done.before.passes, done.after.passes, done.after.subspaces) == (4, most, most)
    classifier = Classifier.open(model)
    assert ModelDirectory(model).manifest().passes_per_image == most
    assert classifier.classes == list("01234567")
    found = classifier.logits(shown)
    assert found.isfinite().all()
    assert float((found.argmax(1) == wanted.argmax(1)).double().mean()) >= 0.25  # one of eight by chance
    bank = learner_of(classifier).bank
    assert all((task, own) in bank.cells for task, own in enumerate(bank.own))
    classifier.learn(digits("8", "9", count=6))
    assert len(learner_of(classifier).subspaces()) == most + 1
    classifier.learn(digits("2", count=3, skip=30), extend=True)
    again = Classifier.open(model)
    assert torch.equal(again.logits(shown), classifier.logits(shown))
    again.rollback(old)
    assert torch.equal(again.logits(shown), wanted)
    again.rollback(again.generations()[-1])
    again.forget("5")
    assert Classifier.open(model).logits(shown).shape == (16, 9)


def test_the_oldest_stay_because_most_classes_are_real_there(model: Path) -> None:
    learner = learner_of(Classifier.open(model))
    for most in (1, 3):
        left = with_fewer_subspaces(learner, most)
        assert left.tunings == learner.tunings[:most]
        assert left.bank.own[:most] == learner.bank.own[:most]
        assert all(own in range(1, most + 1) for own in left.bank.own)
        kept = {(t, s): cell for (t, s), cell in learner.bank.cells.items() if s <= most}
        assert left.bank.cells.keys() == kept.keys()
        assert all(torch.equal(left.bank.cells[place], cell) for place, cell in kept.items())
    assert len(learner.tunings) == 4


@pytest.mark.parametrize("synthesis", ["pps", "pis"])
def test_every_synthesis_and_the_ptm_among_the_subspaces(
    synthesis: str, engine: Engine, six_digits: Dataset
) -> None:
    # One class, which only the PTM can serve; three with a subspace; two with another.
    stream = make_stream(six_digits, "B1 Inc3")
    learner = learned(engine, stream, synthesis=synthesis)
    assert learner.columns() == [PTM, 1, 2]
    left = with_fewer_subspaces(learner, 2)
    assert left.columns() == [PTM, 1]
    logits = left.logits(engine.pixels(stream.tasks[0].test))
    assert logits.shape == (8, 6)
    assert logits.isfinite().all()
    assert with_fewer_subspaces(learner, 1).columns() == [PTM]


def test_a_subspace_that_no_class_uses_goes_in_any_case(model: Path, shown: list[np.ndarray]) -> None:
    classifier = Classifier.open(model)
    classifier.forget("6")
    classifier.forget("7")
    wanted = classifier.logits(shown)
    done = squeeze(model, max_subspaces=4)
    assert (done.before.subspaces, done.after.subspaces) == (4, 3)
    assert (done.before.passes, done.after.passes) == (3, 3)
    assert torch.equal(Classifier.open(model).logits(shown), wanted)


def test_subspaces_can_be_dropped_where_prototypes_are_missing(engine: Engine, stream: Stream) -> None:
    for settings in ({"complement": "none"}, {"diagonal": True}):
        learner = learned(engine, stream, **settings)
        assert with_fewer_subspaces(learner, 2).passes_per_image() == 2


# --- the directory --------------------------------------------------------------------------------


def test_history_is_freed_only_when_asked(model: Path, shown: list[np.ndarray]) -> None:
    done = squeeze(model, storage="int8")
    assert done.history_bytes == done.before.subspace_bytes + done.before.prototype_bytes
    wanted = Classifier.open(model).logits(shown)
    cleared = squeeze(model, forget_history=True)
    assert (cleared.changed, cleared.generation, cleared.history_bytes) == (False, None, 0)
    assert Classifier.open(model).generations() == [done.generation]
    assert (
        sum(map(len, tensor_files(model).values())) == done.after.subspace_bytes + done.after.prototype_bytes
    )
    assert torch.equal(Classifier.open(model).logits(shown), wanted)
    at_once = squeeze(model, max_subspaces=2, forget_history=True)
    assert Classifier.open(model).generations() == [at_once.generation]


def test_a_compacted_model_is_packed_and_unpacked(
    model: Path, shown: list[np.ndarray], tmp_path: Path
) -> None:
    squeeze(model, storage="int8", energy=0.8, max_subspaces=2)
    wanted = Classifier.open(model).logits(shown)
    other = unpack(pack(model, tmp_path / "m.ease").path, tmp_path / "other").path
    assert torch.equal(Classifier.open(other).logits(shown), wanted)


@pytest.fixture
def accident(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    def at(point: str, name: str) -> None:
        def strike(here: str, path: Path) -> None:
            if here == point and path.name == name:
                raise KeyboardInterrupt

        monkeypatch.setattr(durable, "fault", strike)

    return at


@pytest.mark.parametrize(
    ("point", "name"),
    [
        ("before-write", "0002-g0006.safetensors"),
        ("before-replace", "0006.json"),
        ("before-replace", "manifest.json"),
    ],
)
def test_an_interrupted_compaction_leaves_the_old_generation(
    model: Path,
    shown: list[np.ndarray],
    accident: Any,
    point: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before, wanted = content(model), Classifier.open(model).logits(shown)
    accident(point, name)
    with pytest.raises(KeyboardInterrupt):
        squeeze(model, storage="int8", max_subspaces=3)
    monkeypatch.undo()
    assert content(model) == before
    assert torch.equal(Classifier.open(model).logits(shown), wanted)
    assert squeeze(model, storage="int8", max_subspaces=3).generation == 6


def test_what_somebody_else_wrote_meanwhile_is_not_overwritten(
    model: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(learner: Ease, *args: Any) -> Ease:
        Classifier.open(model).rename("0", "zero")
        return compacted(learner, *args)

    monkeypatch.setattr("ease.app.compact.compacted", meanwhile)
    with pytest.raises(EaseError, match="another process wrote generation 6"):
        squeeze(model, storage="int8")
    assert Classifier.open(model).classes[0] == "zero"


def test_a_manifest_that_makes_no_sense_is_one_line(model: Path) -> None:
    squeeze(model, storage="int8")
    directory = ModelDirectory(model)
    generation = directory.load()
    for wrong in ([{"storage": "int4"}] * 4, [{}] * 3, "int8"):
        learner = {**generation.manifest.learner, "prototypes": wrong}
        directory.commit(generation.manifest.model_copy(update={"learner": learner}), generation.files)
        with pytest.raises(EaseError, match="does not make sense"):
            Classifier.open(model)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_says_what_it_costs(ease: Any, model: Path, digits: Digits, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", digits("0", "5", count=3, skip=20))
    before = content(model)
    tried = ease(
        "compact", "--model", model, "--storage", "int8", "--max-subspaces", 2, "--check", folder, "--dry-run"
    )
    assert tried.code == 0, tried.err
    assert "nothing was written" in tried.out
    assert content(model) == before
    told = json.loads(ease("compact", "--model", model, "--storage", "int8", "--check", folder, "--json").out)
    assert told["after"]["subspace_bytes"] < told["before"]["subspace_bytes"]
    assert 0 <= told["after"]["accuracy"] <= 100
    shown = ease("compact", "--model", model, "--max-subspaces", 2)
    rows = [line.split() for line in shown.out.splitlines()]
    assert rows[1][:1] + rows[1][3:] == ["before", "4", "4"]
    assert rows[2][:1] + rows[2][3:] == ["after", "2", "2"]
    assert f"ease rollback --model {model} 6" in shown.out
    assert "--forget-history" in shown.out
    again = ease("compact", "--model", model, "--max-subspaces", 20)
    assert (again.code, "nothing to do" in again.out) == (0, True)
    assert Classifier.open(model).generation == 7
    assert "forgot all" in ease("compact", "--model", model, "--forget-history", "--yes").out
    assert Classifier.open(model).generations() == [7]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing to do"),
        (["--max-subspaces", "0"], "must be 1 or more"),
        (["--max-subspaces", "-3"], "must be 1 or more"),
        (["--storage", "int4"], "did you mean 'int8'"),
        (["--energy", "0"], "is no share to keep"),
        (["--energy", "1.5"], "is no share to keep"),
        (["--storage", "int8", "--check", "nowhere"], "does not exist"),
    ],
)
def test_wrong_wishes_are_one_line_and_write_nothing(
    ease: Any,
    model: Path,
    words: list[str],
    says: str,
) -> None:
    before = content(model)
    assert says in refused(ease("compact", "--model", model, *words))
    assert content(model) == before


def test_only_models_of_ease(ease: Any, tmp_path: Path, digits: Digits) -> None:
    assert "holds no model" in refused(ease("compact", "--model", tmp_path / "none", "--storage", "int8"))
    Classifier.create(tmp_path / "empty", **MAKING)
    assert "knows no class yet" in refused(
        ease("compact", "--model", tmp_path / "empty", "--storage", "int8")
    )


@pytest.mark.parametrize("name", ["simplecil", "upper-bound"])
def test_models_of_other_methods_are_refused(name: str, engine: Engine) -> None:
    kind = find_method(name)
    with pytest.raises(EaseError, match=f"'{name}' .*only those of 'ease'"):
        compacted(kind(engine, kind.Settings()), Compaction("int8"))
