"""From finished cells to the files of an exhibit: its figures and its table, each in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.experiments.executors import Executor
from ease.experiments.grid import Cell, Grid
from ease.experiments.plans.paper import DatasetSplit, Exhibit, Measurement, find_exhibit, published
from ease.experiments.record import RunRecord
from ease.experiments.views import views_of_run
from ease.progress import Progress, Quiet
from ease.reporting.figures import (
    accuracy_against_cost,
    against_k,
    curve_panels,
    heat_grid,
    running_time,
    save,
    two_subspaces,
)
from ease.reporting.tables import ExhibitTable, exhibit_table
from ease.storage.files import make_folder, write_atomic

FORMATS = ("svg", "pdf", "png")


class MeasuredRecord(NamedTuple):
    """A finished measurement of an exhibit and its record."""

    measurement: Measurement
    record: RunRecord


@dataclass(frozen=True)
class ReproducedExhibit:
    """An exhibit that was written to files."""

    name: str
    exhibit: Exhibit
    records: list[RunRecord]
    table: ExhibitTable
    written: list[Path]


class Reproduction:
    """Runs the cells of some exhibits in one folder, which the exhibits share, and writes their files.

    Args:
        plans: the measurements of each exhibit by its name.
        out: folder for the runs and the exhibits.
    """

    def __init__(self, plans: Mapping[str, Sequence[Measurement]], out: Path) -> None:
        self.plans = plans
        self.grid = Grid(out)
        self.failure: EaseError | None = None
        """The first error; exhibits are still drawn from the cells that did not fail."""

    def run(
        self,
        executor: Executor | None = None,
        shard: tuple[int, int] = (1, 1),
        progress: Progress | None = None,
    ) -> Iterator[ReproducedExhibit]:
        """Run the unfinished cells of this shard, exhibit by exhibit, and draw each from all of its finished cells."""
        progress = progress or Quiet()
        for name, planned in self.plans.items():
            records = self._records(find_exhibit(name), planned, executor, shard, progress)
            measured = [MeasuredRecord(m, r) for m, r in zip(planned, records, strict=True) if r is not None]
            if len(measured) < len(planned):
                progress.say(f"{name}: {len(measured)} of {len(planned)} cells are finished")
            if measured:
                yield self._draw(name, find_exhibit(name), measured)

    def _records(
        self,
        exhibit: Exhibit,
        planned: Sequence[Measurement],
        executor: Executor | None,
        shard: tuple[int, int],
        progress: Progress,
    ) -> list[RunRecord | None]:
        cells = [measurement.cell for measurement in planned]
        self._attempt(self.grid, cells, executor, progress, shard)
        found = [self.grid.record(cell) for cell in cells]
        if exhibit.draw != "time":
            return found
        # Seconds are only reported for runs that did all of their work themselves.
        alone = Grid(self.grid.folder / "timed")
        borrowed = {
            i: replace(cells[i], shares=None)
            for i, record in enumerate(found)
            if record is not None and record.passes_reused
        }
        self._attempt(alone, list(borrowed.values()), executor, progress, (1, 1))
        return [alone.record(borrowed[i]) if i in borrowed else record for i, record in enumerate(found)]

    def _attempt(
        self,
        grid: Grid,
        cells: Sequence[Cell],
        executor: Executor | None,
        progress: Progress,
        shard: tuple[int, int],
    ) -> None:
        try:
            grid.run(cells, executor, progress, shard=shard)
        except EaseError as error:
            self.failure = self.failure or error

    def _draw(self, name: str, exhibit: Exhibit, measured: Sequence[MeasuredRecord]) -> ReproducedExhibit:
        out = self.grid.folder
        make_folder(out)
        written = []
        for suffix, figure in _figures(exhibit, measured, self.grid):
            written += save(figure, out / f"{name}{suffix}", formats=FORMATS)
        table = _table(exhibit, measured)
        for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            written.append(out / f"{name}.{ending}")
            write_atomic(written[-1], text.encode())
        return ReproducedExhibit(name, exhibit, [record for _, record in measured], table, written)


def _table(exhibit: Exhibit, measured: Sequence[MeasuredRecord]) -> ExhibitTable:
    cells: dict[tuple[str, str], list[RunRecord]] = {}
    paper: dict[tuple[str, str], tuple[float, float]] = {}
    for measurement, record in measured:
        at = (_row_name(exhibit, measurement), _column_name(exhibit, measurement, record))
        cells.setdefault(at, []).append(record)
        figures = published(measurement, record)
        if figures is not None:
            paper[at] = figures
    rows, columns = (list(dict.fromkeys(at[i] for at in cells)) for i in (0, 1))
    later = [_row_name(exhibit, m) for m, _ in measured if m.row in exhibit.since]
    return exhibit_table(rows, columns, cells, paper, since=list(dict.fromkeys(later)))


def _row_name(exhibit: Exhibit, measurement: Measurement) -> str:
    if exhibit.draw == "grid":
        key = next(iter(exhibit.vary))
        return f"{key} {measurement.varied[key]}"
    varied = ", ".join(f"{key} {value}" for key, value in measurement.varied.items())
    return f"{measurement.row.title}, {varied}" if varied else measurement.row.title


def _column_name(exhibit: Exhibit, measurement: Measurement, record: RunRecord) -> str:
    if exhibit.draw == "grid":
        key = list(exhibit.vary)[1]
        return f"{key} {measurement.varied[key]}"
    return str(_recorded_split(record))


def _recorded_split(record: RunRecord) -> DatasetSplit:
    """What was measured: a subset of a dataset has a name of its own."""
    return DatasetSplit(record.dataset, record.protocol)


def _figures(exhibit: Exhibit, measured: Sequence[MeasuredRecord], grid: Grid) -> list[tuple[str, Figure]]:
    """Each figure with what is added to the exhibit's name."""
    records = [_labelled(*one) for one in measured]
    if exhibit.draw in ("table", "curves"):
        return [("", curve_panels(_panels(exhibit, measured)))]
    if exhibit.draw == "parameters":
        return [("", accuracy_against_cost(records))]
    if exhibit.draw == "time":
        return [("", running_time(records))]
    if exhibit.draw == "grid":
        return [("", _grid(exhibit, measured))]
    if exhibit.draw == "tsne":
        cell = measured[0].measurement.cell
        return [("", two_subspaces(views_of_run(grid.path(cell), cell.config)))]
    return [(f"-{split.dataset}", _neighbours(split, here)) for split, here in _by_split(measured).items()]


