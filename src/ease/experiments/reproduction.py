"""From finished cells to the files of an exhibit: its figure and its table, each in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from ease.errors import EaseError
from ease.experiments.grid import Cell, Grid
from ease.experiments.plans.paper import Exhibit, Place, Square, find_exhibit, published
from ease.experiments.record import Record
from ease.experiments.views import views_of_run
from ease.progress import Progress, Quiet
from ease.reporting.figures import (
    against_k,
    curve_panels,
    heat_grid,
    parameters_against_accuracy,
    running_time,
    save,
    two_subspaces,
)
from ease.reporting.tables import Exhibit as ExhibitTable
from ease.reporting.tables import exhibit_table
from ease.storage.files import make_folder, write_atomic

FORMATS = ("svg", "pdf", "png")
Known = Sequence[tuple[Square, Record]]
"""Measurements of an exhibit and what they found."""


@dataclass(frozen=True)
class Drawn:
    """What an exhibit came to."""

    name: str
    exhibit: Exhibit
    records: list[Record]
    table: ExhibitTable
    written: list[Path]


class Reproduction:
    """Exhibits on their way: cells in one folder, which the exhibits share, and the files that come of them.

    Args:
        plans: what each exhibit measures, by its name.
        out: folder for the runs and the exhibits.
    """

    def __init__(self, plans: Mapping[str, Sequence[Square]], out: Path) -> None:
        self.plans = plans
        self.grid = Grid(out)
        self.failure: EaseError | None = None
        """The first thing that went wrong; what did not is drawn all the same."""

    def run(
        self, jobs: int = 1, shard: tuple[int, int] = (1, 1), progress: Progress | None = None
    ) -> Iterator[Drawn]:
        """Run what is left to run of this shard, exhibit by exhibit, and draw each from all that is known of it."""
        progress = progress or Quiet()
        for name, squares in self.plans.items():
            records = self._records(find_exhibit(name), squares, jobs, shard, progress)
            known = [(square, r) for square, r in zip(squares, records, strict=True) if r is not None]
            if len(known) < len(squares):
                progress.say(f"{name}: {len(known)} of {len(squares)} cells are finished")
            if known:
                yield self._draw(name, find_exhibit(name), known)

    def _records(
        self,
        exhibit: Exhibit,
        squares: Sequence[Square],
        jobs: int,
        shard: tuple[int, int],
        progress: Progress,
    ) -> list[Record | None]:
        cells = [square.cell for square in squares]
        self._attempt(self.grid, cells, jobs, progress, shard)
        found = [self.grid.record(cell) for cell in cells]
        if exhibit.draw != "time":
            return found
        # Seconds are only told of runs that did all of their work themselves.
        alone = Grid(self.grid.folder / "timed")
        borrowed = {
            i: replace(cells[i], shares=None)
            for i, record in enumerate(found)
            if record is not None and record["passes_reused"]
        }
        self._attempt(alone, list(borrowed.values()), jobs, progress, (1, 1))
        return [alone.record(borrowed[i]) if i in borrowed else record for i, record in enumerate(found)]

    def _attempt(
        self, grid: Grid, cells: Sequence[Cell], jobs: int, progress: Progress, shard: tuple[int, int]
    ) -> None:
        try:
            grid.run(cells, jobs, progress, shard=shard)
        except EaseError as error:
            self.failure = self.failure or error

    def _draw(self, name: str, exhibit: Exhibit, known: Known) -> Drawn:
        out = self.grid.folder
        make_folder(out)
        written = []
        for suffix, figure in _figures(exhibit, known, self.grid):
            written += save(figure, out / f"{name}{suffix}", formats=FORMATS)
        table = _table(exhibit, known)
        for ending, text in (("md", table.markdown()), ("csv", table.csv()), ("tex", table.latex())):
            written.append(out / f"{name}.{ending}")
            write_atomic(written[-1], text.encode())
        return Drawn(name, exhibit, [record for _, record in known], table, written)


def _table(exhibit: Exhibit, known: Known) -> ExhibitTable:
    cells: dict[tuple[str, str], list[Record]] = {}
    paper: dict[tuple[str, str], tuple[float, float]] = {}
    for square, record in known:
        at = (_row_name(exhibit, square), _column_name(exhibit, square, record))
        cells.setdefault(at, []).append(record)
        figures = published(square, record)
        if figures is not None:
            paper[at] = figures
    rows, columns = (list(dict.fromkeys(at[i] for at in cells)) for i in (0, 1))
    return exhibit_table(rows, columns, cells, paper)


def _row_name(exhibit: Exhibit, square: Square) -> str:
    if exhibit.draw == "grid":
        key = next(iter(exhibit.vary))
        return f"{key} {square.varied[key]}"
    varied = ", ".join(f"{key} {value}" for key, value in square.varied.items())
    return f"{square.row.title}, {varied}" if varied else square.row.title


def _column_name(exhibit: Exhibit, square: Square, record: Record) -> str:
    if exhibit.draw == "grid":
        key = list(exhibit.vary)[1]
        return f"{key} {square.varied[key]}"
    return str(_measured(record))


def _measured(record: Record) -> Place:
    """Where it really was: a subset of a dataset has a name of its own."""
    return Place(record["dataset"], record["protocol"])


def _figures(exhibit: Exhibit, known: Known, grid: Grid) -> list[tuple[str, Figure]]:
    """Each figure with what is added to the exhibit's name."""
    records = [_named(square, record) for square, record in known]
    if exhibit.draw in ("table", "curves"):
        places = _by_place(known).items()
        return [("", curve_panels([(str(place), [_named(*one) for one in here]) for place, here in places]))]
    if exhibit.draw == "parameters":
        return [("", parameters_against_accuracy(records))]
    if exhibit.draw == "time":
        return [("", running_time(records))]
    if exhibit.draw == "grid":
        return [("", _grid(exhibit, known))]
    if exhibit.draw == "tsne":
        square = known[0][0]
        return [("", two_subspaces(views_of_run(grid.path(square.cell), square.cell.config)))]
    return [(f"-{place.dataset}", _neighbours(place, here)) for place, here in _by_place(known).items()]


