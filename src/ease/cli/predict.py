"""The command that names what photos show: single ones on the terminal, millions into a file."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ease.cli import options
from ease.cli.output import echo
from ease.errors import EaseError, showable
from ease.filesystem import what_is

if TYPE_CHECKING:
    from ease.app.bulk import Input
    from ease.app.classifier import Classifier
    from ease.app.prediction import Prediction

SOME_FAILED = 1
"""The exit code where all went well but some images could not be used; their rows say why."""

MOST_EXPLAINED = 1000
"""Photos that --explain takes at a time: each takes many passes, and all are shown on one page."""

INPUTS = "Inputs"
STDIN = "-"


def predict(
    model: options.ModelDirectory,
    images: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="IMAGE|FOLDER|GLOB|VIDEO|-",
            help="Photos, folders, patterns such as 'photos/**/*.jpg', videos with --every; - reads a list of paths.",
        ),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="Table with a column of paths (.csv, .tsv, .jsonl, .parquet), list of paths (.txt), COCO .json, .tar "
            "shards, saved dataset, or a pattern.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            help="Column of paths or images, where it is not recognised by its name.", rich_help_panel=INPUTS
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder that relative paths in the table begin at; default: the folder of the table.",
            rich_help_panel=INPUTS,
        ),
    ] = None,
    nul: Annotated[
        bool,
        typer.Option(
            "--null",
            "-0",
            help="Paths of the list end with NUL, as of 'find -print0'.",
            rich_help_panel=INPUTS,
        ),
    ] = False,
    every: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Look at each N-th frame of videos.", rich_help_panel=INPUTS),
    ] = None,
    allow_urls: Annotated[
        bool,
        typer.Option(
            "--allow-urls", help="Fetch http and https addresses in lists and tables.", rich_help_panel=INPUTS
        ),
    ] = False,
    allow_private_urls: Annotated[
        bool,
        typer.Option(
            "--allow-private-urls",
            help="Fetch addresses of private networks and of this machine, too.",
            rich_help_panel=INPUTS,
        ),
    ] = False,
    unreadable: Annotated[
        str | None,
        typer.Option(
            metavar="refuse|skip",
            help="Whether an image that cannot be used ends the command or gets a row with an error; "
            "default: refuse for a single photo, otherwise skip.",
        ),
    ] = None,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of classes to name for each photo.")
    ] = 5,
    budget: options.Budget = None,
    weights: options.Weights = None,
    precision: options.Precision = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write one row per photo to a new .csv, .jsonl or .parquet; a killed command can be repeated.",
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Write one row per photo into the parts of a folder, for any number of photos; needs --from. "
            "A killed command can be repeated.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="parquet|jsonl|csv", help="Format of the parts of --to; default: parquet."
        ),
    ] = None,
    ray: options.Ray = None,
    as_json: options.Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the result as CSV, one line per photo and class.")
    ] = False,
    collect_unsure: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="N",
            help="Keep photos that the model is unsure of in its inbox, at most N per day.",
        ),
    ] = 0,
    why: Annotated[
        Path | None,
        typer.Option(
            "--explain",
            metavar="DIR",
            help="Write a page into this folder that shows which parts of each photo spoke for the answer.",
        ),
    ] = None,
) -> None:
    """Name what photos show, with confidences.

    A photo that is like none of the classes is marked as unknown. The exit code is 1 if some photos could not be used.
    """
    from ease.app.bulk import listed_inputs, place_inputs, predict_stream, source_inputs
    from ease.app.classifier import Classifier
    from ease.storage.files import check_folder_place

    if why is not None:
        check_folder_place(why)
    if sum((as_json, as_csv, out is not None, to is not None)) > 1:
        raise EaseError("--json, --csv, --out and --to exclude each other: choose one")
    if to is None and (ray is not None or kind is not None):
        raise EaseError(
            f"--{'ray' if ray is not None else 'format'} needs a folder for the rows: give --to DIR"
        )
    named = images or []
    if (table is None) == (not named):
        raise EaseError("say what to look at: photos, folders, a list with -, or a table with --from")
    _refuse_options_without_use(named, table, column, root, nul, allow_urls or allow_private_urls)
    urls = options.allowed_urls(allow_urls, allow_private_urls)
    computes_in = options.asked_precision(precision)
    if to is not None:
        if table is None or collect_unsure or why is not None or every or unreadable == "refuse":
            raise EaseError(
                "--to takes its photos from --from, and every photo gets a row: leave out photos, --every, --explain, "
                "--collect-unsure and --unreadable refuse"
            )
        source = partial(source_inputs, table, root=root, column=column, allow_urls=urls)
        given = " ".join(str(part) for part in (table, root or "", column or "", urls))
        _write_folder(
            model,
            source,
            to,
            given,
            kind or "parquet",
            top,
            ray,
            budget=budget,
            weights=weights,
            precision=computes_in,
        )
        return
    inputs: Iterator[Input]
    if table is not None:
        inputs = source_inputs(table, root=root, column=column, every=every, allow_urls=urls)
    elif STDIN in named:
        if len(named) > 1:
            raise EaseError("'-' stands for all images: put the others into the list")
        inputs = listed_inputs(sys.stdin.buffer, nul=nul, every=every, allow_urls=urls)
    else:
        inputs = place_inputs(named, every)
    one_file = len(named) == 1 and what_is(named[0]) not in ("folder", "missing")
    single = one_file and every is None and not named[0].lower().endswith(".tar")
    damaged = options.refuse_or_skip(unreadable or ("refuse" if single else "skip"))
    classifier = Classifier.open(model, weights, budget=budget, precision=computes_in)
    if out is not None:
        if collect_unsure or why is not None:
            name = "--collect-unsure" if collect_unsure else "--explain"
            raise EaseError(f"{name} is for photos that are shown: leave --out out")
        _write(classifier, inputs, out, top, budget, damaged)
        return
    seen: list[Input] = []
    if why is not None:
        inputs = _noted(inputs, seen)
    found = predict_stream(classifier, inputs, top, damaged, collect_unsure=collect_unsure)
    errors, rows, first = _show(classifier, found, _printer(as_json, as_csv))
    if why is not None:
        _explain(classifier, seen, why)
    _end(errors, rows, first)


def _refuse_options_without_use(
    named: list[str], table: Path | None, column: str | None, root: Path | None, nul: bool, urls: bool
) -> None:
    if table is None and (column is not None or root is not None):
        raise EaseError(
            f"--{'column' if column is not None else 'root'} belongs to a table: give one with --from"
        )
    if nul and STDIN not in named:
        raise EaseError("--null belongs to a list: give '-' and pipe the list into the command")
    if urls and table is None and STDIN not in named:
        raise EaseError("--allow-urls belongs to a list or a table of addresses: give '-' or --from")


def _write(
    classifier: Classifier,
    inputs: Iterator[Input],
    out: Path,
    top: int,
    budget: int | None,
    damaged: options.RefuseOrSkip,
) -> None:
    from ease.app.bulk import predict_to_file
    from ease.progress import Bars

    try:
        done = predict_to_file(
            classifier, inputs, out, top_k=top, budget=budget, unreadable=damaged, progress=Bars()
        )
    except KeyboardInterrupt:
        echo(f"the same command continues where this one was interrupted ({out}.parts)", err=True)
        raise
    continued = f", {done.continued:,} of them by an earlier command" if done.continued else ""
    echo(f"wrote {done.rows:,} rows to {done.path}{continued}")
    _end(done.errors, done.rows, done.first_error)


def _write_folder(
    model: Path,
    source: Callable[[], Iterator[Input]],
    to: Path,
    given: str,
    kind: str,
    top: int,
    ray: str | None,
    **how: Any,
) -> None:
    from ease.app.bulk import predict_to_folder
    from ease.progress import Bars

    executor, bars = None, Bars()
    if ray is not None:
        from ease.app.bulk.cluster import OnRay
        from ease.cluster import import_ray

        import_ray()
        executor = OnRay(ray, progress=bars)
    try:
        done = predict_to_folder(
            model,
            source,
            to,
            source=given,
            kind=kind,
            top_k=top,
            executor=executor,
            progress=bars,
            **how,
        )
    except KeyboardInterrupt:
        echo(f"the same command continues where this one was interrupted ({to})", err=True)
        raise
    continued = f", {done.continued:,} of them by an earlier command" if done.continued else ""
    speed = f" ({done.images_per_second:.1f} images/s)" if done.seconds else ""
    echo(f"wrote {done.rows:,} rows to {done.path}{continued}{speed}")
    _end(done.errors, done.rows, "")


Print = Callable[["Classifier", "Iterator[Prediction]"], None]


def _printer(as_json: bool, as_csv: bool) -> Print:
    return _print_json if as_json else _print_csv if as_csv else _print_text


def _noted(inputs: Iterator[Input], seen: list[Input]) -> Iterator[Input]:
    """The same inputs, which are also put into a list to be explained."""
    for each in inputs:
        if len(seen) >= MOST_EXPLAINED:
            raise EaseError(f"--explain is for at most {MOST_EXPLAINED} photos: give fewer")
        seen.append(each)
        yield each


def _explain(classifier: Classifier, inputs: list[Input], folder: Path) -> None:
    """Write explanations of photos into a folder."""
    from ease.app.explain_page import Explained, write_explanations
    from ease.progress import Bars
    from ease.streams.intake.decode import load_content

    explained = []
    with Bars().bar("explaining", len(inputs)) as advance:
        for each in inputs:
            if not isinstance(each.content, EaseError):
                with contextlib.suppress(EaseError):  # its row says why it cannot be used
                    photo = load_content(each.content, each.name)
                    explained.append(Explained(showable(each.name), photo, classifier.explain(photo)))
            advance(1)
    if explained:
        page, *_ = write_explanations(explained, folder)
        echo(f"wrote {page}, and a picture for each photo", err=True)


def _show(classifier: Classifier, predictions: Iterator[Prediction], show: Print) -> tuple[int, int, str]:
    """Print predictions as they come; returns the number of errors and of rows, and the first error."""
    rows = errors = 0
    first = ""

    def counted() -> Iterator[Prediction]:
        nonlocal rows, errors, first
        for one in predictions:
            rows += 1
            errors += one.error is not None
            first = first or one.error or ""
            yield one

    found = counted()
    begin = next(found, None)  # an error before the first prediction leaves nothing half-printed
    show(classifier, chain([begin] if begin is not None else [], found))
    return errors, rows, first


def _end(errors: int, rows: int, first: str) -> None:
    if not rows:
        echo("note: the list is empty: there was no image to look at", err=True)
    if errors:
        some = f" ({first})" if first else ""
        echo(f"{errors:,} of {rows:,} images could not be used{some}", err=True)
        raise typer.Exit(SOME_FAILED)


def _print_text(classifier: Classifier, predictions: Iterator[Prediction]) -> None:
    for one in predictions:
        if one.error is not None:
            echo(f"{showable(str(one.file))}: error: {one.error}")
            continue
        classes = ", ".join(f"{each.name} {100 * each.confidence:.1f} %" for each in one.classes)
        named = " (named by a person)" if one.corrected else ""
        echo(f"{showable(str(one.file))}: {'unknown? ' if one.is_unknown else ''}{classes}{named}")
    if not classifier.calibration.calibrated:
        echo("note: confidences are not calibrated: no class had enough images for that", err=True)


def _print_json(classifier: Classifier, predictions: Iterator[Prediction]) -> None:
    """One document, printed piece by piece: `Predictions`, in the form that `print_json` has."""
    import json

    from ease.app.prediction import Predictions

    empty = Predictions(
        generation=classifier.generation, calibrated=classifier.calibration.calibrated, predictions=()
    )
    head, _, tail = json.dumps(empty.model_dump(mode="json"), indent=1).partition("[]")
    echo(f"{head}[", nl=False)
    between = "\n"
    for one in predictions:
        text = json.dumps(one.model_dump(mode="json"), indent=1)
        echo(between + "\n".join(f"  {line}" for line in text.splitlines()), nl=False)
        between = ",\n"
    echo(("" if between == "\n" else "\n ") + f"]{tail}")


def _print_csv(classifier: Classifier, predictions: Iterator[Prediction]) -> None:
    from ease.app.bulk.formats import csv_flag, csv_number
    from ease.reporting.tabular import csv_text

    heads = ["file", "rank", "class", "confidence", "unknown", "threshold", "is_unknown", "error"]
    echo(csv_text(heads, []), nl=False)
    for one in predictions:
        rest = [csv_number(one.unknown), csv_number(one.threshold), csv_flag(one.is_unknown), one.error or ""]
        lines: list[list[object]] = [
            [one.file, rank, each.name, csv_number(each.confidence), *rest]
            for rank, each in enumerate(one.classes, start=1)
        ]
        echo(csv_text(heads, lines or [[one.file, "", "", "", *rest]]).partition("\n")[2], nl=False)
