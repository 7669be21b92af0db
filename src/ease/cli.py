"""The `ease` command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ease import __version__
from ease.errors import EaseError

# Heavy imports (torch, timm) live inside the commands: help and completion must answer at once.

app = typer.Typer(
    name="ease",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Class-incremental learning with a frozen ViT: one light adapter per task, no old image kept.

    Start with:  ease run --dataset digits --protocol "B0 Inc2" --out runs/first

    Then look at runs/first/report.html. What can be named: ease methods, ease datasets, ease backbones,
    ease presets. A run that was stopped continues with: ease run --resume runs/first
    """,
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; repeatable.")
]
Weights = Annotated[Path | None, typer.Option(help="Local weights: .safetensors, .npz or .pth.")]


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and leave.")] = False,
) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


@app.command()
def run(
    dataset: Annotated[str | None, typer.Option(help="See 'ease datasets'.")] = None,
    protocol: Annotated[
        str | None, typer.Option(help="B<m> Inc<n>: m classes first, then n at a time.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="See 'ease methods'.")] = None,
    backbone: Annotated[str | None, typer.Option(help="See 'ease backbones'.")] = None,
    out: Annotated[Path | None, typer.Option(help="New folder for the results.")] = None,
    resume: Annotated[Path | None, typer.Option(help="Continue the run in this folder.")] = None,
    preset: Annotated[str | None, typer.Option(help="Named settings; see 'ease presets'.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with any of these settings.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="The dataset's folder.")] = None,
    weights: Weights = None,
    input_size: Annotated[int | None, typer.Option(help="Side length of the input in pixels.")] = None,
    normalize: Annotated[str | None, typer.Option(help="model (its mean and std) or none.")] = None,
    seed: Annotated[int | None, typer.Option(help="Names every random number; shuffles the classes.")] = None,
    class_order: Annotated[Path | None, typer.Option(help="File with the order of the classes.")] = None,
    limit_per_class: Annotated[int | None, typer.Option(help="Use only so many images of a class.")] = None,
    download: Annotated[
        bool | None, typer.Option("--download", help="Fetch the dataset if it can be.")
    ] = None,
    unreadable: Annotated[str | None, typer.Option(help="Damaged images: refuse or skip.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto.")] = None,
    devices: Annotated[int | None, typer.Option(help="How many of them.")] = None,
    precision: Annotated[str | None, typer.Option(help="32-true or bf16-mixed.")] = None,
    feature_memory: Annotated[int | None, typer.Option(help="MB of test features held in memory.")] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Learn a stream of classes and write a record, a report and the model."""
    given = {
        k: v for k, v in locals().items() if k not in ("out", "resume", "preset", "config", "sets", "as_json")
    }
    from ease.config import resolve
    from ease.engine.progress import Bars
    from ease.studies.run import resume_run, start_run
    from ease.studies.tables import comparison

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
        _print_json(record)
        return
    _console().print(comparison([record]).rich())
    for note in record["notes"]:
        typer.echo(f"note: {note}")
    typer.echo(
        f"wrote {folder / 'record.json'}, {folder / 'report.html'}, {folder / 'predictions.npz'}, {folder / 'model'}"
    )


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Finished runs, or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report and the plot.")],
    as_json: Json = False,
) -> None:
    """Compare finished runs: a table here, a plot and an HTML page in a folder."""
    from ease.engine.files import make_folder, write_atomic
    from ease.studies.plots import accuracy_curves, save
    from ease.studies.records import find_records
    from ease.studies.report import write_report
    from ease.studies.tables import comparison

    found = find_records(folders)
    records = found.records
    make_folder(out)
    plots = save(accuracy_curves(records), out / "accuracy")
    page = write_report(records, out / "report.html")
    table = comparison(records)
    write_atomic(out / "table.md", table.markdown().encode())
    write_atomic(out / "table.csv", table.csv().encode())
    for folder in found.unfinished:
        typer.echo(f"note: the run in {folder} is not finished and was left out", err=True)
    if as_json:
        _print_json(records)
        return
    _console().print(table.rich())
    typer.echo(
        f"wrote {', '.join(str(path) for path in [page, *plots, out / 'table.md', out / 'table.csv'])}"
    )


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run, a record file, or a folder of seeds.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What to compare it with.")],
    as_json: Json = False,
) -> None:
    """Two experiments side by side: settings, results, and whether the difference could be chance."""
    from ease.studies.compare import compare as compared

    found = compared(a, b)
    if as_json:
        _print_json(found.as_json())
        return
    _console().print(found)


@app.command("eval")
def evaluate(
    model: Annotated[Path, typer.Option(help="Model directory.")],
    dataset: Annotated[str, typer.Option(help="See 'ease datasets'.")],
    data_root: Annotated[Path | None, typer.Option(help="The dataset's folder.")] = None,
    weights: Weights = None,
    limit_per_class: Annotated[int | None, typer.Option(help="Use only so many images of a class.")] = None,
    as_json: Json = False,
) -> None:
    """Score a saved model on the test images of a dataset."""
    from ease.studies.evaluate import evaluate_model

    found = evaluate_model(model, dataset, data_root, weights, limit_per_class)
    if as_json:
        _print_json(found)
        return
    images = f"{found['count']} images, {found['classes']} classes"
    typer.echo(f"{found['accuracy']:.2f} % of {images} (top-5 {found['top5']:.2f} %)")
    tasks = "  ".join(f"{a:.1f}" if a is not None else "-" for a in found["per_task"])
    typer.echo(f"by task: {tasks}")
    for note in found["notes"]:
        typer.echo(f"note: {note}")


@app.command()
def info(
    model: Annotated[Path, typer.Argument(help="Model directory, or a run's folder.")], as_json: Json = False
) -> None:
    """What a saved model is: method, backbone, classes by task, size on disk."""
    from ease.studies.describe import describe_model

    found = describe_model(model)
    if as_json:
        _print_json(found)
        return
    typer.echo(
        f"{found['method']} on {found['backbone']}, generation {found['generation']}, {len(found['classes'])} classes"
    )
    for task, names in enumerate(found["tasks"], start=1):
        typer.echo(f"task {task}: {', '.join(names)}")
    typer.echo(
        f"{found['bytes'] / 2**20:.2f} MB in {found['files']} files, {found['passes_per_image']} passes per image"
    )


@app.command()
def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Golden .npz files.")],
    train: Annotated[
        bool, typer.Option("--train", help="Replay training too, from the initial adapters.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Replay runs of the authors' code and print the largest differences; exits with 1 above 1e-5."""
    from dataclasses import asdict

    from rich.table import Table

    from ease.studies.verify import verify_file

    found = [verify_file(path, train) for path in files if path.name != "common.npz"]
    if not found:
        raise EaseError("nothing to verify: name golden files other than common.npz")
    if as_json:
        _print_json([{**asdict(one), "within": one.within()} for one in found])
    else:
        table = Table("file", "stages", "prototypes", "logits", "argmax differs", "adapters", "")
        for one in found:
            adapters = "-" if one.adapters is None else f"{one.adapters:.1e}"
            verdict = "agrees" if one.within() else "[bold red]DIFFERS[/]"
            cells = [
                one.file,
                str(one.stages),
                f"{one.prototypes:.1e}",
                f"{one.logits:.1e}",
                str(one.argmax),
                adapters,
            ]
            table.add_row(*cells, verdict)
        _console().print(table)
    if not all(one.within() for one in found):
        raise typer.Exit(1)


@app.command()
def methods(as_json: Json = False) -> None:
    """List the methods, those of other packages too."""
    from ease.methods.registry import faults
    from ease.methods.registry import methods as known

    rows = [
        {"name": name, "kind": learner.kind, "tuning": learner.tuning, "idea": learner.idea}
        for name, learner in known().items()
    ]
    _list(rows, as_json)
    for line in faults().values():
        typer.echo(f"note: {line}", err=True)


@app.command()
def datasets(as_json: Json = False) -> None:
    """List the datasets."""
    from ease.streams.datasets import dataset_list

    _list([{"name": name, "about": about} for name, about in dataset_list().items()], as_json)


@app.command()
def backbones(as_json: Json = False) -> None:
    """List backbones worth knowing; any plain timm ViT works by its name."""
    from ease.backbone.zoo import backbone_list

    _list([{"name": name, "about": about} for name, about in backbone_list().items()], as_json)


@app.command()
def presets(as_json: Json = False) -> None:
    """List the presets."""
    from ease.presets import preset_list

    _list([{"name": name, "about": about} for name, about in preset_list().items()], as_json)


def _list(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        _print_json(rows)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    *short, last = rows[0]
    for title in short:
        table.add_column(title, no_wrap=True)  # what people copy stays whole
    table.add_column(last)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))  # brackets are no markup
    _console().print(table)


def _console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    # In a pipe rich would fold tables at 80 columns and break them.
    return console if console.is_terminal else Console(highlight=False, width=200)


INTERRUPTED = 130


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def main() -> None:
    """The console script: errors as one line, exit code 2, no traceback unless --debug."""
    debug = "--debug" in sys.argv
    try:
        code = int(app(standalone_mode=False) or 0)
        if code == INTERRUPTED:  # typer has caught Ctrl-C itself
            raise KeyboardInterrupt
        sys.exit(code)
    except EaseError as error:
        if debug:
            raise
        _fail(f"error: {error}")
    except KeyboardInterrupt:
        _fail("interrupted: a run continues with 'ease run --resume DIR'", INTERRUPTED)
    except Exception as error:
        if type(error).__name__ == "Abort":  # how older versions of typer tell of Ctrl-C
            _fail("interrupted: a run continues with 'ease run --resume DIR'", INTERRUPTED)
        # Usage errors of the option parser carry their own message.
        message = getattr(error, "format_message", None)
        if debug or message is None:
            raise
        _fail(f"error: {' '.join(message().split())} (see --help)")


def _fail(line: str, code: int = 2) -> None:
    print(line, file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
