"""Commands that run methods on streams of classes, and compare the results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ease.cli import options
from ease.cli.options import executor_of, names, path_text, seed_numbers
from ease.cli.output import console, echo, print_json
from ease.errors import EaseError


def run(
    out: Annotated[Path | None, typer.Option(help="New folder for the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of these options.")] = None,
    as_json: options.Json = False,
    dataset: options.Dataset = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            help="'B<m> Inc<n>': m classes in the first task (B0: n classes), then n per task; default: B0 Inc6.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    data_root: options.DataRoot = None,
    class_order: Annotated[
        Path | None,
        typer.Option(help="File with the order of the classes.", rich_help_panel=options.DATA),
    ] = None,
    limit_per_class: options.LimitPerClass = None,
    download: Annotated[
        bool | None,
        typer.Option(
            "--download", help="Download the dataset where that is possible.", rich_help_panel=options.DATA
        ),
    ] = None,
    unreadable: Annotated[
        str | None,
        typer.Option(
            metavar="refuse|skip",
            help="Whether damaged images are an error (default) or left out.",
            rich_help_panel=options.DATA,
        ),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Method, see 'ease list methods'; default: ease.", rich_help_panel=options.SETTINGS
        ),
    ] = None,
    preset: options.Preset = None,
    sets: options.Sets = None,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Random seed; it also decides the order of the classes.", rich_help_panel=options.SETTINGS
        ),
    ] = None,
    backbone: options.Backbone = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights file of the backbone: .safetensors or .npz.", rich_help_panel=options.SETTINGS
        ),
    ] = None,
    input_size: options.InputSize = None,
    normalize: Annotated[
        str | None,
        typer.Option(
            metavar="model|none",
            help="Normalise pixels with the backbone's mean and std (default), or not.",
            rich_help_panel=options.SETTINGS,
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(metavar="cpu|cuda|mps|auto", help="Kind of device.", rich_help_panel=options.HARDWARE),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Number of devices, on each machine.", rich_help_panel=options.HARDWARE),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            help="Number of machines; start the command on each, for example with torchrun.",
            rich_help_panel=options.HARDWARE,
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            metavar="32-true|bf16-mixed|auto",
            help="What the backbone computes in; default: 32-true, so that records compare across machines.",
            rich_help_panel=options.HARDWARE,
        ),
    ] = None,
    compile: Annotated[
        bool | None,
        typer.Option(
            "--compile",
            help="Compile the training; it can make long trainings faster.",
            rich_help_panel=options.HARDWARE,
        ),
    ] = None,
    feature_memory: Annotated[
        int | None,
        typer.Option(
            metavar="MB", help="Memory for features of test images.", rich_help_panel=options.HARDWARE
        ),
    ] = None,
    image_memory: Annotated[
        int | None,
        typer.Option(metavar="MB", help="Memory for decoded images.", rich_help_panel=options.HARDWARE),
    ] = None,
) -> None:
    """Run a method on a stream of classes.

    The folder given by --out gets a record of the results, a report (HTML), the predictions and the model.
    """
    given = {
        k: v for k, v in locals().items() if k not in ("out", "resume", "preset", "config", "sets", "as_json")
    }
    from ease.config import resolve
    from ease.experiments.environment import is_first_process
    from ease.experiments.run import resume_run, start_run
    from ease.progress import Bars
    from ease.reporting.tables import comparison

    if resume is not None:
        if out is not None or sets or preset or config or any(v is not None for v in given.values()):
            raise EaseError("--resume takes all options from the run itself: give no others")
        record, folder = resume_run(resume, Bars()), resume
    else:
        if out is None:
            raise EaseError("no folder for the results: give --out DIR, or --resume DIR to continue a run")
        given = {k: str(v) if isinstance(v, Path) else v for k, v in given.items()}
        resolved, notes = resolve(
            given,
            preset=preset,
            file=config,
            sets=options.sets_beside(sets, {**given, "preset": preset}),
        )
        record, folder = start_run(resolved, out, notes, Bars()), out
    if not is_first_process():
        return  # only the first process of a distributed run prints
    if as_json:
        print_json(record.as_json())
        return
    console().print(comparison([record]).rich())
    for note in record.notes:
        echo(f"note: {note}")
    echo(
        f"wrote {folder / 'record.json'}, {folder / 'report.html'}, {folder / 'predictions.npz'}, {folder / 'model'}"
    )


def study(
    name: Annotated[str, typer.Argument(help="Name of a study, see 'ease list studies', or a YAML file.")],
    out: Annotated[Path, typer.Option(help="Folder for the runs and their comparison.")],
    methods: options.Methods = None,
    seeds: options.Seeds = None,
    jobs: options.Jobs = 1,
    ray: options.Ray = None,
    data_root: options.DataRoot = None,
    weights: options.Weights = None,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Run several methods on one stream and compare them.

    Repeat the command to continue a study that was interrupted.
    """
    from ease.experiments.plans.study import load_study, run_study
    from ease.progress import Bars

    executor = executor_of(ray, jobs)
    given = {"data_root": path_text(data_root), "weights": path_text(weights)}
    plan = load_study(name)
    numbers = seed_numbers(seeds)
    own = options.sets_beside(sets, {**given, "seed": numbers or None})
    cells = plan.cells(names(methods), numbers, given, own)
    table, written = run_study(cells, out, executor, Bars(), plan.fused)
    if as_json:
        print_json([record.as_json() for row in table.rows for record in row.series.records])
        return
    console().print(table.rich())
    echo(f"wrote {', '.join(str(path) for path in written)}")


def report(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="DIR", help="Folders of finished runs, or folders that contain such."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report and the figures.")],
    as_json: options.Json = False,
) -> None:
    """Write a report on finished runs: a table, figures and an HTML page."""
    from ease.experiments.plans.study import write_comparison
    from ease.experiments.record import find_records

    found = find_records(folders)
    records = found.records
    table, written = write_comparison(records, out)
    for folder in found.unfinished:
        echo(f"note: the run in {folder} is not finished and was left out", err=True)
    if as_json:
        print_json([record.as_json() for record in records])
        return
    console().print(table.rich())
    echo(f"wrote {', '.join(str(path) for path in written)}")


def compare(
    a: Annotated[
        Path,
        typer.Argument(metavar="A", help="Run, record file, or folder of runs with several seeds."),
    ],
    b: Annotated[Path, typer.Argument(metavar="B", help="The same, to compare with A.")],
    method: Annotated[
        str | None, typer.Option(help="Method to compare, if the folders contain several.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare two experiments: settings, results, and whether the difference is significant."""
    from ease.reporting.compare import compare as compared

    found = compared(a, b, method)
    if as_json:
        print_json(found.as_json())
        return
    console().print(found)
