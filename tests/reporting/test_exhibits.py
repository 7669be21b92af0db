"""A paper's table: methods by streams, published figures beside ours."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest
from rich.console import Console

from ease.errors import EaseError
from ease.experiments.record import RunRecord
from ease.reporting.tables import ExhibitTable, exhibit_table

Make = Callable[..., RunRecord]
ROWS, COLUMNS = ["SimpleCIL", "EASE"], ["CIFAR B0 Inc5", "R&D_set B0 Inc10"]


@pytest.fixture
def cells(make_record: Make) -> dict[tuple[str, str], list[dict]]:
    """EASE is ahead on the first stream; on the second only SimpleCIL was run."""
    return {
        ("EASE", COLUMNS[0]): [make_record(seed=s, average=90.0 + s, last=80.0 + s) for s in (1, 3)],
        ("SimpleCIL", COLUMNS[0]): [make_record("simplecil", average=85.5, last=82.0)],
        ("SimpleCIL", COLUMNS[1]): [make_record("simplecil", dataset="r", average=60.25, last=50.0)],
    }


def printed(table: ExhibitTable, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_two_figures_per_stream_seeds_averaged_best_marked(cells: dict) -> None:
    table = exhibit_table(ROWS, COLUMNS, cells)
    simple, ease = table.lines
    assert [head.text for head in table.figure_heads] == ["Ā %", "A_B %"] * 2
    assert [cell.text for cell in ease.cells] == ["92.00 ±1.41", "82.00 ±1.41", "–", "–"]
    assert [cell.text for cell in simple.cells] == ["85.50", "82.00", "60.25", "50.00"]
    # Equal figures share no crown, and one alone in its column needs none.
    assert [cell.best for cell in ease.cells] == [True, False, False, False]
    assert not any(cell.best for cell in simple.cells)


def test_published_figures_stand_beside_ours_only_where_there_are_any(cells: dict) -> None:
    table = exhibit_table(ROWS, COLUMNS, cells, {("EASE", COLUMNS[0]): (99.99, None)})
    heads = [(head.group, head.text) for head in table.figure_heads]
    first = [(COLUMNS[0], text) for text in ("Ā %", "published", "A_B %", "published")]
    assert heads == [*first, (COLUMNS[1], "Ā %"), (COLUMNS[1], "A_B %")]
    simple, ease = table.lines
    assert [cell.text for cell in ease.cells] == ["92.00 ±1.41", "99.99", "82.00 ±1.41", "–", "–", "–"]
    assert [cell.text for cell in simple.cells][:4] == ["85.50", "–", "82.00", "–"]
    # A published figure is quoted, never crowned.
    assert [cell.best for cell in ease.cells][:2] == [True, False]
    assert "published" in table.legend
    assert "published" not in exhibit_table(ROWS, COLUMNS, cells).legend


def test_markdown(cells: dict) -> None:
    lines = exhibit_table(ROWS, COLUMNS, cells, {("EASE", COLUMNS[1]): (61.0, 51.0)}).markdown().splitlines()
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert lines[0].startswith(
        r"| Method | CIFAR B0 Inc5 Ā % | CIFAR B0 Inc5 A\_B % | R&amp;D\_set B0 Inc10 Ā % |"
    )
    assert lines[3] == r"| EASE | **92.00 ±1.41** | 82.00 ±1.41 | – | 61.00 | – | 51.00 |"


def test_latex_is_balanced_and_its_heads_span_their_columns(cells: dict) -> None:
    text = exhibit_table(ROWS, COLUMNS, cells, {("EASE", COLUMNS[0]): (92.0, 82.5)}).latex()
    lines = text.splitlines()
    assert lines[0] == r"\begin{tabular}{lrrrrrr}"
    assert lines[-1] == r"\end{tabular}"
    assert lines[2] == r" & \multicolumn{4}{c}{CIFAR B0 Inc5} & \multicolumn{2}{c}{R\&D\_set B0 Inc10} \\"
    assert lines[3] == r"\cmidrule(lr){2-5} \cmidrule(lr){6-7}"
    assert [lines.count(rf"\{rule}") for rule in ("toprule", "midrule", "bottomrule")] == [1, 1, 1]
    # Every row fills the seven columns, counting what a common head spans.
    for line in lines:
        if line.endswith(r"\\"):
            spans = sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d)\}", line))
            assert len(re.findall(r"(?<!\\)&", line)) + 1 + spans == 7
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert text.count("$") % 2 == 0
    assert r"\textbf{92.00 $\pm$ 1.41}" in text


def test_csv_has_one_line_per_cell_in_full_precision(cells: dict) -> None:
    table = exhibit_table(ROWS, COLUMNS, cells, {("EASE", COLUMNS[1]): (61.0, 51.125)})
    rows = {(row["row"], row["column"]): row for row in csv.DictReader(io.StringIO(table.csv()))}
    assert len(rows) == 4
    assert float(rows["EASE", COLUMNS[0]]["average_std"]) == pytest.approx(2**0.5)
    assert rows["EASE", COLUMNS[1]]["last"] == ""
    assert rows["EASE", COLUMNS[1]]["last_published"] == "51.125"


def test_a_narrow_terminal_gets_the_streams_below_one_another(cells: dict) -> None:
    table = exhibit_table(ROWS, COLUMNS, cells)
    wide, narrow = printed(table, 160), printed(table, 34)
    assert wide.count("Method") == 1
    assert narrow.count("Method") == 2
    assert max(map(len, narrow.splitlines())) <= 34
    for text in (wide, narrow):
        assert all(figure in text for figure in ("92.00", "85.50", "60.25", "±1.41"))
        assert " ".join(text.split()).count("standard deviation") == 1


def test_what_does_not_belong_in_a_cell_is_refused_in_one_line(cells: dict, make_record: Make) -> None:
    with pytest.raises(EaseError, match="unknown row of the table 'EASY': known: EASE"):
        exhibit_table(["EASE"], COLUMNS, {("EASY", COLUMNS[0]): [make_record()]})
    with pytest.raises(EaseError, match="unknown column"):
        exhibit_table(ROWS, COLUMNS, {}, {("EASE", "VTAB"): (1.0, 1.0)})
    mixed = [make_record(), make_record("simplecil")]
    with pytest.raises(EaseError, match="mixes 2 experiments"):
        exhibit_table(ROWS, COLUMNS, {("EASE", COLUMNS[0]): mixed})
