"""The comparison table: one row per method, for the terminal, Markdown, CSV, LaTeX and the report."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import rich.box
import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from ease.studies.series import Place, Record, Series, by_place, group

NOTHING = "–"


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
    read: Callable[[Record], float | None]
    show: Callable[[float], str]
    more_is_better: bool
    spread: bool = False


def _per_task(record: Record) -> float:
    return float(np.mean(record["parameters"]["trained"] or [0]))


COLUMNS = (
    Column("average", "Ā %", r"$\bar{\mathcal{A}}$", lambda r: r["average"], percent_text, True, True),
    Column("last", "A_B %", r"$\mathcal{A}_B$", lambda r: r["last"], percent_text, True, True),
    Column("forgetting", "Forgetting", "Forgetting", lambda r: r["forgetting"], percent_text, False, True),
    Column("trained", "Trained", "Trained", lambda r: sum(r["parameters"]["trained"]), count_text, False),
    Column("trained_per_task", "/task", "/task", _per_task, count_text, False),
    Column("stored", "Stored", "Stored", lambda r: r["parameters"]["stored"], count_text, False),
    Column("passes", "Passes", "Passes", lambda r: sum(r["forward_passes"].values()), count_text, False),
    Column("seconds", "Seconds", "Seconds", lambda r: r["seconds"]["total"], seconds_text, False),
)


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and whether it is the best of its column at its place."""

    text: str
    best: bool = False
    mean: float | None = None
    deviation: float | None = None


@dataclass(frozen=True)
class Row:
    series: Series
    cells: list[Cell]


