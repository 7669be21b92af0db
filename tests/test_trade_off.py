"""The table of what each method reaches and costs, from two small studies."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from benchmarks.trade_off import main, read_runs

from ease.config import resolve
from ease.experiments.run import start_run


def small_run(folder: Path, method: str, seed: int, protocol: str, sets: list[str]) -> None:
    options = {"dataset": "digits", "protocol": protocol, "limit_per_class": 4, "input_size": 16}
    config, notes = resolve({**options, "method": method, "seed": seed}, sets=sets)
    start_run(config, folder / "cells" / f"{method}-{seed}", notes)


def test_a_row_has_the_mean_of_its_seeds_and_what_its_models_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, singly, out = tmp_path / "whole", tmp_path / "singly", tmp_path / "out"
    quick = ["variant=text", "epochs=1", "rank=4", "align_epochs=1", "align_draws=4"]
    for seed in (1, 2):
        small_run(whole, "simplecil", seed, "B0 Inc5", [])
    small_run(whole, "tuna", 1, "B0 Inc5", quick)
    small_run(singly, "simplecil", 1, "B0 Inc1", [])
    words = ["trade_off", "--glyphs", whole, "--one-at-a-time", singly, "--out", out]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    main()
    printed = capsys.readouterr().out
    rows = {line.split(" | ")[0].strip("| "): line.strip("| ").split(" | ") for line in printed.splitlines()}

    runs = [run.record for run in read_runs(whole)["SimpleCIL"]]
    ends = [record.last for record in runs]
    assert rows["SimpleCIL"][1].startswith(
        f"{sum(r.average for r in runs) / 2:.1f} / {sum(ends) / 2:.1f} ±{abs(ends[0] - ends[1]) / 2**0.5:.1f}"
    )
    dim = runs[0].parameters.stored // 10
    assert rows["SimpleCIL"][4:6] == ["1", f"{4 * dim} B"]  # one pass, and one mean per class
    assert rows["TUNA, text"][4] == "3"  # an adapter for each of two tasks, and the fused one
    assert rows["SimpleCIL"][2] == rows["SimpleCIL"][6] == rows["TUNA, text"][7] == "-"  # no such runs
    assert rows["SimpleCIL"][7] == f"{read_runs(singly)['SimpleCIL'][0].record.last:.1f}"
    assert (out / "table.md").read_text() == printed.removesuffix("\n")
    assert (out / "glyphs.png").stat().st_size > 5000


def test_a_folder_without_runs_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["trade_off", "--glyphs", str(tmp_path), "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit, match=r"no finished run in .*: run the study bench-small first"):
        main()
    assert list(tmp_path.iterdir()) == []
