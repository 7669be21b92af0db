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

datasets_app = typer.Typer(invoke_without_command=True)
app.add_typer(datasets_app, name="datasets")

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
def study(
    name: Annotated[
        str, typer.Argument(help="One of 'ease studies', or a YAML file with about, run and rows.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the runs and the comparison.")],
    methods: Annotated[
        str | None, typer.Option(help="Only these, separated by commas.", metavar="A,B,...")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Separated by commas.", metavar="N,N,...")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")] = 1,
    data_root: Annotated[Path | None, typer.Option(help="The dataset's folder.")] = None,
    weights: Weights = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Run many methods on one stream: one table, one plot, one page. Repeat the command to go on where it stopped."""
    from ease.engine.progress import Bars
    from ease.studies.study import load_study, run_study

    options = {"data_root": _text(data_root), "weights": _text(weights)}
    cells = load_study(name).cells(_parts(methods), _numbers(seeds), options, sets or [])
    table, written = run_study(cells, out, jobs, Bars())
    if as_json:
        _print_json([record for row in table.rows for record in row.series.records])
        return
    _console().print(table.rich())
    typer.echo(f"wrote {', '.join(str(path) for path in written)}")


@app.command()
def paper(
    name: Annotated[str, typer.Argument(help="An exhibit, 'all' of them, or 'list'.")],
    scale: Annotated[str, typer.Option(help="full, small or tiny; see 'ease paper list'.")] = "tiny",
    out: Annotated[
        Path | None, typer.Option(help="Folder for runs and exhibits; runs/paper-SCALE if left out.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Only these, separated by commas.", metavar="A,B,...")
    ] = None,
    seeds: Annotated[str | None, typer.Option(help="Separated by commas.", metavar="N,N,...")] = None,
    shard: Annotated[
        str, typer.Option(help="i/n: do the i-th of n shares of the work.", metavar="I/N")
    ] = "1/1",
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")] = 1,
    dataset: Annotated[str | None, typer.Option(help="Only this dataset; the one of scale small.")] = None,
    protocol: Annotated[str | None, typer.Option(help="Another split of that dataset.")] = None,
    data_root: Annotated[Path | None, typer.Option(help="The dataset's folder.")] = None,
    backbone: Annotated[str | None, typer.Option(help="Another backbone.")] = None,
    weights: Weights = None,
    input_size: Annotated[int | None, typer.Option(help="Side length of the input in pixels.")] = None,
    limit_per_class: Annotated[int | None, typer.Option(help="Use only so many images of a class.")] = None,
    preset: Annotated[str | None, typer.Option(help="Other settings; see 'ease presets'.")] = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper. Repeat the command to go on where it stopped."""
    options = {
        "dataset": dataset,
        "protocol": protocol,
        "data_root": _text(data_root),
        "backbone": backbone,
        "weights": _text(weights),
        "input_size": input_size,
        "limit_per_class": limit_per_class,
        "preset": preset,
    }
    from ease.engine.progress import Bars
    from ease.studies.exhibit import Reproduction
    from ease.studies.paper import check_scale, exhibits, find_exhibit, scales, squares

    if name == "list":
        rows = [{"name": n, "paper": e.paper, "what": e.title} for n, e in exhibits().items()]
        _list(rows, as_json)
        if not as_json:
            typer.echo("")
            _list([{"scale": scale, "what": about} for scale, about in scales().items()], False)
        return
    wanted = exhibits() if name == "all" else {name: find_exhibit(name)}
    size = check_scale(scale)
    work = Reproduction(
        {
            each: squares(
                exhibit,
                size,
                methods=_parts(methods),
                seeds=_numbers(seeds),
                options=options,
                sets=sets or [],
            )
            for each, exhibit in wanted.items()
        },
        out or Path("runs") / f"paper-{size}",
    )
    told = {}
    for drawn in work.run(jobs, _share(shard), Bars()):
        told[drawn.name] = drawn.records
        if not as_json:
            typer.echo(f"{drawn.exhibit.paper}: {drawn.exhibit.title}")
            _console().print(drawn.table)
            typer.echo(f"wrote {', '.join(str(path) for path in drawn.written)}")
    if as_json:
        _print_json(told)
    if work.failure is not None:
        raise work.failure


