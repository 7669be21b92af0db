"""Commands that grow a classifier from folders of photos: learn, predict, rename, forget, rollback."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ease.cli import options
from ease.cli.output import print_json
from ease.errors import EaseError

if TYPE_CHECKING:
    from ease.app.changes import Learned
    from ease.app.classifier import Classifier
    from ease.app.prediction import Prediction


def learn(
    folder: Annotated[Path, typer.Argument(help="Photos, one folder per class.")],
    model: Annotated[Path, typer.Option(help="Model directory; it is created if it does not exist.")],
    extend: Annotated[
        bool, typer.Option("--extend", help="Also learn from photos of classes that the model knows.")
    ] = False,
    unreadable: options.Unreadable = "refuse",
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Keep one small picture of each new class in the model.")
    ] = False,
    weights: options.Weights = None,
    as_json: options.Json = False,
    method: options.NewMethod = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="Train an adapter on these photos, and keep it if it improves the accuracy. Takes longer.",
            rich_help_panel=options.NEW_MODEL,
        ),
    ] = False,
    augment: options.NewAugment = None,
    backbone: options.NewBackbone = None,
    input_size: Annotated[
        int | None,
        typer.Option(help="Side length of the input in pixels.", rich_help_panel=options.NEW_MODEL),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.", rich_help_panel=options.NEW_MODEL)] = None,
    sets: options.MethodSets = None,
) -> None:
    """Teach a model the classes in a folder of photos.

    The model stores no photo, unless --thumbnails is given. Repeat the command with further folders at any time.
    """
    from ease.app.classifier import Classifier
    from ease.config import parse_sets
    from ease.progress import Bars
    from ease.storage.model_directory import ModelDirectory
    from ease.streams.intake import collect_images

    damaged = options.refuse_or_skip(unreadable)
    given: dict[str, Any] = {
        "method": method,
        "backbone": backbone,
        "input_size": input_size,
        "augment": augment,
        "seed": seed,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if ModelDirectory(model).exists:
        if given or sets:
            name = f"--{next(iter(given)).replace('_', '-')}" if given else "--set"
            raise EaseError(
                f"{name} is an option for a new model, and there is a model in {model}: leave it out"
            )
        classifier = Classifier.open(model, weights)
        photos = collect_images(folder, unreadable=damaged, progress=Bars())
    else:
        photos = collect_images(folder, unreadable=damaged, progress=Bars())
        # Not written yet: a failure before anything was learned leaves nothing behind.
        classifier = Classifier.create(
            model, weights=weights, settings=parse_sets(sets or []), write=False, **given
        )
    learned = classifier.learn(photos, extend=extend, tune=tune, thumbnails=thumbnails, progress=Bars())
    if as_json:
        print_json(asdict(learned))
    else:
        _show_learned(learned, classifier)


def _show_learned(learned: Learned, classifier: Classifier) -> None:
    what = [_count(len(learned.classes), "new class", "new classes")] * bool(learned.classes)
    what += [f"more of {_count(len(learned.extended), 'known class', 'known classes')}"] * bool(
        learned.extended
    )
    typer.echo(
        f"learned {' and '.join(what)} from {_count(learned.images, 'image')}; "
        f"the model has {_count(len(classifier.classes), 'class', 'classes')}"
    )
    if learned.accuracy is not None:
        typer.echo(
            f"recognised {learned.accuracy:.1f} % of {_count(learned.held_out, 'held-out image')} of the new classes"
        )
    elif classifier.calibration.calibrated:
        typer.echo("no image was held out: confidences are those of earlier learning")
    else:
        typer.echo("no image was held out: confidences are not calibrated")
    for note in learned.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote generation {learned.generation} of {classifier.path}")


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


def predict(
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|FOLDER", help="Photos, or folders of photos.")
    ],
    model: options.ModelDirectory,
    top: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of classes to name for each photo.")
    ] = 5,
    budget: options.Budget = None,
    weights: options.Weights = None,
    as_json: options.Json = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the result as CSV, one line per photo and class.")
    ] = False,
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

    A photo that is like none of the classes is marked as unknown.
    """
    from ease.app.classifier import Classifier
    from ease.app.prediction import Predictions
    from ease.progress import Bars
    from ease.storage.files import check_folder_place
    from ease.streams.intake import find_images

    if as_json and as_csv:
        raise EaseError("--json and --csv exclude each other: choose one")
    if why is not None:
        check_folder_place(why)
    paths = find_images(images)
    classifier = Classifier.open(model, weights, budget=budget)
    found = [
        one.model_copy(update={"file": str(path)})
        for path, one in zip(paths, classifier.predict(list(paths), top, Bars()), strict=True)
    ]
    calibrated = classifier.calibration.calibrated
    if as_json:
        whole = Predictions(generation=classifier.generation, calibrated=calibrated, predictions=tuple(found))
        print_json(whole.model_dump(mode="json"))
    elif as_csv:
        _print_csv(found)
    else:
        for one in found:
            classes = ", ".join(f"{each.name} {100 * each.confidence:.1f} %" for each in one.classes)
            typer.echo(f"{one.file}: {'unknown? ' if one.is_unknown else ''}{classes}")
        if found and not calibrated:
            typer.echo("note: confidences are not calibrated: no class had enough images for that", err=True)
    if why is not None:
        _explain(classifier, paths, why)


