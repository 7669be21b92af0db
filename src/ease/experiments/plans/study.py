"""A study: methods side by side on one stream, as a data file -> one table, one plot, one report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, model_validator

from ease.config import read_yaml, resolve, sets_for, validated
from ease.errors import unknown
from ease.experiments.executors import Executor
from ease.experiments.fusion import Fusion
from ease.experiments.grid import Cell, Grid, same_subspaces
from ease.experiments.plans.rows import MethodRow, PlanDocument, chosen
from ease.experiments.record import RECORD, RecordFile, RunRecord
from ease.progress import Progress
from ease.reporting.figures import accuracy_curves, save
from ease.reporting.report import write_report
from ease.reporting.tables import ComparisonTable, comparison
from ease.storage.files import made_folder, write_all

_PLANS = files("ease.experiments.plans") / "studies"


class Study(PlanDocument):
    """What to run: values for all rows, the rows, and sums of their scores that need no run of their own."""

    about: str
    run: dict[str, Any] = Field(default_factory=dict)
    rows: list[MethodRow] = Field(min_length=1)
    fused: list[Fusion] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fuses_its_own_rows(self) -> Study:
        known = {row.label for row in self.rows}
        for fusion in self.fused:
            for label in fusion.of:
                if label not in known:
                    raise ValueError(f"'{label}' is the label of no row")
        return self

    def cells(
        self,
        methods: Sequence[str] = (),
        seeds: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
        sets: Sequence[str] = (),
    ) -> list[Cell]:
        """Every row for every seed.

        Args:
            methods: only these; all of them if empty.
            seeds: the configuration's own if empty.
            options: values that win over the study's; None means not given.
            sets: `key=value` settings that win over everything, for the methods that have them.
        """
        rows = chosen(self.rows, methods, "study")
        own = sets_for([row.method for row in rows], sets)
        cells = []
        for row in rows:
            for seed in seeds or (None,):
                given = [self.run, options or {}, {"seed": seed}, row.set, {"method": row.method}]
                merged = {k: v for part in given for k, v in part.items() if v is not None}
                config, notes = resolve(merged, sets=own[row.method])
                shares = same_subspaces(config)
                cells.append(
                    Cell(config, notes, shares=shares, timed=True, minutes=row.minutes, label=row.label)
                )
        return cells


def study_list() -> dict[str, str]:
    """The studies that come with the package, with one line each."""
    return {name: load_study(name).about for name in _names()}


def _names() -> list[str]:
    plans = (plan.name for plan in _PLANS.iterdir())
    return sorted(name.removesuffix(".yaml") for name in plans if name.endswith(".yaml"))


def load_study(name: str) -> Study:
    """A study by name, or from a YAML file of your own."""
    if name.endswith((".yaml", ".yml")):
        return validated(Study, read_yaml(Path(name), "study"), f"study {name}")
    if name not in _names():
        raise unknown("study", name, _names())
    plan = _PLANS / f"{name}.yaml"
    return validated(Study, yaml.safe_load(plan.read_text(encoding="utf-8")), f"study {name}")


def run_study(
    cells: Sequence[Cell],
    out: Path,
    executor: Executor | None = None,
    progress: Progress | None = None,
    fused: Sequence[Fusion] = (),
) -> tuple[ComparisonTable, list[Path]]:
    """Finish every cell and write the comparison. A second call continues where the first was interrupted."""
    grid = Grid(out)
    grid.run(sorted(cells, key=lambda cell: -cell.minutes), executor, progress)
    runs = [
        RecordFile(grid.path(cell) / RECORD, record.labelled(cell.label))
        for cell in cells
        if (record := grid.record(cell)) is not None
    ]
    records = [run.record for run in runs]
    return write_comparison([*records, *(r for fusion in fused for r in fusion.records(runs))], out)


def write_comparison(records: Sequence[RunRecord], out: Path) -> tuple[ComparisonTable, list[Path]]:
    """Table (Markdown, CSV, LaTeX), plot and page of these records in a folder."""
    table = comparison(records)
    texts = {"md": table.markdown(), "csv": table.csv(), "tex": table.latex()}
    with made_folder(out):
        written = [write_report(list(records), out / "report.html")]
        written += save(accuracy_curves(records), out / "accuracy")
        written += write_all(out, {f"table.{ending}": text.encode() for ending, text in texts.items()})
    return table, written
