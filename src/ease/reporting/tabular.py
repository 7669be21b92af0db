"""The base class of tables, which can be shown in a terminal and written as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import html
import io
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from textwrap import wrap

import numpy as np
import rich.box
import rich.table
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

NOTHING = "–"
GROUP_WIDTH = 11  # characters of a common head before it is broken in the terminal


@dataclass(frozen=True)
class TableCell:
    """What a cell shows, and whether it is the best of its column."""

    text: str
    best: bool = False
    mean: float | None = None
    deviation: float | None = None
    quoted: bool = False
    """Taken from elsewhere, not measured here."""


@dataclass(frozen=True)
class ColumnHead:
    """A column of figures; neighbours of one group stand under a common head."""

    text: str
    latex: str
    group: str = ""


@dataclass(frozen=True)
class TableLine:
    """A row: its names, its figures, and whether a rule belongs above it."""

    names: Sequence[str]
    cells: Sequence[TableCell]
    ruled: bool = False


class ReportTable(ABC):
    """Names at the left, figures at the right, the best in bold."""

    title: str

    @property
    @abstractmethod
    def name_heads(self) -> list[str]:
        """Heads of the leading text columns."""

    @property
    @abstractmethod
    def figure_heads(self) -> list[ColumnHead]:
        """Heads of the figures."""

    @property
    @abstractmethod
    def lines(self) -> list[TableLine]:
        """The rows."""

    @property
    @abstractmethod
    def legend(self) -> str:
        """One line for readers who meet these columns for the first time."""

    @abstractmethod
    def csv(self) -> str:
        """Every figure unrounded."""

    @property
    def any_best(self) -> bool:
        return any(cell.best for line in self.lines for cell in line.cells)

    def rich(self, narrow: bool = False, figures: slice | int | None = None) -> rich.table.Table:
        """The terminal table; a narrow one breaks before deviations, and may show some figures only."""
        shown = figures if isinstance(figures, slice) else slice(figures)
        table = rich.table.Table(
            title=Text(self.title) if self.title else None,
            caption=Text(self.legend),
            box=rich.box.SIMPLE_HEAD,
            title_justify="left",
            caption_justify="left",
            padding=(0, 1, 0, 0),
            pad_edge=False,
        )
        heads = self.figure_heads[shown]
        grouped = [wrap(head.group, GROUP_WIDTH, break_long_words=False) for head in heads]
        depth = max(map(len, grouped), default=0)
        for name in self.name_heads:
            table.add_column(Text("\n" * depth + name))
        for head, above in zip(heads, grouped, strict=True):
            stacked = [""] * (depth - len(above)) + above + [head.text]
            width = max(map(len, stacked))
            table.add_column(Text("\n".join(stacked)), justify="right", no_wrap=True, min_width=width)
        for line in self.lines:
            if line.ruled:
                table.add_section()
            cells = line.cells[shown]
            texts = [cell.text.replace(" ±", "\n±") if narrow else cell.text for cell in cells]
            styles = ["bold green" if cell.best else "dim" if cell.quoted else "" for cell in cells]
            table.add_row(*map(Text, line.names), *map(Text, texts, styles))
        return table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = self.rich()
        # Too narrow a terminal costs the last figures, never a name or half a number.
        figures = len(self.figure_heads)
        fits = _fits(table, console, options, whole=True)
        while not fits and figures:
            table = self.rich(narrow=True, figures=figures)
            fits = _fits(table, console, options)
            figures -= 1
        yield table

    def markdown(self) -> str:
        heads = [*self.name_heads, *(f"{head.group} {head.text}".strip() for head in self.figure_heads)]
        rows = [
            _markdown_line(map(markdown_text, heads)),
            _markdown_line(["---"] * len(self.name_heads) + ["---:"] * len(self.figure_heads)),
        ]
        for line in self.lines:
            figures = [f"**{cell.text}**" if cell.best else cell.text for cell in line.cells]
            rows.append(_markdown_line([*map(markdown_text, line.names), *figures]))
        return "\n".join(rows) + "\n"

    def latex(self) -> str:
        r"""A booktabs tabular, best figures in \textbf; needs \usepackage{booktabs}."""
        names, heads = len(self.name_heads), self.figure_heads
        texts = [*map(latex_text, self.name_heads), *(head.latex for head in heads)]
        rows = [
            rf"\begin{{tabular}}{{{'l' * names}{'r' * len(heads)}}}",
            r"\toprule",
            *_latex_groups(names, heads),
            " & ".join(texts) + r" \\",
            r"\midrule",
        ]
        for line in self.lines:
            if line.ruled:
                rows.append(r"\midrule")
            rows.append(" & ".join([*map(latex_text, line.names), *map(_latex_cell, line.cells)]) + r" \\")
        return "\n".join([*rows, r"\bottomrule", r"\end{tabular}"]) + "\n"


class WideTable(ReportTable):
    """A table too wide for its terminal is continued below, group by group."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        heads = self.figure_heads
        starts = [0, *(i for i in range(1, len(heads)) if heads[i].group != heads[i - 1].group), len(heads)]
        whole = self.rich()
        if _fits(whole, console, options, whole=True) or len(starts) < 2:
            yield whole
            return
        first, last = 0, 1
        while first < len(starts) - 1:
            table = self.rich(narrow=True, figures=slice(starts[first], starts[last]))
            while last < len(starts) - 1:
                wider = self.rich(narrow=True, figures=slice(starts[first], starts[last + 1]))
                if not _fits(wider, console, options):
                    break
                table, last = wider, last + 1
            if last < len(starts) - 1:
                table.caption = None
            if first:
                table.title = None
            yield table
            first, last = last, last + 1


