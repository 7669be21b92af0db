"""The comparison of records with one row per method, and the tables of a paper with methods down, streams across."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ease.errors import EaseError, unknown
from ease.experiments.record import RunRecord
from ease.reporting.series import BenchmarkKey, Series, by_benchmark, group, image_remarks, remarks
from ease.reporting.tabular import (
    NOTHING,
    ColumnHead,
    ReportTable,
    TableCell,
    TableLine,
    WideTable,
    csv_text,
    mark_best,
    whole,
)

SPREAD = "±: standard deviation over seeds."


def count_text(value: float) -> str:
    """A count that fits a column: 950, 12.3k, 1.19M."""
    for limit, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        # 999,950 would otherwise print as 1000.0k.
        if abs(value) >= limit * 0.9995:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def percent_text(value: float) -> str:
    # Adding 0 turns -0.00 into 0.00.
    return f"{round(value, 2) + 0.0:.2f}"


def seconds_text(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}"


@dataclass(frozen=True)
class Column:
    """One figure: how it is read from a record, shown, and whether more or less of it is better."""

    key: str
    head: str
    latex: str
    read: Callable[[RunRecord], float | None]
    show: Callable[[float], str]
    more_is_better: bool
    spread: bool = False


COLUMNS = (
    Column("average", "Ā %", r"$\bar{\mathcal{A}}$", lambda r: r.average, percent_text, True, True),
    Column("last", "A_B %", r"$\mathcal{A}_B$", lambda r: r.last, percent_text, True, True),
    Column("forgetting", "Forgetting", "Forgetting", lambda r: r.forgetting, percent_text, False, True),
    Column("trained", "Trained", "Trained", lambda r: r.parameters.trained_in_all, count_text, False),
    Column("trained_per_task", "/task", "/task", lambda r: r.parameters.trained_per_task, count_text, False),
    Column("stored", "Stored", "Stored", lambda r: r.parameters.stored, count_text, False),
    Column("passes", "Passes", "Passes", lambda r: r.forward_passes.total, count_text, False),
    Column("seconds", "Seconds", "Seconds", lambda r: r.seconds.total, seconds_text, False),
)


@dataclass(frozen=True)
class TableRow:
    """A series and its figures."""

    series: Series
    cells: list[TableCell]


@dataclass(frozen=True)
class ComparisonTable(ReportTable):
    """The comparison of several series; rows of one benchmark stand together."""

    title: str
    benchmark_fields: list[str]
    """The parts of the benchmark that differ between rows and therefore need a column."""
    rows: list[TableRow]
    columns: Sequence[Column] = field(default=COLUMNS)

    @property
    def several_seeds(self) -> bool:
        return any(len(row.series.records) > 1 for row in self.rows)

    @property
    def name_heads(self) -> list[str]:
        return [*(name.capitalize() for name in self.benchmark_fields), "Method"]

    @property
    def figure_heads(self) -> list[ColumnHead]:
        return [ColumnHead(column.head, column.latex) for column in self.columns]

    @property
    def lines(self) -> list[TableLine]:
        return [
            TableLine(self.names(row), row.cells, self.starts_benchmark(i)) for i, row in enumerate(self.rows)
        ]

    def names(self, row: TableRow) -> list[str]:
        """The leading text cells of a row."""
        return [*(getattr(row.series.benchmark, name) for name in self.benchmark_fields), row.series.label]

    def starts_benchmark(self, index: int) -> bool:
        """Whether a rule belongs above this row."""
        return index > 0 and self.rows[index].series.benchmark != self.rows[index - 1].series.benchmark

    @property
    def legend(self) -> str:
        text = (
            "Ā: mean top-1 of all stages; A_B: top-1 after the last. Trained, /task, Stored: parameters "
            "trained in all, trained per task, kept beside the backbone. Passes: images × subspaces."
        )
        said = [sentence for remark in remarks(row.series for row in self.rows) for sentence in remark]
        images = image_remarks([record for row in self.rows for record in row.series.records])
        return " ".join([text, *[SPREAD] * self.several_seeds, *said, *images])

    def csv(self) -> str:
        """Every figure unrounded, with its standard deviation over the seeds (empty for a single one)."""
        figures = [name for column in self.columns for name in (column.key, f"{column.key}_std")]
        rows = []
        for row in self.rows:
            values = [whole(value) for cell in row.cells for value in (cell.mean, cell.deviation)]
            series = row.series
            rows.append([*series.benchmark, series.method, series.label, len(series.records), *values])
        return csv_text([*BenchmarkKey._fields, "method", "label", "seeds", *figures], rows)


def comparison(records: Sequence[RunRecord]) -> ComparisonTable:
    """One row per method and setting (seeds averaged), best figures marked within each benchmark."""
    grouped = group(records)
    benchmarks = by_benchmark(grouped)
    varied = [
        name for i, name in enumerate(BenchmarkKey._fields) if len({each[i] for each in benchmarks}) > 1
    ]
    rows = [row for members in benchmarks.values() for row in _rows(members)]
    return ComparisonTable(
        title=str(grouped[0].benchmark) if len(benchmarks) == 1 else "", benchmark_fields=varied, rows=rows
    )


def _rows(members: list[Series]) -> list[TableRow]:
    columns = [
        mark_best([series.values(c.read) for series in members], c.show, c.more_is_better, c.spread)
        for c in COLUMNS
    ]
    return [TableRow(series, list(cells)) for series, *cells in zip(members, *columns, strict=True)]


# --- exhibits -------------------------------------------------------------------------------------

Spot = tuple[str, str]
"""A row and a column of an exhibit."""
Published = tuple[float | None, float | None]
"""Ā and A_B as a paper gives them."""
FIGURES = COLUMNS[:2]


@dataclass(frozen=True)
class ExhibitTable(WideTable):
    """A paper's table: methods down, streams across, Ā and A_B of each, published figures beside ours."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    ours: Mapping[Spot, tuple[TableCell, TableCell]]
    published: Mapping[Spot, Published]
    several_seeds: bool = False
    since: Sequence[str] = ()
    """Rows that the paper does not have; they stand below a rule."""

    @property
    def name_heads(self) -> list[str]:
        return ["Method"]

    @property
    def figure_heads(self) -> list[ColumnHead]:
        return [
            ColumnHead("published", "publ.", column)
            if quoted
            else ColumnHead(FIGURES[i].head, FIGURES[i].latex, column)
            for column, i, quoted in self._spots
        ]

    @property
    def lines(self) -> list[TableLine]:
        first = next((row for row in self.rows if row in self.since and row != self.rows[0]), None)
        return [
            TableLine([row], [self._cell(row, *spot) for spot in self._spots], row == first)
            for row in self.rows
        ]

    @property
    def legend(self) -> str:
        parts = ["Ā: mean top-1 of all stages; A_B: top-1 after the last."]
        parts += ["published: the figure at its left as its authors give it."] if self.published else []
        if self.since:
            parts.append(f"Not among the paper's methods: {', '.join(self.since)}.")
        parts += [SPREAD] if self.several_seeds else []
        return " ".join(parts)

    def csv(self) -> str:
        """One line per cell: the long form is the one that other programs read with ease."""
        keys = [column.key for column in FIGURES]
        heads = [name for key in keys for name in (key, f"{key}_std", f"{key}_published")]
        rows = []
        for row in self.rows:
            for column in self.columns:
                cells = self.ours.get((row, column), (TableCell(NOTHING), TableCell(NOTHING)))
                quoted = self.published.get((row, column), (None, None))
                values = [v for c, q in zip(cells, quoted, strict=True) for v in (c.mean, c.deviation, q)]
                if any(value is not None for value in values):
                    rows.append([row, column, *values])
        return csv_text(["row", "column", *heads], rows)

    @property
    def _spots(self) -> list[tuple[str, int, bool]]:
        """(column, which figure, whether published): a column without published figures needs no room for them."""
        quoted = {column for (_, column), pair in self.published.items() if pair != (None, None)}
        return [
            (column, i, kind)
            for column in self.columns
            for i in range(len(FIGURES))
            for kind in ((False, True) if column in quoted else (False,))
        ]

    def _cell(self, row: str, column: str, figure: int, quoted: bool) -> TableCell:
        if not quoted:
            return self.ours[row, column][figure] if (row, column) in self.ours else TableCell(NOTHING)
        value = self.published.get((row, column), (None, None))[figure]
        return TableCell(NOTHING if value is None else FIGURES[figure].show(value), quoted=True)


