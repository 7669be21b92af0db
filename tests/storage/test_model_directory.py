"""A model directory grows, keeps every generation, and opens at a good one after any accident."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.errors import EaseError
from ease.storage import files as durable
from ease.storage import lock
from ease.storage import model_directory as store
from ease.storage.contents import JSON_LIMIT, encode_tensors, entry_of, write_tensors
from ease.storage.manifest import FORMAT, BackboneEntry, ClassEntry, ModelState, StoredFile, sealed
from ease.storage.model_directory import ModelDirectory
from ease.storage.remembered import SMALL

Files = dict[str, dict[str, Tensor]]

STATE = ModelState(
    method="ease",
    settings={},
    backbone=BackboneEntry(
        name="ease-vit",
        weights_hash="00",
        input_size=16,
        mean=[0.5, 0.5, 0.5],
        std=[0.5, 0.5, 0.5],
        interpolation="bicubic",
    ),
    classes=[ClassEntry(id=0, name="çedilla", task=0, count=3)],
    passes_per_image=1,
    learner={},
)


def state(**changes: Any) -> ModelState:
    return ModelState(**{**STATE.as_json(), **changes})


def stage(task: int) -> Files:
    """What a model holds after a task: one file more per kind, and a learner state that changes."""
    grown = {f"subspaces/{t:04d}": {"down": torch.full((2, 3), float(t))} for t in range(task + 1)}
    grown |= {f"prototypes/{t:04d}": {"sums": torch.full((3,), t + 0.5)} for t in range(task + 1)}
    return grown | {"learner/0000": {"head": torch.full((2,), 10.0 + task)}}


def same(found: Files, expected: Files) -> bool:
    return found.keys() == expected.keys() and all(
        found[f].keys() == expected[f].keys()
        and all(torch.equal(found[f][name], value) for name, value in tensors.items())
        for f, tensors in expected.items()
    )


def content(folder: Path) -> dict[str, bytes]:
    names = (f for f in folder.rglob("*") if f.is_file() and f.name != ".lock")
    return {str(f.relative_to(folder)): f.read_bytes() for f in names}


def temporaries(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.tmp-*"))


def replaced(number: int) -> Files:
    """A generation that shares one file with all others and replaces another, of a kilobyte."""
    return {
        "subspaces/0000": {"down": torch.ones(4096)},
        "learner/0000": {"sums": torch.full((256,), 1.0 * number)},
    }


def test_files_that_every_generation_replaces_do_not_pile_up(tmp_path: Path) -> None:
    directory = ModelDirectory(tmp_path / "model", history_limit=4_000)
    for number in range(1, 13):
        directory.commit(STATE, replaced(number))
    assert directory.generations() == [9, 10, 11, 12]
    assert len(list((directory.path / "learner").iterdir())) == 4
    for number in directory.generations():
        assert same(directory.load(number).files, replaced(number))
    with pytest.raises(EaseError, match="no generation 8: known: 9, 10, 11, 12"):
        directory.rollback(8)
    directory.rollback(9)
    assert directory.commit(STATE, replaced(13)) == 13


def test_no_more_generations_are_kept_than_a_commit_can_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "HISTORY_GENERATIONS", 3)
    directory = ModelDirectory(tmp_path / "model")
    for number in range(1, 8):
        directory.commit(STATE, replaced(number))
    assert directory.generations() == [4, 5, 6, 7]
    directory.rollback(4)
    assert same(directory.load().files, replaced(4))


def test_the_generation_before_always_stays(tmp_path: Path) -> None:
    directory = ModelDirectory(tmp_path / "model", history_limit=0)
    for number in range(1, 5):
        directory.commit(STATE, replaced(number))
    assert directory.generations() == [3, 4]


def test_generations_that_only_add_files_are_all_kept(tmp_path: Path) -> None:
    directory = ModelDirectory(tmp_path / "model", history_limit=0)
    for task in range(4):
        directory.commit(STATE, {name: value for name, value in stage(task).items() if name[0] != "l"})
    assert directory.generations() == [1, 2, 3, 4]


def test_old_generations_that_cannot_be_removed_do_not_undo_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ModelDirectory(tmp_path / "model", history_limit=0)
    for number in (1, 2):
        directory.commit(STATE, replaced(number))

    def refuse(path: Path) -> None:
        raise EaseError(f"cannot remove {path}")

    with monkeypatch.context() as patch:
        patch.setattr(durable, "remove", refuse)
        assert directory.commit(STATE, replaced(3)) == 3
    assert directory.generations() == [1, 2, 3]
    directory.commit(STATE, replaced(4))
    assert directory.generations() == [3, 4]
    assert unreferenced(directory) == set()


def unreferenced(directory: ModelDirectory) -> set[str]:
    manifests = [directory.manifest(number) for number in directory.generations()]
    needed = {entry.path for manifest in manifests for entry in manifest.files.values()}
    return {name for name in content(directory.path) if name.endswith(".safetensors")} - needed


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its exit code."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(autouse=True)
def _no_fault_stays() -> Iterator[None]:
    yield
    durable.fault = durable._no_fault


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    return ModelDirectory(tmp_path / "model")


@pytest.fixture
def grown(directory: ModelDirectory) -> ModelDirectory:
    for task in range(2):
        directory.commit(state(seed=task), stage(task))
    return directory


# --- growing --------------------------------------------------------------------------------------


def test_a_model_comes_back_as_it_went(directory: ModelDirectory) -> None:
    assert not directory.exists
    assert directory.generations() == []
    assert directory.commit(STATE, stage(0)) == 1
    again = ModelDirectory(str(directory.path))
    assert again.exists
    generation = again.load()
    assert generation.number == 1
    assert same(generation.files, stage(0))
    assert generation.manifest.format == FORMAT
    assert {key: getattr(generation.manifest, key) for key in dict(STATE)} == dict(STATE)
    again.verify()


def test_the_layout_is_the_one_in_the_contract(grown: ModelDirectory) -> None:
    assert sorted(content(grown.path)) == [
        "learner/0000-g0002.safetensors",
        "learner/0000.safetensors",
        "manifest.json",
        "manifests/0001.json",
        "manifests/0002.json",
        "prototypes/0000.safetensors",
        "prototypes/0001.safetensors",
        "subspaces/0000.safetensors",
        "subspaces/0001.safetensors",
    ]
    assert grown.manifest_path.read_bytes() == (grown.path / "manifests" / "0002.json").read_bytes()
    for entry in grown.manifest().files.values():
        data = (grown.path / entry.path).read_bytes()
        assert entry == StoredFile(entry_of(data).sha256, len(data), entry.path)


def test_old_files_are_never_touched_when_the_model_grows(grown: ModelDirectory) -> None:
    def facts() -> dict[str, tuple[int, int]]:
        paths = [f for f in grown.path.rglob("*") if f.is_file() and f.name not in ("manifest.json", ".lock")]
        return {str(f): (f.stat().st_ino, f.stat().st_mtime_ns) for f in paths}

    before = facts()
    grown.commit(STATE, stage(2))
    after = facts()
    assert {name: after[name] for name in before} == before
    assert len(after) == len(before) + 4  # subspace, prototypes, learner, manifest


def test_each_generation_keeps_its_own_content(grown: ModelDirectory) -> None:
    assert same(grown.load(1).files, stage(0))
    assert same(grown.load(2).files, stage(1))
    assert grown.load(1).manifest.seed == 0


def test_only_the_named_files_are_read(grown: ModelDirectory) -> None:
    (grown.path / "subspaces" / "0000.safetensors").write_bytes(b"broken")
    assert same(
        grown.load(names=["learner/0000"]).files, {"learner/0000": {"head": torch.tensor([11.0, 11.0])}}
    )
    with pytest.raises(EaseError, match="no file 'learner/9999' in generation 2: known: learner/0000"):
        grown.load(names=["learner/9999"])


def test_kept_files_are_carried_over_and_others_left_behind(grown: ModelDirectory) -> None:
    before = content(grown.path)
    grown.commit(STATE, {"learner/0000": {"head": torch.zeros(2)}}, keep=["subspaces/0000"])
    assert sorted(grown.load().files) == ["learner/0000", "subspaces/0000"]
    assert same(grown.load(2).files, stage(1))
    assert {k: v for k, v in content(grown.path).items() if k in before and k != "manifest.json"} == {
        k: v for k, v in before.items() if k != "manifest.json"
    }
    with pytest.raises(EaseError, match="no file 'memory/0000' to keep"):
        grown.commit(STATE, {}, keep=["memory/0000"])
    (grown.path / "subspaces" / "0000.safetensors").write_bytes(b"broken")
    with pytest.raises(EaseError, match="6 bytes in place of"):
        grown.commit(STATE, {}, keep=["subspaces/0000"])


def test_content_that_returns_is_found_again(grown: ModelDirectory) -> None:
    files = set(content(grown.path))
    grown.commit(STATE, stage(0))  # the learner state of the first generation
    assert set(content(grown.path)) - files == {"manifests/0003.json"}


def test_a_damaged_file_is_written_anew_when_its_content_is_at_hand(grown: ModelDirectory) -> None:
    (grown.path / "subspaces" / "0000.safetensors").write_bytes(b"broken")
    grown.commit(STATE, stage(1))
    assert same(grown.load().files, stage(1))
    with pytest.raises(EaseError, match="damaged"):
        grown.load(2)


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are encoded from now on."""
    names: list[str] = []
    encode = encode_tensors

    def counted(tensors: Any, metadata: Any = None) -> bytes:
        names.append(metadata[store.OWNER])
        return encode(tensors, metadata)

    monkeypatch.setattr(store, "encode_tensors", counted)
    return names


