"""Commands that run methods on streams, and compare what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.options import names, path_text, seed_numbers
from ease.cli.output import console, print_json
from ease.errors import EaseError


def run(
    dataset: options.Dataset = None,
    protocol: Annotated[
        str | None, typer.Option(help="B<m> Inc<n>: m classes first, then n at a time.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'ease methods'.")] = None,
    backbone: options.Backbone = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named settings; see 'ease presets'.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of these settings.")] = None,
    data_root: options.DataRoot = None,
    weights: options.Weights = None,
    input_size: options.InputSize = None,
    normalize: Annotated[str | None, typer.Option(help="model (its mean and std) or none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names every random number; shuffles the classes.")] = None,
    class_order: Annotated[Path | None, typer.Option(help="File with the order of the classes.")] = None,
    limit_per_class: options.LimitPerClass = None,
    download: Annotated[
        bool | None, typer.Option("--download", help="Fetch the dataset if it can be.")
    ] = None,
    unreadable: Annotated[str | None, typer.Option(help="Damaged images: refuse or skip.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")] = None,
    devices: Annotated[int | None, typer.Option(help="How many of them.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed.")] = None,
    compile: Annotated[
        bool | None, typer.Option("--compile", help="Compile trainings; may pay in long ones.")
    ] = None,
    feature_memory: Annotated[int | None, typer.Option(help="MB of test features held in memory.")] = None,
    image_memory: Annotated[int | None, typer.Option(help="MB of decoded images held in memory.")] = None,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Learn a stream of classes and write a record, a report and the model."""
    given = {
        k: v for k, v in locals().items() if k not in ("out", "resume", "preset", "config", "sets", "as_json")
    }
    from ease.config import resolve
    from ease.experiments.run import resume_run, start_run
    from ease.progress import Bars
    from ease.reporting.tables import comparison

    if resume is not None:
        if out is not None or sets or preset or config or any(v is not None for v in given.values()):
            raise EaseError("--resume takes its settings from the run itself: give no others")
        record, folder = resume_run(resume, Bars()), resume
    else:
        if out is None:
            raise EaseError("where should the results go? give --out DIR (or --resume DIR to continue a run)")
        given = {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}
        resolved, notes = resolve(given, preset=preset, file=config, sets=sets or [])
        record, folder = start_run(resolved, out, notes, Bars()), out
    if int(os.environ.get("LOCAL_RANK", "0")):
        return  # one process of a distributed run speaks for all
    if as_json:
        print_json(record.as_json())
        return
    console().print(comparison([record]).rich())
    for note in record.notes:
        typer.echo(f"note: {note}")
    typer.echo(
        f"wrote {folder / 'record.json'}, {folder / 'report.html'}, {folder / 'predictions.npz'}, {folder / 'model'}"
    )


def study(
    name: Annotated[
        str, typer.Argument(help="One of 'ease studies', or a YAML file with about, run and rows.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the comparison.")],
    methods: options.Methods = None,
    seeds: options.Seeds = None,
    jobs: options.Jobs = 1,
    data_root: options.DataRoot = None,
    weights: options.Weights = None,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Run many methods on one stream: one table, one plot, one page. Repeat the command to go on where it stopped."""
    from ease.experiments.plans.study import load_study, run_study
    from ease.progress import Bars

    given = {"data_root": path_text(data_root), "weights": path_text(weights)}
    plan = load_study(name)
    cells = plan.cells(names(methods), seed_numbers(seeds), given, sets or [])
    table, written = run_study(cells, out, jobs, Bars(), plan.fused)
    if as_json:
        print_json([record.as_json() for row in table.rows for record in row.series.records])
        return
    console().print(table.rich())
    typer.echo(f"wrote {', '.join(str(path) for path in written)}")


def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Finished runs, or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report and the plot.")],
    as_json: options.Json = False,
) -> None:
    """Compare finished runs: a table here, a plot and an HTML page in a folder."""
    from ease.experiments.plans.study import write_comparison
    from ease.experiments.record import find_records

    found = find_records(folders)
    records = found.records
    table, written = write_comparison(records, out)
    for folder in found.unfinished:
        typer.echo(f"note: the run in {folder} is not finished and was left out", err=True)
    if as_json:
        print_json([record.as_json() for record in records])
        return
    console().print(table.rich())
    typer.echo(f"wrote {', '.join(str(path) for path in written)}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run, a record file, or a folder of seeds.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    method: Annotated[str | None, typer.Option(help="Which one, where the folders have several.")] = None,
    as_json: options.Json = False,
) -> None:
    """Two experiments side by side: settings, results, and whether the difference could be chance."""
    from ease.reporting.compare import compare as compared

    found = compared(a, b, method)
    if as_json:
        print_json(found.as_json())
        return
    console().print(found)
