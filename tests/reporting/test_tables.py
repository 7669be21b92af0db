"""The comparison table in the terminal, as Markdown, as CSV and as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from ease.errors import EaseError
from ease.experiments.record import RunRecord
from ease.methods import find_method, method_title
from ease.reporting.series import group
from ease.reporting.tables import comparison, count_text, percent_text, seconds_text

Make = Callable[..., RunRecord]


def printed(table: Any, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def best(table: Any) -> dict[str, list[str]]:
    return {
        column.key: [row.series.method for row in table.rows if row.cells[number].best]
        for number, column in enumerate(table.columns)
    }


def test_the_best_of_each_column_is_marked(three_methods: list[RunRecord]) -> None:
    marked = best(comparison(three_methods))
    assert marked["average"] == marked["last"] == marked["forgetting"] == ["ease"]
    assert marked["trained"] == marked["trained_per_task"] == marked["stored"] == ["simplecil"]


def test_a_column_of_equal_figures_has_no_best(three_methods: list[RunRecord]) -> None:
    assert best(comparison(three_methods))["passes"] == []


def test_a_lone_method_is_not_called_best(make_record: Make) -> None:
    assert not comparison([make_record()]).any_best


def test_what_looks_equal_is_equally_best(make_record: Make) -> None:
    records = [
        make_record("ease", last=90.001),
        make_record("simplecil", last=90.004),
        make_record("finetune"),
    ]
    assert best(comparison(records))["last"] == ["ease", "simplecil"]


def test_seeds_of_a_method_become_one_row_with_mean_and_deviation(make_record: Make) -> None:
    table = comparison([make_record(seed=1, last=90.0), make_record(seed=2, last=92.0)])
    (row,) = table.rows
    cell = row.cells[1]
    assert (cell.mean, cell.deviation) == (91.0, pytest.approx(2**0.5))
    assert cell.text == "91.00 ±1.41"
    assert "standard deviation" in table.legend


def test_settings_that_differ_split_a_method_and_name_themselves(make_record: Make) -> None:
    configs = [{"settings": {"alpha": alpha, "epochs": 20}, "seed": 1} for alpha in (0.1, 0.5)]
    table = comparison([make_record(config=config) for config in configs])
    assert [row.series.label for row in table.rows] == ["EASE (alpha=0.1)", "EASE (alpha=0.5)"]


def test_where_a_run_was_carried_out_does_not_split_a_method(make_record: Make) -> None:
    configs = [{"seed": seed, "devices": seed, "data_root": f"disk{seed}"} for seed in (1, 2)]
    records = [make_record(seed=seed, config=config) for seed, config in enumerate(configs)]
    assert len(comparison(records).rows) == 1


def test_streams_are_told_apart_and_compared_within_themselves(make_record: Make) -> None:
    records = [
        make_record("ease"),
        make_record("ease", dataset="digits", last=50.0),
        make_record("simplecil"),
        make_record("simplecil", dataset="digits", last=60.0),
    ]
    table = comparison(records)
    assert table.benchmark_fields == ["dataset"]
    assert [table.names(row) for row in table.rows] == [
        ["glyphs", "EASE"],
        ["glyphs", "SimpleCIL"],
        ["digits", "EASE"],
        ["digits", "SimpleCIL"],
    ]
    assert [row.cells[1].best for row in table.rows] == [True, False, False, True]
    assert [table.starts_benchmark(number) for number in range(4)] == [False, False, True, False]
    assert table.latex().count(r"\midrule") == 2


def test_eighty_columns_hold_every_figure_whole(make_record: Make) -> None:
    records = [make_record(name, seed=seed) for name in ("ease", "simplecil", "finetune") for seed in (1, 2)]
    wide, narrow = printed(comparison(records), 120), printed(comparison(records), 80)
    assert "96.51 ±0.54" in wide
    assert "±0.54" in narrow
    assert "…" not in narrow
    for text in (wide, narrow):
        assert all(word in text for word in ("SimpleCIL", "96.51", "Seconds", "27M", "glyphs · B0 Inc5"))
    assert max(map(len, narrow.splitlines())) <= 80


def test_a_very_narrow_terminal_keeps_the_names(three_methods: list[RunRecord]) -> None:
    text = printed(comparison(three_methods), 40)
    assert "SimpleCIL  93.28  88.55        7.50" in text
    assert "…" not in text
    assert "Seconds" not in text.split("Ā:")[0]


def test_terminal_markup_and_control_characters_in_names_are_only_text(make_record: Make) -> None:
    text = printed(comparison([make_record(dataset="[red]a\x1b[2Jb\n")]), 120)
    assert "[red]a" in text
    assert "\x1b" not in text


def test_markdown_is_a_table_with_the_best_in_bold(three_methods: list[RunRecord]) -> None:
    lines = comparison(three_methods).markdown().splitlines()
    assert len(lines) == 5
    assert len({line.count("|") for line in lines}) == 1
    assert lines[0].startswith("| Method | Ā % | A\\_B % |")
    assert lines[2].startswith("| EASE | **96.12** | **92.75** | **4.50** | 369k |")


def test_markdown_and_latex_escape_names(make_record: Make) -> None:
    records = [make_record(), make_record(dataset=r"a|b_<i>&50%\x")]
    table = comparison(records)
    assert r"a\|b\_&lt;i&gt;&amp;50%\\x" in table.markdown()
    assert r"a|b\_<i>\&50\%\textbackslash{}x" in table.latex()


def test_latex_is_a_booktabs_tabular(make_record: Make) -> None:
    records = [make_record(seed=1), make_record(seed=2), make_record("finetune", forgetting=-1.5)]
    text = comparison(records).latex()
    assert text.startswith(r"\begin{tabular}{lrrrrrrrr}")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    assert r"\textbf{96.51 $\pm$ 0.54}" in text
    assert r"\textbf{$-$1.50}" in text
    assert all(line.count("&") == 8 for line in text.splitlines() if "&" in line)


def test_csv_keeps_full_precision_and_says_where(make_record: Make) -> None:
    records = [make_record(seed=1, last=90.123456), make_record("simplecil", seed=1)]
    rows = list(csv.DictReader(io.StringIO(comparison(records).csv())))
    assert rows[0]["last"] == "90.123456"
    assert rows[0]["last_std"] == ""
    assert (rows[0]["dataset"], rows[0]["protocol"], rows[0]["method"]) == ("glyphs", "B0 Inc5", "ease")
    assert (rows[0]["trained"], rows[0]["trained_per_task"], rows[0]["seeds"]) == ("368640", "36864", "1")


def test_a_figure_that_was_not_measured_is_a_dash(make_record: Make) -> None:
    seconds = {"train": 1.0, "prototypes": 1.0, "evaluation": 1.0, "total": None}
    table = comparison([make_record(seconds=seconds), make_record("simplecil"), make_record("finetune")])
    assert table.rows[0].cells[-1].text == "–"
    assert r" -- \\" in table.latex()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (950, "950"),
        (2.5, "2.5"),
        (999.7, "1k"),
        (12_345, "12.3k"),
        (999_950, "1M"),
        (2.7e9, "2.7B"),
    ],
)
def test_counts_are_short(value: float, text: str) -> None:
    assert count_text(value) == text


def test_figures_are_rounded_without_surprises() -> None:
    assert percent_text(-0.001) == "0.00"
    assert (seconds_text(99.94), seconds_text(99.96), seconds_text(12345.6)) == ("99.9", "100", "12,346")


def test_methods_are_named_as_their_papers_name_them() -> None:
    assert method_title("simplecil") == "SimpleCIL"
    assert method_title("adam-ssf") == "ADAM-ssf"
    assert method_title("coda-prompt") == "CODA-Prompt"
    assert method_title("my-own") == "my-own"


def test_records_that_cannot_be_shown_say_so_in_one_line(make_record: Make) -> None:
    with pytest.raises(EaseError, match="lacks forgetting"):
        make_record(forgetting=None)
    with pytest.raises(EaseError, match="no record"):
        group([])
    with pytest.raises(EaseError, match="format 3"):
        make_record(format=3)
    with pytest.raises(EaseError, match="stages"):
        make_record(accuracy=[1.0])
    with pytest.raises(EaseError, match="JSON object"):
        RunRecord.parse([])


def test_memory_and_hardware_do_not_split_a_method(make_record: Make) -> None:
    configs = [{"seed": seed, "image_memory": 100 * seed, "compile": seed == 2} for seed in (1, 2)]
    (row,) = comparison([make_record(seed=c["seed"], config=c) for c in configs]).rows
    assert row.series.seeds == [1, 2]


def test_a_setting_that_is_younger_than_a_record_counts_as_its_default(make_record: Make) -> None:
    settings = find_method("ease").Settings().model_dump(mode="json")
    older = {key: value for key, value in settings.items() if key != "beta"}
    configs = [{"settings": settings}, {"settings": older}]
    records = [make_record(seed=seed, config=config) for seed, config in enumerate(configs)]
    assert len(comparison(records).rows) == 1
    assert len(comparison([*records, make_record(config={"settings": {**settings, "beta": 0.5}})]).rows) == 2


@pytest.mark.parametrize("name", ["=1+1", "+x", "-x", "@SUM(A1)", "\t=1", " =1"])
def test_no_name_is_a_formula_in_a_spreadsheet(make_record: Make, name: str) -> None:
    (row,) = csv.DictReader(io.StringIO(comparison([make_record(method=name, label=name)]).csv()))
    assert not any(row[key].strip().startswith(tuple("=+-@")) for key in ("method", "label"))
    rows = list(csv.DictReader(io.StringIO(comparison([make_record(forgetting=-1.5)]).csv())))
    assert rows[0]["forgetting"] == "-1.5"  # numbers stay numbers


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "<img src=x onerror=y>", "a\n\n<b>", "&lt;i&gt;"]
)
def test_no_name_is_html_in_markdown(make_record: Make, name: str) -> None:
    text = comparison([make_record(label=name), make_record(dataset=name)]).markdown()
    assert "<" not in text
    assert "lt;" in text
    assert len(text.splitlines()) == 4
