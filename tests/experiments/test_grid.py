"""A grid: each cell once, whatever happens in between; what trains the same trains once."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import ease
from ease.config import resolve
from ease.errors import EaseError
from ease.experiments import grid as grid_module
from ease.experiments.executors.local import LocalProcesses
from ease.experiments.grid import Cell, Grid
from ease.experiments.record import RunRecord
from ease.experiments.run import resume_run, start_run
from ease.methods.simplecil import SimpleCil
from ease.progress import Quiet
from ease.reporting.series import group
from ease.storage import files
from ease.storage.contents import read_tensors, write_tensors
from ease.storage.lease import LeaseLostError, lease_holder
from ease.storage.lock import WriterLock
from tests.forked import Forked

QUICK = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 6, "input_size": 16}
MAY_DIFFER = ("seconds", "peak_memory", "passes_repeated", "passes_reused", "versions")


def cell(method: str = "ease", shares: str | None = None, **options: Any) -> Cell:
    given = {**QUICK, "method": method, **options}
    if method == "ease":
        given = {"epochs": 1, "rank": 4, **given}
    return Cell(*resolve(given), shares=shares)


def comparable(record: RunRecord | None) -> dict[str, Any]:
    assert record is not None
    return {key: value for key, value in record.as_json().items() if key not in MAY_DIFFER}


def test_a_finished_cell_is_never_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = Grid(tmp_path)
    grid.run([cell("simplecil")])

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it was run again")

    monkeypatch.setattr(grid_module, "start_run", fail)
    monkeypatch.setattr(grid_module, "resume_run", fail)
    grid.run([cell("simplecil"), cell("simplecil", feature_memory=1)])


def test_cells_that_differ_in_anything_have_different_names() -> None:
    cells = [
        cell(),
        cell(alpha=0.3),
        cell(seed=7),
        cell(protocol="B0 Inc2"),
        cell("simplecil"),
        cell(epochs=2),
    ]
    assert len({each.name for each in cells}) == len(cells)


def test_a_setting_that_a_later_version_adds_leaves_finished_cells_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(SimpleCil.Settings):
        novelty: int = 3

    old = cell("simplecil")
    grid = Grid(tmp_path)
    grid.run([old])
    monkeypatch.setattr(SimpleCil, "Settings", Later)
    assert cell("simplecil").name == old.name
    assert grid.record(cell("simplecil")) is not None
    assert grid.record(cell("simplecil", novelty=4)) is None


def test_a_default_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(SimpleCil.Settings):
        novelty: int = 3

    class Later(SimpleCil.Settings):
        novelty: int = 4

    grid = Grid(tmp_path)
    monkeypatch.setattr(SimpleCil, "Settings", Earlier)
    grid.run([cell("simplecil")])
    monkeypatch.setattr(SimpleCil, "Settings", Later)
    with pytest.raises(EaseError, match=r"novelty = 3, now it would be 4: choose another --out"):
        grid.run([cell("simplecil")])


def test_an_interrupted_grid_goes_on_and_comes_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cells = [cell("simplecil"), cell()]
    whole, broken = Grid(tmp_path / "whole"), Grid(tmp_path / "broken")
    whole.run(cells)

    def interrupted(*args: Any, **kwargs: Any) -> RunRecord:
        if args[0].method == "ease":
            raise KeyboardInterrupt
        return start_run(*args, **kwargs)

    monkeypatch.setattr(grid_module, "start_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        broken.run(cells)
    assert broken.record(cells[0]) is not None
    assert broken.record(cells[1]) is None
    monkeypatch.undo()
    broken.run(cells)
    assert [comparable(broken.record(c)) for c in cells] == [comparable(whole.record(c)) for c in cells]


def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    cells = [cell("simplecil"), cell(), cell("simplecil", seed=7)]
    one, two = Grid(tmp_path / "one"), Grid(tmp_path / "two")
    one.run(cells)
    two.run(cells, LocalProcesses(2))
    assert [comparable(two.record(c)) for c in cells] == [comparable(one.record(c)) for c in cells]


def test_processes_leave_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    cells = [cell(epochs=500, seed=seed) for seed in (1, 2)]
    parent = Forked(lambda: Grid(tmp_path).run(cells, LocalProcesses(2)), tmp_path / "printed")
    started = _wait_for(lambda: len(list(tmp_path.glob("cells/*/run.json"))) == 2)
    parent.kill()
    parent.wait()
    assert started, parent.out.read_text()
    # A cell is free again when nobody works on it any more.
    assert _wait_for(lambda: not any(_locked(folder / "model") for folder in tmp_path.glob("cells/*")))


def _wait_for(done: Callable[[], bool], seconds: float = 60) -> bool:
    until = time.monotonic() + seconds
    while not done() and time.monotonic() < until:
        time.sleep(0.1)
    return done()


def _locked(folder: Path) -> bool:
    try:
        with WriterLock(folder).hold():
            return False
    except EaseError:
        return True


def test_a_cell_that_fails_does_not_stop_the_others(tmp_path: Path) -> None:
    grid, bad, good = (
        Grid(tmp_path),
        cell("simplecil", data_root="nowhere", dataset="folder"),
        cell("simplecil"),
    )
    with pytest.raises(EaseError, match=r"1 of 2 cells failed; the first, simplecil-folder.*nowhere"):
        grid.run([bad, good])
    assert grid.record(good) is not None


class Listening(Quiet):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines += line.splitlines()


def test_a_reason_that_many_cells_share_is_said_once(tmp_path: Path) -> None:
    bad = [cell("simplecil", data_root="nowhere", dataset="folder", seed=seed) for seed in (1, 2, 3)]
    told = Listening()
    with pytest.raises(EaseError, match=r"3 of 3 cells failed; all alike: .*nowhere"):
        Grid(tmp_path).run(bad, progress=told)
    assert len(told.lines) == 1
    assert "nowhere" in told.lines[0]
    told = Listening()
    with pytest.raises(EaseError, match=r"3 of 4 cells failed; the first, simplecil-folder.*nowhere"):
        Grid(tmp_path).run([*bad, cell("simplecil")], progress=told)
    assert len([line for line in told.lines if "failed: " in line]) == 1 + 3  # and the table


def test_cells_that_fail_before_they_begin_leave_nothing(tmp_path: Path) -> None:
    bad, good = cell("simplecil", data_root="nowhere", dataset="folder"), cell("simplecil")
    with pytest.raises(EaseError, match=r"1 of 1 cells failed.* \(the same command tries again\)"):
        Grid(tmp_path / "deep" / "grid").run([bad])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(EaseError, match=r"1 of 2 cells failed.* \(the others are kept; "):
        Grid(tmp_path).run([bad, good])
    assert [lease.name for lease in (tmp_path / "leases").iterdir()] == [good.name]


def test_cells_that_share_train_once_and_find_what_they_would_alone(tmp_path: Path) -> None:
    values = (0.01, 0.1, 0.5)
    shared, alone = Grid(tmp_path / "shared"), Grid(tmp_path / "alone")
    sharing = [cell(alpha=alpha, shares="rank 4") for alpha in values]
    lonely = [cell(alpha=alpha) for alpha in values]
    shared.run(sharing)
    alone.run(lonely)
    ours, theirs = [shared.record(c) for c in sharing], [alone.record(c) for c in lonely]
    assert [comparable(record) for record in ours] == [comparable(record) for record in theirs]
    assert all(record is not None for record in ours)
    trained = [record.forward_passes.train - record.passes_reused for record in ours if record]
    assert trained == [60, 0, 0]
    assert all(record.passes_reused == 0 for record in theirs if record)
    assert len(list((tmp_path / "shared" / "shared" / "trainings").iterdir())) == 2  # one for each task


# --- one writer for each cell ---------------------------------------------------------------------


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    grid = Grid(tmp_path_factory.mktemp("undisturbed"))
    grid.run([cell()])
    return comparable(grid.record(cell()))


@pytest.mark.parametrize("when", ["run.json", "checkpoints", "manifest.json", "stages", "record.json"])
def test_a_process_that_was_taken_for_dead_stops_before_its_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, Any], when: str
) -> None:
    grid, one = Grid(tmp_path, lease_seconds=0.2), cell()
    frozen: list[dict[str, bytes]] = []

    def struck(point: str, path: Path) -> None:
        if point == "before-replace" and when in (path.name, path.parent.name) and not frozen:
            lease = grid.folder / "leases" / one.name / "00000002.json"
            holder = {"node": "far", "machine": "far away", "process": 1, "started": "1", "beat": 1}
            lease.write_text(json.dumps(holder))
            frozen.append(_without_temporary(content(grid.path(one))))

    monkeypatch.setattr(files, "fault", struck)
    error = grid.attempt(one)
    monkeypatch.undo()
    assert isinstance(error, LeaseLostError)
    assert _without_temporary(content(grid.path(one))) == frozen[0]
    grid.run([one])  # the other one is silent, too
    assert comparable(grid.record(one)) == undisturbed
    assert not [name for name in content(grid.folder) if ".tmp-" in name]


def _without_temporary(found: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in found.items() if ".tmp-" not in name and not name.endswith(".lock")}


def test_a_cell_that_another_process_works_on_is_waited_for_and_run_once(tmp_path: Path) -> None:
    one = cell(epochs=40)
    grid = Grid(tmp_path)
    other = Forked(lambda: Grid(tmp_path).run([one]), tmp_path / "printed")
    assert _wait_for(lambda: grid.holder(one) is not None)
    grid.run([one])
    assert other.wait() == 0, other.out.read_text()
    assert grid.record(one) is not None
    holder = lease_holder(tmp_path / "leases" / one.name)
    assert holder is not None
    assert holder.process == other.pid


def test_the_table_of_a_grid_names_nodes_and_failures(tmp_path: Path) -> None:
    lines: list[str] = []

    class Lines(Quiet):
        def say(self, line: str) -> None:
            lines.append(line)

    class TwoNodes:
        def outcomes(self, work: Any, units: Any, progress: Any) -> Any:
            for number, unit in enumerate(units):
                for each in unit:
                    yield each, work.attempt(each, None, f"node {number + 1}")

    bad = cell("simplecil", data_root="nowhere", dataset="folder")
    with pytest.raises(EaseError, match="1 of 3 cells failed"):
        Grid(tmp_path).run([bad, cell("simplecil"), cell("simplecil", seed=7)], TwoNodes(), Lines())
    head, *rows = lines[-1].splitlines()
    assert head.split() == ["cell", "node", "stages", "outcome"]
    assert [(row.split()[2], row.split()[3]) for row in rows[:2]] == [("2", "2/2"), ("3", "2/2")]
    assert "node 1" in rows[2]
    assert "failed: " in rows[2]
    assert "nowhere" in rows[2]


def test_a_cell_that_was_finished_where_nobody_sees_it_is_a_failure(tmp_path: Path) -> None:
    class Elsewhere:
        def outcomes(self, work: Any, units: Any, progress: Any) -> Any:
            for unit in units:
                yield from ((each, None) for each in unit)

    with pytest.raises(EaseError, match="all nodes must share that folder"):
        Grid(tmp_path).run([cell("simplecil")], Elsewhere())


# --- roles of the configuration -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({**QUICK, "method": "simplecil"}, "simplecil-digits-b0inc5-1993-fd44b57212"),
        (
            {**QUICK, "method": "simplecil", "seed": 7, "precision": "bf16-mixed", "unreadable": "skip"},
            "simplecil-digits-b0inc5-7-90c2bc3b95",
        ),
        ({**QUICK, "method": "icarl", "exemplars": 2}, "icarl-digits-b0inc5-1993-e0ec28183f"),
    ],
)
def test_cells_keep_the_names_that_the_first_version_gave_them(given: dict[str, Any], name: str) -> None:
    assert Cell(*resolve(given)).name == name


def test_how_a_cell_is_carried_out_is_no_part_of_its_name() -> None:
    usual = cell("simplecil")
    runtime = {"image_memory": 1, "feature_memory": 2, "download": True, "devices": 2, "accelerator": "cuda"}
    for key, value in {**runtime, "eval_batch_size": 8, "compile": True}.items():
        assert cell("simplecil", **{key: value}).name == usual.name
    for key, value in {"precision": "bf16-mixed", "unreadable": "skip", "limit_test": 3}.items():
        assert cell("simplecil", **{key: value}).name != usual.name


def photos(folder: Path, shade: int = 0) -> Path:
    """Four classes of five images each, of which one is for testing."""
    for label in range(4):
        (folder / f"class {label}").mkdir(parents=True)
        for number in range(5):
            pixels = np.full((16, 16, 3), 50 * label + 5 * number + shade, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"class {label}" / f"{number}.png")
    return folder


def on(root: Path, weights: Path | None = None, **options: Any) -> Cell:
    given = {"dataset": "folder", "data_root": str(root), "protocol": "B0 Inc2", "input_size": 16, **options}
    return Cell(
        *resolve({"method": "simplecil", "weights": None if weights is None else str(weights), **given})
    )


def test_two_machines_with_other_mount_points_share_cells_and_group_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(ease.__file__).parent / "weights" / "ease-vit.safetensors"
    roots = [photos(tmp_path / name / "data") for name in ("one", "two")]
    files = [Path(shutil.copy(source, tmp_path / name / f"{name}.safetensors")) for name in ("one", "two")]
    first, second = (on(root, file) for root, file in zip(roots, files, strict=True))
    assert first.config != second.config
    assert first.name == second.name
    grid = Grid(tmp_path / "out")
    grid.run([first])
    with monkeypatch.context() as patch:
        patch.setattr(grid_module, "start_run", None)
        patch.setattr(grid_module, "resume_run", None)
        grid.run([second])
    other = Grid(tmp_path / "other")
    seeds = [on(roots[0], files[0], seed=1), on(roots[1], files[1], seed=2, image_memory=1)]
    other.run(seeds)
    records = [record for each in seeds if (record := other.record(each)) is not None]
    (series,) = group(records)
    assert series.seeds == [1, 2]
    assert records[0].inputs == records[1].inputs


def test_other_weights_are_another_cell_and_another_experiment(tmp_path: Path) -> None:
    source = Path(ease.__file__).parent / "weights" / "ease-vit.safetensors"
    root = photos(tmp_path / "data")
    tensors = read_tensors(source)
    tensors["pos_embed"] = tensors["pos_embed"] + 0.1
    write_tensors(tmp_path / "other.safetensors", tensors)
    cells = [on(root, source), on(root, tmp_path / "other.safetensors")]
    assert cells[0].name != cells[1].name
    grid = Grid(tmp_path / "out")
    grid.run(cells)
    records = [record for each in cells if (record := grid.record(each)) is not None]
    labels = [series.label for series in group(records)]
    assert len(labels) == 2
    assert all("weights=" in label for label in labels)


def test_other_images_at_another_place_are_not_taken_for_the_same(tmp_path: Path) -> None:
    grid = Grid(tmp_path / "out")
    here, there = photos(tmp_path / "here"), photos(tmp_path / "there", shade=1)
    grid.run([on(here)])
    with pytest.raises(
        EaseError, match=r"was made with other images, from data_root = .*here: choose another --out"
    ):
        grid.run([on(there)])


def test_an_interrupted_cell_goes_on_where_its_data_lies_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, here, there = Grid(tmp_path / "out"), photos(tmp_path / "here"), tmp_path / "there"
    learn = SimpleCil.learn

    def struck(self: SimpleCil, task: Any, memory: Any = None) -> None:
        if task.index == 1:
            raise KeyboardInterrupt
        learn(self, task, memory)

    with monkeypatch.context() as patch:
        patch.setattr(SimpleCil, "learn", struck)
        with pytest.raises(KeyboardInterrupt):
            grid.run([on(here)])
    here.rename(there)
    grid.run([on(there)])
    record = grid.record(on(there))
    assert record is not None
    assert record.config is not None
    assert record.config.data_root == str(there)


def test_data_that_changed_since_a_run_began_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, out = photos(tmp_path / "data"), tmp_path / "run"
    config = on(root).config

    def struck(self: SimpleCil, task: Any, memory: Any = None) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SimpleCil, "learn", struck)
        with pytest.raises(KeyboardInterrupt):
            start_run(config, out, [])
    Image.fromarray(np.full((16, 16, 3), 255, dtype=np.uint8)).save(root / "class 0" / "0.png")
    with pytest.raises(EaseError, match="changed since the run began"):
        resume_run(out)