def mark_best(
    found: Sequence[Sequence[float]],
    show: Callable[[float], str],
    more_is_better: bool = True,
    spread: bool = True,
) -> list[TableCell]:
    """A column of cells from the values behind each: the mean, with its deviation where there are several."""
    means = [float(np.mean(values)) if len(values) else None for values in found]
    known = [mean for mean in means if mean is not None]
    best = (max if more_is_better else min)(known, default=None)
    # Compared as shown: two equal-looking figures of which one is bold would puzzle, and so would a
    # column that is bold from top to bottom.
    winner = show(best) if best is not None else None
    contested = len({show(mean) for mean in known}) > 1
    cells = []
    for mean, values in zip(means, found, strict=True):
        if mean is None:
            cells.append(TableCell(NOTHING))
            continue
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
        text = show(mean)
        shown = f"{text} ±{show(deviation)}" if spread and deviation is not None else text
        cells.append(TableCell(shown, contested and text == winner, mean, deviation))
    return cells


def csv_text(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV. Spreadsheets take text that begins with one of =+-@ for a formula: a quote is put in front of it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_no_formula(value) for value in row] for row in rows)
    return out.getvalue()


def _no_formula(value: object) -> object:
    return (
        f"'{value}" if isinstance(value, str) and value.lstrip().startswith(("=", "+", "-", "@")) else value
    )


def whole(value: float | None) -> float | int | None:
    """Counts pass through a float mean; in the file they are whole numbers again."""
    return int(value) if value is not None and value.is_integer() else value


def _fits(table: rich.table.Table, console: Console, options: ConsoleOptions, whole: bool = False) -> bool:
    # Measured unbounded, or the measure would be clamped to the very width it is compared with.
    measure = Measurement.get(console, options.update(max_width=10_000), table)
    return (measure.maximum if whole else measure.minimum) <= options.max_width


def _markdown_line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is. HTML is written as entities, which every renderer knows."""
    escaped = re.sub(r"([\\`*_\[\]|~])", r"\\\1", " ".join(text.split()))
    return html.escape(escaped, quote=False)


def _latex_cell(cell: TableCell) -> str:
    text = cell.text.replace(NOTHING, "--").replace(" ±", r" $\pm$ ")
    # A minus sign, not a hyphen.
    text = re.sub(r"^-(?=\d)", r"$-$", text)
    return rf"\textbf{{{text}}}" if cell.best else text


def _latex_groups(names: int, heads: Sequence[ColumnHead]) -> list[str]:
    """The line of common heads and the rules under them; nothing where no column is in a group."""
    if not any(head.group for head in heads):
        return []
    cells, rules, column = [""] * names, [], names + 1
    for group, members in groupby(head.group for head in heads):
        count = len(list(members))
        cells.append(rf"\multicolumn{{{count}}}{{c}}{{{latex_text(group)}}}")
        rules += [rf"\cmidrule(lr){{{column}-{column + count - 1}}}"] if group else []
        column += count
    return [" & ".join(cells) + r" \\", " ".join(rules)]


def latex_text(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "·": r"$\cdot$",
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
    return "".join(special.get(char, char) for char in text)