@dataclass(frozen=True)
class Table:
    """The comparison of several series; rows of one place stand together."""

    title: str
    place_fields: list[str]
    """The parts of the place that differ between rows and therefore need a column."""
    rows: list[Row]
    columns: Sequence[Column] = field(default=COLUMNS)

    @property
    def several_seeds(self) -> bool:
        return any(len(row.series.records) > 1 for row in self.rows)

    @property
    def any_best(self) -> bool:
        return any(cell.best for row in self.rows for cell in row.cells)

    @property
    def heads(self) -> list[str]:
        return [*(name.capitalize() for name in self.place_fields), "Method", *(c.head for c in self.columns)]

    def names(self, row: Row) -> list[str]:
        """The leading text cells of a row."""
        return [*(getattr(row.series.place, name) for name in self.place_fields), row.series.label]

    def starts_place(self, index: int) -> bool:
        """Whether a rule belongs above this row."""
        return index > 0 and self.rows[index].series.place != self.rows[index - 1].series.place

    def rich(self, narrow: bool = False, figures: int | None = None) -> rich.table.Table:
        """The terminal table; a narrow one breaks before deviations, or shows the first figures only."""
        table = rich.table.Table(
            title=Text(self.title) if self.title else None,
            caption=Text(self.legend),
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        names = len(self.place_fields) + 1
        for head in self.heads[:names]:
            table.add_column(Text(head))
        for column in self.columns[:figures]:
            table.add_column(Text(column.head), justify="right", no_wrap=True, min_width=len(column.head))
        for index, row in enumerate(self.rows):
            if self.starts_place(index):
                table.add_section()
            cells = row.cells[:figures]
            texts = [cell.text.replace(" ±", "\n±") if narrow else cell.text for cell in cells]
            styles = ["bold green" if cell.best else "" for cell in cells]
            table.add_row(*map(Text, self.names(row)), *map(Text, texts, styles))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # Measured unbounded, or the measure would be clamped to the very width it is compared with.
        free = options.update(max_width=10_000)
        table = self.rich()
        fits = Measurement.get(console, free, table).maximum <= options.max_width
        # Too narrow a terminal costs the last figures, never a name or half a number.
        figures = len(self.columns)
        while not fits and figures:
            table = self.rich(narrow=True, figures=figures)
            fits = Measurement.get(console, free, table).minimum <= options.max_width
            figures -= 1
        yield table

    @property
    def legend(self) -> str:
        """One line for readers who meet these columns for the first time."""
        text = (
            "Ā: mean top-1 of all stages; A_B: top-1 after the last. Trained, /task, Stored: parameters "
            "trained in all, trained per task, kept beside the backbone. Passes: images × subspaces."
        )
        return f"{text} ±: standard deviation over seeds." if self.several_seeds else text

    def markdown(self) -> str:
        names = len(self.place_fields) + 1
        lines = [
            _markdown_line(map(_markdown_text, self.heads)),
            _markdown_line(["---"] * names + ["---:"] * len(self.columns)),
        ]
        for row in self.rows:
            figures = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells]
            lines.append(_markdown_line([*map(_markdown_text, self.names(row)), *figures]))
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Every figure unrounded, with its standard deviation over the seeds (empty for a single one)."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        figures = [name for column in self.columns for name in (column.key, f"{column.key}_std")]
        writer.writerow([*Place._fields, "method", "label", "seeds", *figures])
        for row in self.rows:
            values = [_whole(value) for cell in row.cells for value in (cell.mean, cell.deviation)]
            series = row.series
            writer.writerow([*series.place, series.method, series.label, len(series.records), *values])
        return out.getvalue()

    def latex(self) -> str:
        r"""A booktabs tabular, best figures in \textbf; needs \usepackage{booktabs}."""
        names = len(self.place_fields) + 1
        heads = [_latex_text(head) for head in self.heads[:names]] + [column.latex for column in self.columns]
        lines = [
            rf"\begin{{tabular}}{{{'l' * names}{'r' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
        ]
        for index, row in enumerate(self.rows):
            if self.starts_place(index):
                lines.append(r"\midrule")
            figures = []
            for cell in row.cells:
                text = cell.text.replace(NOTHING, "--").replace(" ±", r" $\pm$ ")
                # A minus sign, not a hyphen.
                text = re.sub(r"^-(?=\d)", r"$-$", text)
                figures.append(rf"\textbf{{{text}}}" if cell.best else text)
            lines.append(" & ".join([*map(_latex_text, self.names(row)), *figures]) + r" \\")
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def comparison(records: Sequence[Record]) -> Table:
    """One row per method and setting (seeds averaged), best figures marked within each place."""
    grouped = group(records)
    places = by_place(grouped)
    varied = [name for i, name in enumerate(Place._fields) if len({place[i] for place in places}) > 1]
    rows = [row for members in places.values() for row in _rows(members)]
    return Table(title=str(grouped[0].place) if len(places) == 1 else "", place_fields=varied, rows=rows)


def _rows(members: list[Series]) -> list[Row]:
    columns = [_cells(column, members) for column in COLUMNS]
    return [Row(series, list(cells)) for series, *cells in zip(members, *columns, strict=True)]


def _cells(column: Column, members: list[Series]) -> list[Cell]:
    found = [series.values(column.read) for series in members]
    means = [float(np.mean(values)) if values else None for values in found]
    known = [mean for mean in means if mean is not None]
    best = (max if column.more_is_better else min)(known, default=None)
    # Compared as shown: two equal-looking figures of which one is bold would puzzle, and so would a
    # column that is bold from top to bottom.
    winner = column.show(best) if best is not None else None
    contested = len({column.show(mean) for mean in known}) > 1
    cells = []
    for mean, values in zip(means, found, strict=True):
        if mean is None:
            cells.append(Cell(NOTHING))
            continue
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        text = column.show(mean)
        shown = f"{text} ±{column.show(deviation)}" if column.spread and deviation is not None else text
        cells.append(Cell(shown, contested and text == winner, mean, deviation))
    return cells


def _whole(value: float | None) -> float | int | None:
    """Counts pass through a float mean; in the file they are whole numbers again."""
    return int(value) if value is not None and value.is_integer() else value


def _markdown_line(cells: Sequence[str] | map[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_text(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|~])", r"\\\1", text)


def _latex_text(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "·": r"$\cdot$",
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
    return "".join(special.get(char, char) for char in text)
