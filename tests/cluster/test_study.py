"""A study on a Ray cluster: whatever is lost meanwhile, each cell is run once and says what it would have said."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ease.errors import EaseError
from ease.experiments.executors.ray import RayCluster
from ease.experiments.grid import Cell, Grid
from ease.experiments.plans.study import load_study
from ease.storage.lease import lease_holder
from tests.cluster.conftest import TwoNodes
from tests.cluster.tools import PATIENCE, Command, Meanwhile, meanwhile, running, wait_for
from tests.experiments.test_grid import comparable

STUDY = """
about: three cells, two of which share their trainings
run: {dataset: digits, protocol: B0 Inc5, limit_per_class: 8, input_size: 16}
rows:
  - {method: ease, set: {epochs: 30, rank: 4}}
  - {method: ease, set: {epochs: 30, rank: 4, alpha: 0.3}, label: another alpha}
  - {method: ease, set: {epochs: 30, rank: 8}, label: another rank}
"""
MORE = """
  - {method: ease, set: {epochs: 30, rank: 2}, label: rank 2}
  - {method: ease, set: {epochs: 30, rank: 6}, label: rank 6}
  - {method: ease, set: {epochs: 30, rank: 12}, label: rank 12}
"""
LEASE = 4.0


@pytest.fixture(scope="session")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.fixture(scope="session")
def undisturbed(plan: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    grid, cells = Grid(tmp_path_factory.mktemp("undisturbed")), load_study(str(plan)).cells()
    grid.run(cells)
    return [comparable(grid.record(cell)) for cell in cells]


def working_on(grid: Grid, cells: list[Cell], node: str) -> Cell | None:
    """A cell that this node has begun to train."""
    for cell in cells:
        holder = grid.holder(cell)
        if holder is not None and holder.node.endswith(f"/{node}") and checkpoint(grid, cell):
            return cell
    return None


def checkpoint(grid: Grid, cell: Cell) -> Path | None:
    return next(iter((grid.path(cell) / "checkpoints").glob("*.safetensors")), None)


def check(grid: Grid, cells: list[Cell], undisturbed: list[dict[str, Any]]) -> None:
    """Every cell once, complete and as if nothing had happened."""
    assert [comparable(grid.record(cell)) for cell in cells] == undisturbed
    assert sorted(path.name for path in (grid.folder / "cells").iterdir()) == sorted(c.name for c in cells)
    assert not [path for path in grid.folder.rglob("*") if ".tmp-" in path.name]
    for cell in cells:
        left = {path.name for path in grid.path(cell).iterdir()}
        assert left == {"model", "predictions.npz", "record.json", "report.html", "run.json"}


def token(grid: Grid, cell: Cell) -> int:
    (file,) = (grid.folder / "leases" / cell.name).iterdir()
    return int(file.stem)


def begun(grid: Grid, cells: list[Cell], node: str, free: Callable[[], None], during: Meanwhile) -> Cell:
    """Let both nodes work, the second one first, and return the cell that it has begun to train."""

    def held() -> bool:
        holders = [grid.holder(cell) for cell in cells]
        return any(holder is not None and holder.node.endswith(f"/{node}") for holder in holders)

    wait_for(held, f"a cell on node {node}", unless=during.is_over)
    free()
    found: Cell = wait_for(
        lambda: working_on(grid, cells, node), f"a checkpoint by node {node}", unless=during.is_over
    )
    return found


def test_a_study_goes_on_when_a_node_is_lost(
    cluster: TwoNodes, plan: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    grid, cells, node = Grid(tmp_path, LEASE), load_study(str(plan)).cells(), cluster.join()
    struck: list[Cell] = []
    with cluster.busy_head() as free:

        def lose(during: Meanwhile) -> None:
            struck.append(begun(grid, cells, node, free, during))
            cluster.lose()

        with meanwhile(lose):
            grid.run(cells, RayCluster(cluster.address))
    check(grid, cells, undisturbed)
    assert token(grid, struck[0]) == 2  # another node took it over
    holder = lease_holder(grid.folder / "leases" / struck[0].name)
    assert holder is not None
    assert not holder.node.endswith(f"/{node}")


def study(plan: Path, out: Path, address: str) -> AbstractContextManager[Command]:
    return running(["study", str(plan), "--out", str(out), "--ray", address])


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_study_whose_command_is_ended_goes_on_with_the_same_command(
    cluster: TwoNodes, plan: Path, undisturbed: list[dict[str, Any]], tmp_path: Path, how: signal.Signals
) -> None:
    grid, cells = Grid(tmp_path), load_study(str(plan)).cells()
    with study(plan, tmp_path, cluster.address) as first:
        wait_for(
            lambda: any(checkpoint(grid, cell) for cell in cells), "a checkpoint", unless=first.has_ended
        )
        first.process.send_signal(how)
        code = first.end()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL), first.errors
    wait_for(
        lambda: not any(grid.holder(cell) for cell in cells), "the end of the tasks of a command that is gone"
    )
    assert any(grid.record(cell) is None for cell in cells)
    with study(plan, tmp_path, cluster.address) as second:
        assert second.end() == 0, second.errors
    check(grid, cells, undisturbed)
    assert (tmp_path / "table.md").exists()


@pytest.mark.long
def test_a_node_that_joins_late_gets_work(cluster: TwoNodes, tmp_path: Path) -> None:
    plan, out = tmp_path / "study.yaml", tmp_path / "out"
    plan.write_text(
        STUDY + MORE.lstrip("\n")
    )  # the head must not have done everything when the node is ready
    cells, alone = load_study(str(plan)).cells(), Grid(tmp_path / "alone")
    alone.run(cells)
    cluster.lose()
    grid = Grid(out)
    with study(plan, out, cluster.address) as command:
        wait_for(
            lambda: any(checkpoint(grid, cell) for cell in cells), "a checkpoint", unless=command.has_ended
        )
        joined = cluster.join()
        assert command.end(2 * PATIENCE) == 0, command.errors
    assert joined in command.errors  # the table names both nodes
    check(grid, cells, [comparable(alone.record(cell)) for cell in cells])
    holders = [lease_holder(grid.folder / "leases" / cell.name) for cell in cells]
    assert any(holder is not None and holder.node.endswith(f"/{joined}") for holder in holders)


@pytest.mark.long
def test_a_checkpoint_that_vanishes_costs_time_and_nothing_else(
    cluster: TwoNodes, plan: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    grid, cells, node = Grid(tmp_path, LEASE), load_study(str(plan)).cells(), cluster.join()
    with cluster.busy_head() as free:

        def strike(during: Meanwhile) -> None:
            struck = begun(grid, cells, node, free, during)
            cluster.lose()
            wait_for(lambda: grid.holder(struck) is None, "the end of the lease of the lost node")
            if (path := checkpoint(grid, struck)) is not None:
                path.unlink()
            other = next(cell for cell in cells if cell != struck)
            if (path := checkpoint(grid, other)) is not None:
                path.unlink(missing_ok=True)

        with meanwhile(strike):
            grid.run(cells, RayCluster(cluster.address))
    check(grid, cells, undisturbed)


@pytest.mark.long
def test_an_error_is_never_tried_again_and_does_not_stop_the_others(
    cluster: TwoNodes, plan: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    study = load_study(str(plan))
    bad = study.cells(options={"data_root": "nowhere", "dataset": "folder"})[0]
    grid, cells = Grid(tmp_path, LEASE), study.cells()
    with pytest.raises(EaseError, match=r"1 of 4 cells failed; the first, ease-folder.*nowhere"):
        grid.run([bad, *cells], RayCluster(cluster.address))
    assert token(grid, bad) == 1
    assert [comparable(grid.record(cell)) for cell in cells] == undisturbed
