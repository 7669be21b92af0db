"""A study: a data file of methods becomes one table, one plot and one page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ease.errors import EaseError
from ease.experiments.grid import Grid
from ease.experiments.plans.study import load_study, run_study, study_list
from ease.methods import methods

BUILT_IN = "ease."


def test_every_study_of_the_package_resolves() -> None:
    for name in study_list():
        assert load_study(name).cells()


def test_bench_small_has_every_method_and_exemplars_twice() -> None:
    cells = load_study("bench-small").cells()
    ours = {name for name, learner in methods().items() if learner.__module__.startswith(BUILT_IN)}
    assert {cell.config.method for cell in cells} == ours
    for name in ours:
        kept = sorted({c.config.exemplars for c in cells if c.config.method == name})
        assert kept == ([2, 20] if methods()[name].kind == "exemplar-based" else [20])
    assert {cell.config.preset for cell in cells} == {"few-images"}
    assert not any(cell.notes for cell in cells)  # the preset has settings for every method


def test_settings_reach_the_methods_that_have_them() -> None:
    cells = load_study("bench-small").cells(["ease", "simplecil"], sets=["epochs=1"])
    assert [c.config.settings.get("epochs") for c in cells] == [None, 1]


def test_a_setting_that_no_method_has_is_refused() -> None:
    with pytest.raises(EaseError, match="epoch"):
        load_study("bench-small").cells(["simplecil"], sets=["epoch=1"])


def test_seeds_and_methods_can_be_chosen() -> None:
    cells = load_study("bench-small").cells(["icarl"], [1, 2], {"data_root": None})
    assert [(c.config.seed, c.config.exemplars) for c in cells] == [(1, 2), (2, 2), (1, 20), (2, 20)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("about: x\nrows: []", "rows"),
        ("about: x\nrows: [{method: nothing}]", "nothing"),
        ("about: x\nrow: []", "row"),
        ("- a", "key: value"),
        (
            "about: x\nrows: [{method: ease}]\nfused: [{label: a, of: [b, c], weights: [1, 1]}]",
            "label of no row",
        ),
        (
            "about: x\nrows: [{method: ease}]\nfused: [{label: a, of: [b, c], weights: [1]}]",
            "as many weights",
        ),
    ],
)
def test_a_wrong_file_is_refused_with_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(EaseError, match=message):
        load_study(str(path)).cells()


def test_an_unknown_study_names_the_nearest() -> None:
    with pytest.raises(EaseError, match="bench-small"):
        load_study("bench-smal")


def test_a_study_of_your_own_ends_in_a_table_a_plot_and_a_page(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "about: mine\nrun: {dataset: digits, protocol: B0 Inc5, limit_per_class: 4, input_size: 16}\n"
        "rows: [{method: simplecil}, {method: icarl, set: {exemplars: 1, epochs: 1}}]\n"
    )
    table, written = run_study(load_study(str(path)).cells(), tmp_path / "out")
    assert [row.series.method for row in table.rows] == ["simplecil", "icarl"]
    assert {"report.html", "accuracy.svg", "table.md", "table.csv", "table.tex"} <= {p.name for p in written}
    assert all(path.stat().st_size for path in written)


def test_the_longest_rows_are_started_first_and_the_table_keeps_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(Grid, "run", lambda self, cells, *_: started.extend(c.config.method for c in cells))
    path = tmp_path / "mine.yaml"
    path.write_text(
        "about: x\nrows: [{method: simplecil}, {method: joint, minutes: 9}, {method: ease, minutes: 2}]"
    )
    cells = load_study(str(path)).cells()
    with pytest.raises(EaseError, match="no record"):
        run_study(cells, tmp_path / "out")
    assert started == ["joint", "ease", "simplecil"]
    assert [cell.config.method for cell in cells] == ["simplecil", "joint", "ease"]


def test_scores_of_finished_rows_can_be_added_up(tmp_path: Path) -> None:
    plan = tmp_path / "mine.yaml"
    plan.write_text(
        "about: x\n"
        "run: {dataset: digits, protocol: B0 Inc5, limit_per_class: 6, input_size: 16}\n"
        "rows:\n"
        "  - {method: simplecil, label: means}\n"
        "  - {method: strata, label: whitened}\n"
        "fused:\n"
        "  - {label: both, of: [means, whitened], weights: [1, 3]}\n"
        "  - {label: whitened alone, of: [means, whitened], weights: [0, 1]}\n"
    )
    study = load_study(str(plan))
    table, _ = run_study(study.cells(), tmp_path / "out", fused=study.fused)
    rows = {row.series.label: row.series.records[0] for row in table.rows}
    assert list(rows) == ["means", "whitened", "both", "whitened alone"]
    assert rows["whitened alone"].accuracy == rows["whitened"].accuracy
    assert rows["both"].forward_passes.evaluation == sum(
        rows[name].forward_passes.evaluation for name in ("means", "whitened")
    )
    logits, labels = [], None
    for cell in study.cells():
        with np.load(Grid(tmp_path / "out").path(cell) / "predictions.npz") as found:
            logits.append(found["stage2/logits"])
            labels = found["stage2/labels"]
    scaled = [(each - each.mean(1, keepdims=True)) / each.std(1, keepdims=True) for each in logits]
    right = (scaled[0] + 3 * scaled[1]).argmax(1) == labels
    assert rows["both"].last == pytest.approx(100 * right.mean())