def _explain(classifier: Classifier, paths: list[Path], folder: Path) -> None:
    """Write explanations of photos into a folder."""
    from ease.app.explain_page import Explained, write_explanations
    from ease.progress import Bars
    from ease.streams.intake import as_image_set

    photos, explained = as_image_set(paths), []
    with Bars().bar("explaining", len(paths)) as advance:
        for at, path in enumerate(paths):
            explained.append(Explained(str(path), photos.image(at), classifier.explain(path)))
            advance(1)
    page, *_ = write_explanations(explained, folder)
    typer.echo(f"wrote {page}, and a picture for each photo", err=True)


def _print_csv(predictions: list[Prediction]) -> None:
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(["file", "rank", "class", "confidence", "unknown"])
    for one in predictions:
        unknown = "" if one.unknown is None else f"{one.unknown:.4f}"
        for rank, each in enumerate(one.classes, start=1):
            table.writerow([one.file, rank, each.name, f"{each.confidence:.4f}", unknown])


def rename(
    old: Annotated[str, typer.Argument(help="Present name of the class.")],
    new: Annotated[str, typer.Argument(help="New name of the class.")],
    model: options.ModelDirectory,
    weights: options.Weights = None,
) -> None:
    """Rename a class."""
    from ease.app.classifier import Classifier

    classifier = Classifier.open(model, weights)
    classifier.rename(old, new)
    typer.echo(f"renamed '{old}' to '{new}' (generation {classifier.generation})")


def forget(
    name: Annotated[str, typer.Argument(help="Name of the class.")],
    model: options.ModelDirectory,
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Remove a class and all earlier generations.

    Earlier generations are removed because they still contain the class. This cannot be undone.
    """
    from ease.app.classifier import Classifier

    done = Classifier.open(model, weights).forget(name)
    if as_json:
        print_json(asdict(done))
        return
    typer.echo(f"forgot '{name}' and all earlier generations (generation {done.generation})")
    typer.echo(f"largest change of the direction of another class: {done.moved:.2g} (1 - cosine)")
    if done.kept:
        typer.echo(f"what still contains information about it: {done.kept}")


def rollback(
    model: options.ModelDirectory,
    generation: Annotated[
        int | None, typer.Argument(help="Generation to go back to; without it, all generations are listed.")
    ] = None,
) -> None:
    """Go back to an earlier generation of a model.

    Later generations are kept, and can be restored the same way.
    """
    from ease.storage.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    if generation is None:
        current = directory.manifest().generation
        for number in directory.generations():
            manifest = directory.manifest(number)
            mark = "*" if number == current else " "
            typer.echo(
                f"{mark} {number}  {manifest.created}  {_count(len(manifest.classes), 'class', 'classes')}"
            )
        return
    directory.rollback(generation)
    classes = _count(len(directory.manifest().classes), "class", "classes")
    typer.echo(f"{model} is at generation {generation}: {classes}")