def test_a_commit_encodes_and_reads_only_what_is_new(
    directory: ModelDirectory, encoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = stage(2)
    directory.commit(STATE, kept)
    encoded.clear()
    monkeypatch.setattr(store, "read_checked", None)
    more = {"subspaces/0003": {"down": torch.zeros(1)}}
    directory.commit(STATE, kept | more)
    assert encoded == ["subspaces/0003"]
    directory.commit(STATE, {name: {k: v.clone() for k, v in one.items()} for name, one in kept.items()})
    assert encoded == ["subspaces/0003"]  # other tensors of the same content
    monkeypatch.undo()
    assert same(directory.load(2).files, kept | more)


def test_what_was_loaded_is_not_encoded_again(grown: ModelDirectory, encoded: list[str]) -> None:
    again = ModelDirectory(grown.path)
    files = again.load().files
    files["subspaces/0001"]["down"][0, 0] = 9.0
    again.commit(STATE, files)
    assert encoded == ["subspaces/0001"]
    assert again.load().files["subspaces/0001"]["down"][0, 0] == 9.0


@pytest.mark.parametrize("size", [2, SMALL + 1])
def test_tensors_that_changed_in_any_way_are_saved_again(
    directory: ModelDirectory, encoded: list[str], size: int
) -> None:
    name, kept = "learner/0000", {"a": torch.zeros(size), "b": torch.ones(size)}
    directory.commit(STATE, {name: kept})
    changes: list[dict[str, Tensor]] = [
        {"a": kept["a"].add_(5), "b": kept["b"]},
        {"a": kept["b"], "b": kept["a"]},
        {"a": kept["a"]},
        {"a": kept["a"].double()},
        {"a": kept["a"][None]},
        {"a": kept["a"], "c": kept["b"]},
    ]
    for change in changes:
        expected = {key: value.clone() for key, value in change.items()}
        encoded.clear()
        directory.commit(STATE, {name: change})
        assert encoded == [name]
        assert same(ModelDirectory(directory.path).load().files, {name: expected})


def test_a_file_of_unchanged_tensors_that_was_damaged_is_written_anew(directory: ModelDirectory) -> None:
    kept = stage(0)
    directory.commit(STATE, kept)
    path = directory.path / "subspaces" / "0000.safetensors"
    path.write_bytes(changed(path.read_bytes(), 0.9, 1))
    os.utime(path, (1, 1))  # whatever the clock of the file system resolves
    directory.commit(STATE, kept)
    assert same(directory.load().files, kept)


def test_the_manifests_of_the_history_take_bounded_space(
    directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.commit(STATE, stage(0))
    monkeypatch.setattr(store, "HISTORY_MANIFESTS", 3 * directory.manifest_path.stat().st_size + 100)
    for _ in range(6):
        directory.commit(STATE, stage(0))
    assert directory.generations() == [4, 5, 6, 7]
    monkeypatch.setattr(store, "HISTORY_MANIFESTS", 0)
    directory.commit(STATE, stage(0))
    assert directory.generations() == [7, 8]  # the newest earlier one is always kept


def test_two_directories_with_equal_tensors_have_equal_files(tmp_path: Path) -> None:
    both = [ModelDirectory(tmp_path / name) for name in "ab"]
    for one in both:
        one.commit(STATE, stage(1))
    a, b = ({k: v for k, v in content(one.path).items() if k.endswith(".safetensors")} for one in both)
    assert a == b


@pytest.mark.parametrize(
    "name", ["", "x", "a/b/c", "../x", "/x/y", "a/..", ".a/b", "a/.b", "manifests/0001", "a\\b/c", "a/b\n"]
)
def test_a_name_that_is_no_place_is_refused(directory: ModelDirectory, name: str) -> None:
    with pytest.raises(ValueError, match="is no model file"):
        directory.commit(STATE, {name: {}})
    assert not directory.path.exists()


def test_the_longest_name_can_be_written_twice_and_read(directory: ModelDirectory) -> None:
    name = f"{'k' * 64}/{'n' * 64}"
    for value in (1.0, 2.0):
        directory.commit(STATE, {name: {"w": torch.tensor(value)}})
    assert [directory.load(g).files[name]["w"].item() for g in (1, 2)] == [1.0, 2.0]


def test_names_that_look_like_later_paths_do_not_collide(directory: ModelDirectory) -> None:
    tricky = {"learner/0000-g0002": {"x": torch.tensor(7.0)}}
    directory.commit(STATE, stage(0) | tricky)
    directory.commit(STATE, stage(1) | tricky)
    assert same(directory.load(1).files, stage(0) | tricky)
    assert same(directory.load(2).files, stage(1) | tricky)


@pytest.mark.parametrize("values", [{"loss": float("nan")}, {"x": object()}])
def test_values_that_cannot_be_stored_are_refused_before_writing(
    directory: ModelDirectory, values: dict[str, Any]
) -> None:
    with pytest.raises((ValueError, TypeError)):
        directory.commit(state(learner=values), stage(0))
    assert not directory.path.exists()


def test_values_are_stored_as_json_knows_them(directory: ModelDirectory) -> None:
    directory.commit(state(learner={"counts": {1: (2, 3)}, "name": "\udcff"}, method="\udcff"), {})
    assert directory.manifest().learner == {"counts": {"1": [2, 3]}, "name": "\udcff"}
    assert directory.manifest().method == "\udcff"


# --- going back -----------------------------------------------------------------------------------


def test_after_a_rollback_numbers_go_on_and_nothing_is_lost(grown: ModelDirectory) -> None:
    grown.commit(STATE, stage(2))
    grown.rollback(1)
    assert same(grown.load().files, stage(0))
    assert grown.manifest_path.read_bytes() == (grown.path / "manifests" / "0001.json").read_bytes()
    other = stage(0) | {"subspaces/0001": {"down": torch.full((2, 3), -1.0)}}
    assert grown.commit(STATE, other) == 4
    assert grown.generations() == [1, 2, 3, 4]
    for number, expected in {1: stage(0), 2: stage(1), 3: stage(2), 4: other}.items():
        assert same(grown.load(number).files, expected)
    grown.rollback(3)
    assert same(grown.load().files, stage(2))


def test_a_rollback_goes_only_to_a_whole_generation(grown: ModelDirectory) -> None:
    with pytest.raises(EaseError, match="no generation 7: known: 1, 2"):
        grown.rollback(7)
    (grown.path / "learner" / "0000.safetensors").unlink()
    with pytest.raises(EaseError, match="does not exist"):
        grown.rollback(1)
    assert grown.load().number == 2


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_rollback_rescues_a_lost_manifest(grown: ModelDirectory, harm: Callable[[Path], Any]) -> None:
    harm(grown.manifest_path)
    with pytest.raises(EaseError, match=r"roll back to|restore it"):
        grown.load()
    grown.rollback(2)
    assert same(grown.load().files, stage(1))


def test_cleared_history_leaves_the_current_generation_alone(grown: ModelDirectory) -> None:
    secret = (grown.path / "learner" / "0000.safetensors").read_bytes()
    grown.clear_history()
    assert same(grown.load().files, stage(1))
    assert grown.generations() == [2]
    assert secret not in content(grown.path).values()
    assert unreferenced(grown) == set()
    assert grown.commit(STATE, stage(2)) == 3


@pytest.mark.parametrize("harm", [Path.unlink, lambda path: path.write_bytes(b"{")])
@pytest.mark.parametrize("act", [ModelDirectory.clear_history, lambda d: d.commit(STATE, stage(2))])
def test_the_numbered_copy_of_a_good_manifest_is_mended(
    grown: ModelDirectory, harm: Callable[[Path], Any], act: Callable[[ModelDirectory], Any]
) -> None:
    harm(grown.path / "manifests" / "0002.json")
    act(grown)
    assert same(grown.load(2).files, stage(1))
    assert unreferenced(grown) == set()


# --- accidents ------------------------------------------------------------------------------------


def recorded_points(directory: ModelDirectory, work: Callable[[ModelDirectory], object]) -> list[str]:
    points: list[str] = []
    durable.fault = lambda point, path: points.append(f"{point} {path.name}")
    try:
        work(directory)
    finally:
        durable.fault = durable._no_fault
    return points


def strike_at(number: int, strike: Callable[[], None]) -> Callable[[str, Path], None]:
    left = iter(range(number, -1, -1))

    def fault(point: str, path: Path) -> None:
        if next(left, None) == 0:
            strike()

    return fault


def next_step(directory: ModelDirectory) -> int:
    return directory.commit(state(seed=1), stage(1))


def test_a_commit_syncs_every_file_and_folder_before_the_manifest_names_them(
    directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.commit(STATE, stage(0))
    synced: set[int] = set()
    at_the_end: set[int] = set()
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle: int) -> None:
        fsync(handle)
        synced.add(os.fstat(handle).st_ino)

    def record_replace(source: Path, target: Path) -> None:
        if target == directory.manifest_path:
            at_the_end.update(synced)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    directory.commit(STATE, stage(1))
    new = ["subspaces/0001.safetensors", "prototypes/0001.safetensors", "learner/0000-g0002.safetensors"]
    for name in [
        *new,
        "manifests/0002.json",
        "manifest.json",
        "subspaces",
        "prototypes",
        "learner",
        "manifests",
    ]:
        assert (directory.path / name).stat().st_ino in at_the_end, name
    assert directory.path.stat().st_ino in synced


def test_a_commit_ends_with_its_manifests(directory: ModelDirectory) -> None:
    points = recorded_points(directory, lambda d: d.commit(STATE, stage(0)))
    replaced = [point.split()[1] for point in points if point.startswith("after-replace")]
    assert replaced[-2:] == ["0001.json", "manifest.json"]
    assert len(replaced) == 5


@pytest.mark.parametrize("first", [True, False])
def test_a_kill_at_any_instant_leaves_the_last_good_generation(tmp_path: Path, first: bool) -> None:
    """First commit and second; each child dies at one point, then the model is opened and grows on."""
    origin = ModelDirectory(tmp_path / "origin")
    if not first:
        origin.commit(state(seed=0), stage(0))
    rehearsal = tmp_path / "rehearsal"
    shutil.copytree(origin.path, rehearsal) if origin.exists else None
    points = recorded_points(ModelDirectory(rehearsal), next_step)
    assert len(points) >= 40
    outcomes = []
    for number in range(len(points)):
        victim = ModelDirectory(tmp_path / f"victim{number}")
        shutil.copytree(origin.path, victim.path) if origin.exists else None

        def doomed(victim: ModelDirectory = victim, number: int = number) -> None:
            durable.fault = strike_at(number, lambda: os._exit(9))
            next_step(victim)

        assert in_child(doomed) == 9
        before = content(victim.path)
        new = f"after-replace {victim.manifest_path.name}" in points[: number + 1]
        if new:
            assert same(victim.load().files, stage(1))
            assert victim.manifest().seed == 1
        elif first:
            assert not victim.exists
            with pytest.raises(EaseError, match="there is no model"):
                victim.load()
        else:
            assert same(victim.load().files, stage(0))
            assert victim.manifest().seed == 0
        for generation in victim.generations():  # what is listed is whole
            victim.verify(generation)
        assert content(victim.path) == before, "reading must not write"
        outcomes.append(new)

        taken = victim.generations()
        assert victim.commit(STATE, stage(2)) == max(taken, default=0) + 1
        assert same(victim.load().files, stage(2))
        assert temporaries(victim.path) == []
        assert unreferenced(victim) == set()
        if not first:
            assert same(victim.load(1).files, stage(0))
    assert {True, False} == set(outcomes)


def test_a_kill_while_going_back_or_clearing_leaves_a_whole_model(tmp_path: Path) -> None:
    origin = ModelDirectory(tmp_path / "origin")
    for task in range(3):
        origin.commit(STATE, stage(task))
    works: list[tuple[Callable[[ModelDirectory], None], tuple[int, ...]]] = [
        (lambda d: d.rollback(1), (1, 3)),
        (lambda d: d.clear_history(), (3,)),
    ]
    for work, allowed in works:
        shutil.copytree(origin.path, tmp_path / "rehearsal")
        points = recorded_points(ModelDirectory(tmp_path / "rehearsal"), work)
        shutil.rmtree(tmp_path / "rehearsal")
        assert len(points) >= 8
        for number in range(len(points)):
            victim = ModelDirectory(tmp_path / "victim")
            shutil.copytree(origin.path, victim.path)

            def doomed(
                victim: ModelDirectory = victim,
                number: int = number,
                work: Callable[[ModelDirectory], None] = work,
            ) -> None:
                durable.fault = strike_at(number, lambda: os._exit(9))
                work(victim)

            assert in_child(doomed) == 9
            assert victim.load().number in allowed
            for generation in victim.generations():
                assert same(victim.load(generation).files, stage(generation - 1))
            work(victim)  # again, to its end
            assert victim.load().number == allowed[0]
            assert unreferenced(victim) == set()
            assert temporaries(victim.path) == []
            shutil.rmtree(victim.path)


@pytest.mark.parametrize("first", [True, False])
def test_a_full_disk_at_any_instant_changes_nothing(tmp_path: Path, first: bool) -> None:
    def strike() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    model = ModelDirectory(tmp_path / "model")
    if not first:
        model.commit(STATE, stage(0))
    rehearsal = tmp_path / "rehearsal"
    shutil.copytree(model.path, rehearsal) if model.exists else None
    points = recorded_points(ModelDirectory(rehearsal), next_step)
    before = content(model.path)
    for number in range(len(points)):
        durable.fault = strike_at(number, strike)
        with pytest.raises(EaseError, match="the disk is full: free some space"):
            next_step(model)
        durable.fault = durable._no_fault
        assert content(model.path) == before, points[number]
        if first:
            shutil.rmtree(model.path, ignore_errors=True)
    assert next_step(model) == (1 if first else 2)
    assert same(model.load().files, stage(1))


def test_a_disk_that_stays_full_from_some_instant_on_leaves_a_whole_model(tmp_path: Path) -> None:
    """Then even the way back may be barred; the model is old or new, never between."""

    def never_again(number: int) -> Callable[[str, Path], None]:
        seen = iter(range(10**6))

        def fault(point: str, path: Path) -> None:
            if next(seen) >= number:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return fault

    origin = ModelDirectory(tmp_path / "origin")
    origin.commit(STATE, stage(0))
    shutil.copytree(origin.path, tmp_path / "rehearsal")
    points = recorded_points(ModelDirectory(tmp_path / "rehearsal"), next_step)
    for number in range(len(points)):
        victim = ModelDirectory(tmp_path / f"victim{number}")
        shutil.copytree(origin.path, victim.path)
        durable.fault = never_again(number)
        with pytest.raises(EaseError, match="the disk is full"):
            next_step(victim)
        durable.fault = durable._no_fault
        generation = victim.load()
        assert same(generation.files, stage(generation.number - 1))
        assert temporaries(victim.path) == []
        next_step(victim)
        assert same(victim.load().files, stage(1))


def test_an_interruption_at_any_instant_changes_nothing(grown: ModelDirectory, tmp_path: Path) -> None:
    def strike() -> None:
        raise KeyboardInterrupt

    shutil.copytree(grown.path, tmp_path / "rehearsal")
    points = recorded_points(ModelDirectory(tmp_path / "rehearsal"), lambda d: d.commit(STATE, stage(2)))
    before = content(grown.path)
    for number in range(len(points)):
        durable.fault = strike_at(number, strike)
        with pytest.raises(KeyboardInterrupt):
            grown.commit(STATE, stage(2))
        durable.fault = durable._no_fault
        assert content(grown.path) == before, points[number]


def test_a_real_file_size_limit_changes_nothing(grown: ModelDirectory) -> None:
    before = content(grown.path)

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        with pytest.raises(EaseError, match="file size limit is reached"):
            grown.commit(STATE, stage(2) | {"memory/0000": {"images": torch.zeros(5000)}})

    assert in_child(limited) == 0
    assert content(grown.path) == before


def test_the_sweep_spares_what_is_not_ours(grown: ModelDirectory, tmp_path: Path) -> None:
    mine = {
        "notes.txt": b"x",
        "subspaces/readme.md": b"x",
        "subspaces/mine.safetensors": encode_tensors({"w": torch.ones(1)}),
        "subspaces/broken.safetensors": b"x",
        "backup/0000.safetensors": (grown.path / "subspaces" / "0000.safetensors").read_bytes(),
        "learner/0000-copy.txt": b"x",
        ".record.json.tmp-1-00": b"another writer's, in the same folder",
    }
    orphan = {
        "subspaces/0007.safetensors": encode_tensors({}, {store.OWNER: "subspaces/0007"}),
        "subspaces/.0007.safetensors.tmp-1-00": b"x",
        "manifests/.0007.json.tmp-1-00": b"x",
        ".manifest.json.tmp-1-00": b"x",
    }
    for name, data in (mine | orphan).items():
        (grown.path / name).parent.mkdir(exist_ok=True)
        (grown.path / name).write_bytes(data)
    outside = tmp_path / "outside"
    outside.mkdir()
    for name, data in orphan.items():
        (outside / Path(name).name).write_bytes(data)
    (grown.path / "memory").symlink_to(outside)
    grown.load()
    assert set(orphan) <= set(content(grown.path))
    grown.commit(STATE, stage(1))
    left = content(grown.path)
    assert {name: left[name] for name in mine} == mine
    assert not set(orphan) & set(left)
    assert len(list(outside.iterdir())) == len(orphan)


def test_nothing_is_swept_while_a_manifest_cannot_be_read(grown: ModelDirectory) -> None:
    old = grown.path / "manifests" / "0001.json"
    raw = old.read_bytes()
    old.write_bytes(b"{")
    grown.commit(STATE, stage(2))  # an old damaged manifest does not keep the model from growing
    with pytest.raises(EaseError, match="damaged"):
        grown.load(1)
    old.write_bytes(raw)  # from a backup
    assert same(grown.load(1).files, stage(0))


# --- damage and malice ----------------------------------------------------------------------------


def changed(data: bytes, where: float, flip: int) -> bytes:
    position = int(where * len(data))
    return data[:position] + bytes([data[position] ^ flip]) + data[position + 1 :]


FRACTION = st.floats(0, 1, exclude_max=True)
UNTIDY = [HealthCheck.function_scoped_fixture]


@given(where=FRACTION, flip=st.integers(1, 255), which=st.integers(0, 8))
@settings(deadline=None, max_examples=100, suppress_health_check=UNTIDY)
def test_any_flipped_byte_is_an_error_and_never_a_wrong_load(
    tmp_path: Path, where: float, flip: int, which: int
) -> None:
    model = ModelDirectory(tmp_path / "model")
    if not model.exists:
        for task in range(2):
            model.commit(STATE, stage(task))
    original = content(model.path)
    name = sorted(original)[which]
    (model.path / name).write_bytes(changed(original[name], where, flip))
    refused = 0
    for generation, expected in {None: stage(1), 1: stage(0), 2: stage(1)}.items():
        try:
            assert same(model.load(generation).files, expected)
        except EaseError:
            refused += 1
    assert refused > 0
    (model.path / name).write_bytes(original[name])


def test_every_flipped_byte_of_the_manifest_is_an_error(directory: ModelDirectory) -> None:
    directory.commit(STATE, {"learner/0": {"w": torch.ones(1)}})
    raw = directory.manifest_path.read_bytes()
    for position in range(len(raw)):
        for flip in (1, 32):
            directory.manifest_path.write_bytes(changed(raw, position / len(raw) + 1e-9, flip))
            with pytest.raises(EaseError):
                directory.manifest()


def test_a_cut_file_is_an_error(grown: ModelDirectory) -> None:
    for name, data in content(grown.path).items():
        for length in (0, len(data) // 2, len(data) - 1):
            (grown.path / name).write_bytes(data[:length])
            with pytest.raises(EaseError):
                [grown.load(number) for number in (None, 1, 2)]
        (grown.path / name).write_bytes(data)


def forge(directory: ModelDirectory, change: Callable[[dict[str, Any]], Any]) -> None:
    """What a stranger who knows the format could write: a changed manifest with a right checksum."""
    manifest = json.loads(directory.manifest_path.read_text(encoding="utf-8"))
    del manifest["checksum"]
    change(manifest)
    directory.manifest_path.write_bytes(sealed(manifest))


@pytest.mark.parametrize(
    "path",
    [
        "../secret.safetensors",
        "subspaces/../../secret.safetensors",
        "/etc/secret.safetensors",
        "..\\secret.safetensors",
        "C:/secret.safetensors",
        "secret.safetensors",
        "subspaces/0000.safetensors\n",
        "subspaces/0000.json",
        "manifests/0001.safetensors",
        "",
        None,
        7,
        ["subspaces/0000.safetensors"],
    ],
)
def test_a_path_out_of_the_directory_is_refused(grown: ModelDirectory, path: object) -> None:
    write_tensors(grown.path.parent / "secret.safetensors", {"w": torch.ones(1)})
    forge(grown, lambda m: m["files"]["subspaces/0000"].update(path=path))
    with pytest.raises(EaseError, match="the path of 'subspaces/0000' is not one inside the model directory"):
        grown.load()


@pytest.mark.parametrize("link", ["file", "folder"])
def test_a_link_out_of_the_directory_is_refused(grown: ModelDirectory, tmp_path: Path, link: str) -> None:
    inside = grown.path / "subspaces"
    shutil.copytree(inside, tmp_path / "outside")
    if link == "file":
        (inside / "0000.safetensors").unlink()
        (inside / "0000.safetensors").symlink_to(tmp_path / "outside" / "0000.safetensors")
    else:
        shutil.rmtree(inside)
        inside.symlink_to(tmp_path / "outside")
    for act in (grown.load, grown.verify, lambda: grown.commit(STATE, {}, keep=["subspaces/0000"])):
        with pytest.raises(EaseError, match="leads out of the model directory"):
            act()
    if link == "folder":
        with pytest.raises(EaseError, match="leads out of the model directory"):
            grown.commit(STATE, stage(3))


def test_the_directory_itself_may_be_reached_by_a_link(grown: ModelDirectory, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(grown.path)
    linked = ModelDirectory(tmp_path / "link")
    linked.commit(STATE, stage(2))
    assert same(grown.load().files, stage(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.update(files=[]),
        lambda m: m.pop("files"),
        lambda m: m["files"].update({"../x": m["files"]["subspaces/0000"]}),
        lambda m: m["files"].update({"x/y": 1}),
        lambda m: m["files"]["subspaces/0000"].update(size=-1),
        lambda m: m["files"]["subspaces/0000"].update(size=True),
        lambda m: m["files"]["subspaces/0000"].update(size=10**15),
        lambda m: m["files"]["subspaces/0000"].update(size="88"),
        lambda m: m["files"]["subspaces/0000"].update(sha256="0" * 63),
        lambda m: m["files"]["subspaces/0000"].update(sha256="0" * 64),
        lambda m: m["files"]["subspaces/0000"].pop("sha256"),
        lambda m: m.update(generation=0),
        lambda m: m.update(generation="2"),
        lambda m: m.update(generation=10**30),
        lambda m: m.update(format="1"),
        lambda m: m.pop("format"),
    ],
)
def test_a_forged_manifest_is_refused(grown: ModelDirectory, change: Callable[[dict[str, Any]], Any]) -> None:
    forge(grown, change)
    with pytest.raises(EaseError, match="damaged"):
        grown.load()


@pytest.mark.parametrize("raw", [b"[]", b"3", b"null", b"[" * 10**5, b'{"format": 1}', b"\x80\x04N."])
def test_what_is_no_manifest_is_refused(grown: ModelDirectory, raw: bytes) -> None:
    grown.manifest_path.write_bytes(raw)
    for act in (grown.load, grown.verify, lambda: grown.commit(STATE, stage(2))):
        with pytest.raises(EaseError, match="damaged"):
            act()


def test_a_huge_manifest_is_not_read(grown: ModelDirectory) -> None:
    os.truncate(grown.manifest_path, JSON_LIMIT + 1)
    with pytest.raises(EaseError, match="allowed"):
        grown.load()


def test_a_manifest_under_another_number_is_refused(grown: ModelDirectory) -> None:
    shutil.copy(grown.path / "manifests" / "0002.json", grown.path / "manifests" / "0001.json")
    with pytest.raises(EaseError, match="it holds generation 2"):
        grown.load(1)


def test_a_later_format_asks_for_an_upgrade(grown: ModelDirectory) -> None:
    manifest = json.loads(grown.manifest_path.read_text(encoding="utf-8"))
    grown.manifest_path.write_text(json.dumps({"format": FORMAT + 1, "new": manifest}))
    before = content(grown.path)
    for act in (grown.load, grown.verify, lambda: grown.commit(STATE, stage(2))):
        with pytest.raises(EaseError, match=f"has format {FORMAT + 1}.*upgrade ease-cil"):
            act()
    assert content(grown.path) == before


# --- a new model ----------------------------------------------------------------------------------


def fault_points(directory: ModelDirectory) -> int:
    """How many points a first commit passes."""
    seen: list[str] = []
    durable.fault = lambda point, _: seen.append(point)
    directory.commit(STATE, stage(0))
    durable.fault = durable._no_fault
    shutil.rmtree(directory.path)
    return len(seen)


class Countdown:
    """Does something at the n-th point."""

    def __init__(self, number: int, act: Callable[[], None]) -> None:
        self.left, self.act = number, act

    def __call__(self, point: str, path: Path) -> None:
        self.left -= 1
        if self.left == 0:
            self.act()


def test_a_first_commit_that_fails_leaves_nothing(directory: ModelDirectory) -> None:
    def strike() -> None:
        raise OSError(errno.ENOSPC, "full")

    for number in range(1, fault_points(directory) + 1):
        durable.fault = Countdown(number, strike)
        with pytest.raises(EaseError, match="disk is full"):
            ModelDirectory(directory.path / "in" / "there").commit(STATE, stage(0))
        durable.fault = durable._no_fault
        assert not directory.path.exists(), number


def test_where_a_first_commit_was_killed_a_new_model_can_be_made(directory: ModelDirectory) -> None:
    ends = set()
    for number in range(1, fault_points(directory) + 1):
        durable.fault = Countdown(number, lambda: os._exit(9))
        assert in_child(lambda: directory.commit(STATE, stage(0)) and None) == 9
        durable.fault = durable._no_fault
        try:
            directory.check_free()
            assert directory.commit(STATE, stage(1)) == 1
            ends.add("free")
        except EaseError as error:
            if "ease rollback 1" in str(
                error
            ):  # all but the last step was done: what was learned is not thrown away
                directory.rollback(1)
                ends.add("rolled back")
            assert same(directory.load().files, stage(0))
            ends.add("whole")
        assert not temporaries(directory.path)
        shutil.rmtree(directory.path)
    assert ends == {"free", "rolled back", "whole"}


@pytest.mark.parametrize(
    "name", ["notes.txt", "subspaces/mine.safetensors", "photos/a.png", ".hidden", "learner"]
)
def test_no_model_is_made_among_other_things(directory: ModelDirectory, name: str) -> None:
    directory.check_free()
    path = directory.path / name
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(EaseError, match="is not empty: choose a new folder"):
        directory.check_free()
    assert path.read_text() == "mine"


def test_a_writer_that_writes_nothing_leaves_nothing(directory: ModelDirectory) -> None:
    deep = ModelDirectory(directory.path / "a" / "b")
    with deep.writing():
        assert (deep.path / ".lock").exists()
    assert not directory.path.exists()
    directory.path.mkdir()
    with directory.writing():
        pass
    assert directory.path.exists()  # somebody else has made it
    with deep.writing():
        (deep.path / "kept").touch()
    assert (deep.path / "kept").exists()


def test_a_lock_that_its_holder_removed_is_no_lock(
    directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening the file and locking it, its last holder may have removed it: two would hold two locks."""
    locks, real = iter([True, False]), lock._lock

    def slow(handle: int) -> None:
        real(handle)
        if next(locks, False):
            shutil.rmtree(directory.path)

    monkeypatch.setattr(lock, "_lock", slow)
    with directory.writing():
        with (
            pytest.raises(EaseError, match="another process is writing"),
            ModelDirectory(directory.path).writing(),
        ):
            pass
        assert (directory.path / ".lock").exists()


# --- one writer -----------------------------------------------------------------------------------


def test_a_second_process_is_refused_until_the_first_is_done(directory: ModelDirectory) -> None:
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with ModelDirectory(directory.path).writing():
            os.write(tell, b"held")
            signal.pause()
    try:
        assert os.read(told, 10) == b"held"
        with pytest.raises(EaseError, match=f"^another process is writing {directory.path}: wait"):
            directory.commit(STATE, stage(0))
        assert not directory.exists
    finally:
        os.kill(child, signal.SIGKILL)  # no chance to tidy up: the system releases the lock
        os.waitpid(child, 0)
        os.close(told)
        os.close(tell)
    assert directory.commit(STATE, stage(0)) == 1


def test_two_objects_and_two_threads_exclude_each_other(directory: ModelDirectory) -> None:
    refused: list[str] = []

    def try_to_write() -> None:
        try:
            directory.commit(STATE, stage(0))
        except EaseError as error:
            refused.append(str(error))

    with directory.writing():
        with pytest.raises(EaseError, match="another process is writing"):
            ModelDirectory(directory.path).commit(STATE, stage(0))
        thread = threading.Thread(target=try_to_write)
        thread.start()
        thread.join()
        assert len(refused) == 1
        assert directory.commit(STATE, stage(0)) == 1  # the holder may
        directory.commit(STATE, stage(1))
    assert ModelDirectory(directory.path).commit(STATE, stage(2)) == 3


def test_a_forked_worker_does_not_keep_the_lock(directory: ModelDirectory) -> None:
    """A data loader's worker inherits every open file, and may outlive the parent that wrote."""
    told, tell = os.pipe()
    wait, release = os.pipe()
    with directory.writing():
        child = os.fork()
        if child == 0:
            os.close(release)
            try:
                directory.commit(STATE, stage(0))
                os.write(tell, b"wrote")
            except EaseError:  # the parent's lock is not the child's
                os.write(tell, b"refused")
            os.read(wait, 1)
            os._exit(0)
        answer = os.read(told, 10)
    try:
        assert answer == b"refused"
        assert ModelDirectory(directory.path).commit(STATE, stage(0)) == 1
    finally:
        os.close(release)
        os.waitpid(child, 0)
        for handle in (told, tell, wait):
            os.close(handle)


def test_where_the_file_system_cannot_lock_a_flag_file_serves(
    directory: ModelDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(handle: int) -> None:
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr(lock, "_lock", unsupported)
    with (
        directory.writing(),
        pytest.raises(EaseError, match=r"if none is, delete \S+\.lock-held"),
        ModelDirectory(directory.path).writing(),
    ):
        pass
    assert directory.commit(STATE, stage(0)) == 1
    assert ModelDirectory(directory.path).commit(STATE, stage(1)) == 2


def test_reading_needs_no_lock_and_makes_nothing(grown: ModelDirectory, tmp_path: Path) -> None:
    (grown.path / ".lock").unlink()
    with ModelDirectory(tmp_path / "other").writing():
        grown.load()
    assert not (grown.path / ".lock").exists()
    nowhere = ModelDirectory(tmp_path / "nowhere")
    with pytest.raises(EaseError, match=r"there is no model in \S+nowhere .*: check the path"):
        nowhere.load()
    with pytest.raises(EaseError, match="no generation 3: known: none"):
        nowhere.load(3)
    assert not nowhere.path.exists()
