"""Commands on a saved model, and the check against the outputs of the authors' code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ease.cli import asking, options
from ease.cli.output import console, echo, print_json
from ease.errors import EaseError


def evaluate(
    model: options.ModelDirectory,
    source: options.Photos = None,
    labels: options.Labels = None,
    root: options.Root = None,
    columns: options.Columns = None,
    allow_urls: options.AllowUrls = False,
    allow_private_urls: options.AllowPrivateUrls = False,
    dataset: options.Dataset = None,
    data_root: options.DataRoot = None,
    weights: options.Weights = None,
    limit_per_class: options.LimitPerClass = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for an HTML page that shows mistakes of the worst classes.")
    ] = None,
    unreadable: options.Unreadable = "refuse",
    budget: options.Budget = None,
    as_json: options.Json = False,
) -> None:
    """Evaluate a model on photos, which may have any shape that `ease learn` takes, or on a dataset's test images."""
    photos: dict[str, Any] = {
        "source": source,
        "labels": labels,
        "root": root,
        "columns": options.names(columns) or None,
        "allow_urls": options.allowed_urls(allow_urls, allow_private_urls),
    }
    if not any(photos.values()) == (dataset is None):
        raise EaseError(
            "nothing to evaluate on: give a folder of photos with one folder per class, or --dataset NAME"
        )
    if dataset is None:
        if data_root is not None or limit_per_class is not None:
            raise EaseError("--data-root and --limit-per-class belong to --dataset, not to a folder")
        photos["unreadable"] = options.refuse_or_skip(unreadable)
        _evaluate_photos(model, photos, weights, out, budget, as_json)
        return
    if out is not None:
        raise EaseError("--out belongs to a folder of photos; for datasets see 'ease run' and 'ease report'")
    from ease.experiments.predictor import evaluate_model
    from ease.progress import Bars

    found = evaluate_model(model, str(dataset), data_root, weights, limit_per_class, budget, Bars())
    if as_json:
        print_json(found)
        return
    images = f"{found['count']} images, {found['classes']} classes"
    echo(f"{found['accuracy']:.2f} % of {images} (top-5 {found['top5']:.2f} %)")
    tasks = "  ".join(f"{a:.1f}" if a is not None else "-" for a in found["per_task"])
    echo(f"by task: {tasks}")
    for note in found["notes"]:
        echo(f"note: {note}")


def _evaluate_photos(
    model: Path,
    given: dict[str, Any],
    weights: Path | None,
    out: Path | None,
    budget: int | None,
    as_json: bool,
) -> None:
    from ease.app.classifier import Classifier
    from ease.app.evaluation import evaluate_folder, write_evaluation
    from ease.progress import Bars
    from ease.storage.files import check_folder_place

    if out is not None:
        check_folder_place(out)

    classifier = Classifier.open(model, weights, budget=budget)
    found, photos = evaluate_folder(classifier, given.pop("source"), progress=Bars(), **given)
    written = [] if out is None else write_evaluation(found, photos, out)
    if as_json:
        print_json(found.as_json())
        return
    echo(
        f"{found.accuracy:.2f} % of {found.images} images, {len(found.names)} classes (top-5 {found.top5:.2f} %)"
    )
    calibrated = "not calibrated" if found.ece_after is None else f"{found.ece_after:.1f} % after"
    echo(f"calibration error (ECE): {found.ece_before:.1f} % before calibration, {calibrated}")
    if found.accepted is not None:
        echo(f"images of known classes taken as known: {found.accepted:.1f} %")
    if found.auroc is not None:
        unknown_classes = ", ".join(found.unknown_classes)
        echo(
            f"images of unknown classes ({unknown_classes}) taken as unknown: {found.rejected:.1f} %, "
            f"AUROC {found.auroc:.3f}"
        )
    worst = [f"{name} {rate:.0f} %" for name, rate in list(found.by_class().items())[:5] if rate < 100]
    if worst:
        echo(f"worst classes: {', '.join(worst)}")
    for name, other, count in found.confusions(5):
        echo(f"  {name} taken for {other}: {count}")
    for note in found.notes:
        echo(f"note: {note}")
    if written:
        echo(f"wrote {', '.join(str(path) for path in written)}")