def exhibit_table(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Mapping[Spot, Sequence[RunRecord]],
    published: Mapping[Spot, Published] | None = None,
    title: str = "",
    since: Sequence[str] = (),
) -> ExhibitTable:
    """Ā and A_B for every row and column, mean and deviation where a cell has several seeds.

    The best of ours is marked in each column; a published figure is only quoted, never compared. Rows named by `since`
    are not the paper's own.
    """
    known = published or {}
    for spot in (*cells, *known):
        for name, names, what in zip(spot, (rows, columns), ("row", "column"), strict=True):
            if name not in names:
                raise unknown(f"{what} of the table", name, names)
    _one_experiment_each(cells)
    ours: dict[Spot, tuple[TableCell, TableCell]] = {}
    for column in columns:
        found = [cells.get((row, column), ()) for row in rows]
        marked = [
            mark_best([[float(figure.read(r) or 0.0) for r in records] for records in found], figure.show)
            for figure in FIGURES
        ]
        ours |= {(row, column): (average, last) for row, average, last in zip(rows, *marked, strict=True)}
    several = any(len(found) > 1 for found in cells.values())
    return ExhibitTable(title, rows, columns, ours, known, several, since)


def _one_experiment_each(cells: Mapping[Spot, Sequence[RunRecord]]) -> None:
    """A mean over different settings or streams would be a figure of nothing."""
    for (row, column), records in cells.items():
        if records and len(found := group(records)) > 1:
            labels = ", ".join(f"{series.label} on {series.benchmark}" for series in found)
            raise EaseError(f"the cell '{row}', '{column}' mixes {len(found)} experiments: {labels}")