@app.command()
def report(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Finished runs, or folders that hold several.")
    ],
    out: Annotated[Path, typer.Option(help="Folder for the report and the plot.")],
    as_json: Json = False,
) -> None:
    """Compare finished runs: a table here, a plot and an HTML page in a folder."""
    from ease.studies.records import find_records
    from ease.studies.study import write_comparison

    found = find_records(folders)
    records = found.records
    table, written = write_comparison(records, out)
    for folder in found.unfinished:
        typer.echo(f"note: the run in {folder} is not finished and was left out", err=True)
    if as_json:
        _print_json(records)
        return
    _console().print(table.rich())
    typer.echo(f"wrote {', '.join(str(path) for path in written)}")


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


@datasets_app.callback()
def datasets(context: typer.Context, as_json: Json = False) -> None:
    """List the datasets, or check one."""
    if context.invoked_subcommand is not None:
        return
    from ease.streams.datasets import dataset_list

    _list([{"name": name, "about": about} for name, about in dataset_list().items()], as_json)


@datasets_app.command()
def check(
    name: Annotated[str, typer.Argument(help="See 'ease datasets'.")],
    data_root: Annotated[Path | None, typer.Option(help="The dataset's folder.")] = None,
    archive: Annotated[
        Path | None, typer.Option(help="Compare this file with the published MD5; alone, only that.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Look for damage, duplicates and missing images; exits with 1 if the data is damaged."""
    from ease.engine.progress import Bars
    from ease.streams.datasets.check import check_dataset

    found = check_dataset(name, data_root, archive, Bars().bar)
    if as_json:
        _print_json(found.as_json())
    else:
        for line in found.lines():
            typer.echo(line)
    if not found.good:
        raise typer.Exit(1)


@app.command()
def backbones(as_json: Json = False) -> None:
    """List backbones worth knowing; any plain timm ViT works by its name."""
    from ease.backbone.zoo import backbone_list

    _list([{"name": name, "about": about} for name, about in backbone_list().items()], as_json)


@app.command()
def studies(as_json: Json = False) -> None:
    """List the studies."""
    from ease.studies.study import study_list

    _list([{"name": name, "about": about} for name, about in study_list().items()], as_json)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(help="List the named rows of this preset.")] = None,
    as_json: Json = False,
) -> None:
    """List the presets; with a name, its rows: 'ease run --preset released/ROW' needs no other setting."""
    from ease.presets import preset_list, preset_rows

    about = preset_list()
    rows = {key: preset_rows(key) for key in (about if name is None else [name])}
    named = [{"name": row, **place} for own in rows.values() for row, place in own.items()]
    if name is not None and named:
        _list(named, as_json)
    elif name is not None:
        _list([{"name": name, "about": about[name]}], as_json)
        typer.echo(f"note: preset '{name}' has no named rows: it serves every dataset", err=True)
    elif as_json:
        _print_json([{"name": key, "about": line} for key, line in about.items()] + named)
    else:
        listed = {
            key: f"{line} ({len(rows[key])} rows)" if rows[key] else line for key, line in about.items()
        }
        _list([{"name": key, "about": line} for key, line in listed.items()], as_json)
        typer.echo("rows of a preset: ease presets NAME", err=True)


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


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _parts(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _share(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise EaseError(f"'--shard {text}' is not i/n with i from 1 to n: write for instance --shard 1/4")
    return int(number), int(count)


def _numbers(text: str | None) -> list[int]:
    parts = _parts(text)
    for part in parts:
        if not part.isdecimal():
            raise EaseError(f"'{part}' is no seed: give whole numbers, such as --seeds 1993,1994")
    return [int(part) for part in parts]


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