def _panels(exhibit: Exhibit, measured: Sequence[MeasuredRecord]) -> list[tuple[str, list[RunRecord]]]:
    """A panel per split with the paper's methods; methods published since have panels of their own, beside EASE."""
    own = [one for one in measured if one.measurement.row not in exhibit.since]
    later = [one for one in measured if one.measurement.row in exhibit.since]
    beside = [one for one in own if one.measurement.row.method == "ease"]
    panels = [(str(split), here) for split, here in _by_split(own).items()]
    if later:
        panels += [(f"{split}, published since", here) for split, here in _by_split(beside + later).items()]
    return [(title, [_labelled(*one) for one in here]) for title, here in panels]


def _by_split(measured: Sequence[MeasuredRecord]) -> dict[DatasetSplit, list[MeasuredRecord]]:
    splits: dict[DatasetSplit, list[MeasuredRecord]] = {}
    for one in measured:
        splits.setdefault(_recorded_split(one.record), []).append(one)
    return splits


def _labelled(measurement: Measurement, record: RunRecord) -> RunRecord:
    """A record under the name of its row."""
    return record.labelled(measurement.row.title)


def _grid(exhibit: Exhibit, measured: Sequence[MeasuredRecord]) -> Figure:
    (down, rows), (across, columns) = exhibit.vary.items()
    values = np.full((len(rows), len(columns)), np.nan)
    for measurement, _ in measured:
        at = rows.index(measurement.varied[down]), columns.index(measurement.varied[across])
        values[at] = np.mean([r.average for other, r in measured if other.varied == measurement.varied])
    return heat_grid(values, down, rows, across, columns, title=f"{exhibit.title}: average accuracy in %")


def _neighbours(split: DatasetSplit, measured: Sequence[MeasuredRecord]) -> Figure:
    def mean(wanted: Measurement) -> float:
        same = [r.average for m, r in measured if (m.row, m.varied) == (wanted.row, wanted.varied)]
        return float(np.mean(same))

    levels = {m.row.title: mean(m) for m, _ in measured if not m.varied}
    curves: dict[str, dict[int, float]] = {}
    for measurement, _ in measured:
        if measurement.varied:
            curve = curves.setdefault(measurement.row.title, {})
            curve[measurement.varied["neighbours"]] = mean(measurement)
    ks = list(next(iter(curves.values()), {}))
    return against_k(
        ks, {name: list(curve.values()) for name, curve in curves.items()}, levels, title=str(split)
    )