def _by_place(known: Known) -> dict[Place, list[tuple[Square, Record]]]:
    places: dict[Place, list[tuple[Square, Record]]] = {}
    for square, record in known:
        places.setdefault(_measured(record), []).append((square, record))
    return places


def _named(square: Square, record: Record) -> Record:
    """A record that goes by the row's name, whatever its method is called."""
    return {**record, "label": square.row.title}


def _grid(exhibit: Exhibit, known: Known) -> Figure:
    (down, rows), (across, columns) = exhibit.vary.items()
    values = np.full((len(rows), len(columns)), np.nan)
    for square, _ in known:
        at = rows.index(square.varied[down]), columns.index(square.varied[across])
        same = [record["average"] for other, record in known if other.varied == square.varied]
        values[at] = np.mean(same)
    return heat_grid(values, down, rows, across, columns, title=f"{exhibit.title}: average accuracy in %")


def _neighbours(place: Place, known: Known) -> Figure:
    def mean(square: Square) -> float:
        same = [r["average"] for s, r in known if (s.row, s.varied) == (square.row, square.varied)]
        return float(np.mean(same))

    levels = {square.row.title: mean(square) for square, _ in known if not square.varied}
    curves: dict[str, dict[int, float]] = {}
    for square, _ in known:
        if square.varied:
            curves.setdefault(square.row.title, {})[square.varied["neighbours"]] = mean(square)
    ks = list(next(iter(curves.values()), {}))
    return against_k(
        ks, {name: list(curve.values()) for name, curve in curves.items()}, levels, title=str(place)
    )