def info(
    model: options.SavedModel,
    as_json: options.Json = False,
) -> None:
    """Describe a saved model: method, backbone, classes by task, size on disk."""
    from ease.app.inbox import Inbox
    from ease.methods import find_method
    from ease.reporting.describe import describe_model
    from ease.reporting.significance import wilson
    from ease.storage.model_directory import model_directory

    found = describe_model(model)
    inbox = Inbox(model_directory(model).path)
    found["inbox"] = {"on": inbox.on, "photos": len(inbox), "bytes": inbox.total_bytes}
    if as_json:
        print_json(found)
        return
    echo(
        f"{found['method']} on {found['backbone']}, generation {found['generation']}, {len(found['classes'])} classes"
    )
    for task, names in enumerate(found["tasks"], start=1):
        echo(f"task {task}: {', '.join(names)}")
    for act in found["history"]:
        what = [f"{len(act['classes'])} classes"] * bool(act["classes"])
        what += [f"more of {', '.join(act['extended'])}"] * bool(act["extended"])
        measured = "no image held out"
        if act["accuracy"] is not None:
            measured = f"{act['accuracy']:.1f} % of {act['held_out']} held-out images recognised then"
            if act["held_out"]:
                low, high = wilson(round(act["accuracy"] * act["held_out"] / 100), act["held_out"])
                measured += f" (95 % interval {low:.0f} to {high:.0f} %)"
        echo(
            f"{act['date'][:10]}: {' and '.join(what) or 'classes forgotten since'}, {act['images']} images; {measured}"
        )
    titles = {"learner": find_method(found["method"]).state_title, "memory": "training images"}
    parts = [f"{titles.get(kind, kind)} {size / 1e6:.2f} MB" for kind, size in found["bytes_by_kind"].items()]
    parts += [f"stored as {' and '.join(found['storages'])}"] * bool(found["storages"])
    passes = found["passes_per_image"]
    echo(
        f"{found['bytes'] / 1e6:.2f} MB in {found['files']} files ({', '.join(parts) or 'none yet'}), "
        f"{passes} pass{'es' * (passes != 1)} per image"
    )
    if found["adapted"] is not None:
        adapted = "backbone adapted to the first classes" if found["adapted"] else "backbone not adapted"
        echo(adapted)
    if inbox.on:
        kept = found["inbox"]
        photos = f"{kept['photos']} photo{'s' * (kept['photos'] != 1)}"
        echo(
            f"kept images: {photos}, {kept['bytes'] / 1e6:.2f} MB, in {inbox.path.name} until they are learned"
        )


def compact(
    model: Annotated[Path, typer.Option(help="Model directory, or the folder of a run.")],
    storage: Annotated[
        str | None,
        typer.Option(metavar="fp16|int8|fp32", help="Number format of everything that the model stores."),
    ] = None,
    energy: Annotated[
        float | None,
        typer.Option(
            help="Replace adapters by low-rank factors with this share of the energy, such as 0.99."
        ),
    ] = None,
    max_subspaces: Annotated[
        int | None,
        typer.Option(metavar="K", help="Maximum number of subspaces, and so of passes per prediction."),
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Photos, one folder per class, to measure the accuracy before and after."
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what the result would be.")] = False,
    forget_history: Annotated[
        bool, typer.Option("--forget-history", help="Remove all other generations; this cannot be undone.")
    ] = False,
    yes: asking.Yes = False,
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Make a saved model smaller.

    The result is a new generation: 'ease rollback' restores the old one, until --forget-history removes it.
    """
    from dataclasses import asdict

    from ease.app.compact import Compaction
    from ease.app.compact import compact as work
    from ease.progress import Bars
    from ease.storage.model_directory import model_directory

    if forget_history and not dry_run:
        directory = model_directory(model)
        goes = asking.history_of(model, directory.manifest().generation, directory.generations())
        present = f"generation {directory.manifest().generation} of {model}, if there is a smaller one"
        asking.ask_before_removing("compact --forget-history", [*goes, present], yes)
    done = work(
        model,
        Compaction(storage, energy, max_subspaces),
        check=check,
        dry_run=dry_run,
        forget_history=forget_history,
        weights=weights,
        progress=Bars(),
    )
    if as_json:
        print_json(asdict(done))
        return
    _show_sizes(done)
    if not done.changed:
        echo("nothing to do: the model is already as small as that")
    elif done.generation is None:
        echo("nothing was written (--dry-run)")
    else:
        echo(f"wrote generation {done.generation} of {model}")
        if not forget_history:
            echo(f"restore the old one with: ease rollback --model {model} {done.previous}")
    if forget_history and not dry_run:
        echo("forgot all earlier generations")
    elif done.history_bytes:
        echo(
            f"files of other generations take {done.history_bytes} bytes (remove them with --forget-history)"
        )


def _show_sizes(done: Any) -> None:
    from rich.table import Table

    checked = done.before.accuracy is not None
    keeps_more = done.before.statistics_bytes > 0
    titles = ["subspace bytes", "prototype bytes", *["statistics bytes"] * keeps_more]
    titles += ["subspaces", "passes per image", *["accuracy"] * checked]
    table = Table("", *titles, box=None, pad_edge=False)
    for name, size in (("before", done.before), ("after", done.after)):
        cells = [size.subspace_bytes, size.prototype_bytes, *[size.statistics_bytes] * keeps_more]
        cells += [size.subspaces, size.passes]
        rate = [f"{size.accuracy:.2f} %"] if checked else []
        table.add_row(name, *map(str, cells), *rate)
    console().print(table)


def verify(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="Recorded outputs (.npz).")],
    train: Annotated[
        bool, typer.Option("--train", help="Repeat the training as well, from the initial adapters.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Compare with recorded outputs of the authors' code.

    Prints the largest differences. The exit code is 1 if one is above 1e-5.
    """
    from dataclasses import asdict

    from rich.table import Table

    from ease.experiments.verify import verify_file

    found = [verify_file(path, train) for path in files if path.name != "common.npz"]
    if not found:
        raise EaseError("nothing to verify: give files other than common.npz")
    if as_json:
        print_json([{**asdict(one), "within": one.within()} for one in found])
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
        console().print(table)
    if not all(one.within() for one in found):
        raise typer.Exit(1)
