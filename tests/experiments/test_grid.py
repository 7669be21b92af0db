"""A grid: each cell once, whatever happens in between; what trains the same trains once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ease.config import resolve
from ease.errors import EaseError
from ease.experiments import grid as grid_module
from ease.experiments.grid import Cell, Grid
from ease.experiments.record import RunRecord
from ease.experiments.run import start_run
from ease.methods.simplecil import SimpleCIL
from ease.storage.lock import WriterLock

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
    class Later(SimpleCIL.Settings):
        novelty: int = 3

    old = cell("simplecil")
    grid = Grid(tmp_path)
    grid.run([old])
    monkeypatch.setattr(SimpleCIL, "Settings", Later)
    assert cell("simplecil").name == old.name
    assert grid.record(cell("simplecil")) is not None
    assert grid.record(cell("simplecil", novelty=4)) is None


def test_a_default_that_changed_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Earlier(SimpleCIL.Settings):
        novelty: int = 3

    class Later(SimpleCIL.Settings):
        novelty: int = 4

    grid = Grid(tmp_path)
    monkeypatch.setattr(SimpleCIL, "Settings", Earlier)
    grid.run([cell("simplecil")])
    monkeypatch.setattr(SimpleCIL, "Settings", Later)
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
    two.run(cells, jobs=2)
    assert [comparable(two.record(c)) for c in cells] == [comparable(one.record(c)) for c in cells]


def test_processes_leave_when_the_one_that_started_them_is_killed(tmp_path: Path) -> None:
    work = f"""
from pathlib import Path
from tests.experiments.test_grid import cell
from ease.experiments.grid import Grid
if __name__ == "__main__":
    Grid(Path({str(tmp_path)!r})).run([cell(epochs=500, seed=1), cell(epochs=500, seed=2)], jobs=2)
"""
    script = tmp_path / "work.py"
    script.write_text(work)
    path = os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])
    parent = subprocess.Popen([sys.executable, script], env={**os.environ, "PYTHONPATH": path})
    started = _wait_for(lambda: len(list(tmp_path.glob("cells/*/run.json"))) == 2)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert started
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
