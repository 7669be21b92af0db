"""Growing a classifier from folders of photos: learn, predict, rename, forget, roll back."""

from __future__ import annotations

import csv
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ease.cli import options
from ease.cli.output import print_json
from ease.errors import EaseError

Model = Annotated[Path, typer.Option(help="Model directory.")]


def learn(
    folder: Annotated[Path, typer.Argument(help="LabelledImages, one folder per class.")],
    model: Annotated[Path, typer.Option(help="Model directory; a new one is made.")],
    extend: Annotated[bool, typer.Option("--extend", help="Known classes get these photos too.")] = False,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Take more time over a new model's first photos: adapt to them if that helps."
        ),
    ] = False,
    unreadable: options.Unreadable = "refuse",
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Keep one small picture per class in the model.")
    ] = False,
    method: options.Method = None,
    backbone: options.Backbone = None,
    weights: options.Weights = None,
    input_size: options.InputSize = None,
    augment: Annotated[
        str | None, typer.Option(help="photos, or gentle: never mirrored, hardly cropped (letters, signs).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
    sets: options.Sets = None,
    as_json: options.Json = False,
) -> None:
    """Teach a model the classes of a folder. No photo is kept; the model grows by its new classes."""
    from ease.app.classifier import Classifier
    from ease.config import parse_sets
    from ease.progress import Bars
    from ease.storage.model_directory import ModelDirectory
    from ease.streams.intake import collect_images

    bad = options.refuse_or_skip(unreadable)
    making: dict[str, Any] = {
        "method": method,
        "backbone": backbone,
        "input_size": input_size,
        "augment": augment,
        "seed": seed,
    }
    making = {name: value for name, value in making.items() if value is not None}
    if ModelDirectory(model).exists:
        if making or sets:
            name = f"--{next(iter(making)).replace('_', '-')}" if making else "--set"
            raise EaseError(f"{name} is chosen when a model is made, and {model} holds one: leave it out")
        classifier = Classifier.open(model, weights)
        photos = collect_images(folder, unreadable=bad, progress=Bars())
    else:
        photos = collect_images(folder, unreadable=bad, progress=Bars())
        # Not written yet: what fails or is interrupted before anything was learned leaves nothing behind.
        classifier = Classifier.create(
            model, weights=weights, settings=parse_sets(sets or []), write=False, **making
        )
    learned = classifier.learn(photos, extend=extend, tune=tune, thumbnails=thumbnails, progress=Bars())
    if as_json:
        print_json(asdict(learned))
        return
    what = [f"{len(learned.classes)} new classes"] * bool(learned.classes)
    what += [f"more of {len(learned.extended)} known ones"] * bool(learned.extended)
    typer.echo(
        f"learned {' and '.join(what)} from {learned.images} images: {len(classifier.classes)} classes now"
    )
    if learned.accuracy is None:
        typer.echo("no image was held out: confidences are " + _state(classifier))
    else:
        typer.echo(
            f"{learned.accuracy:.1f} % of {learned.held_out} held-out images of the new classes recognised today"
        )
    for note in learned.notes:
        typer.echo(f"note: {note}")
    typer.echo(f"wrote generation {learned.generation} of {model}")


def _state(classifier: Any) -> str:
    return "those of earlier learning" if classifier.calibration.calibrated else "uncalibrated"


def predict(
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE|FOLDER...", help="LabelledImages, or folders of them.")
    ],
    model: Model,
    top: Annotated[int, typer.Option(min=1, help="Classes to name for each photo.")] = 5,
    budget: options.Budget = None,
    weights: options.Weights = None,
    as_json: options.Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print one line per photo and class.")] = False,
) -> None:
    """Name what photos show, with confidences; a photo like none of the classes is called unknown."""
    from ease.app.classifier import Classifier
    from ease.streams.intake import find_images

    if as_json and as_csv:
        raise EaseError("--json and --csv exclude each other: choose one")
    paths = find_images(images)
    classifier = Classifier.open(model, weights, budget=budget)
    found = [
        answer
        for start in range(0, len(paths), 64)
        for answer in classifier.predict(paths[start : start + 64], top)
    ]
    answers = list(zip(paths, found, strict=True))
    if as_json:
        print_json(
            {
                "generation": classifier.generation,
                "predictions": [
                    {"file": str(path), **asdict(one), "is_unknown": one.is_unknown} for path, one in answers
                ],
            }
        )
    elif as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(["file", "rank", "class", "confidence", "unknown"])
        for path, one in answers:
            for rank, (name, sure) in enumerate(zip(one.names, one.confidences, strict=True), start=1):
                table.writerow(
                    [path, rank, name, f"{sure:.4f}", "" if one.unknown is None else f"{one.unknown:.4f}"]
                )
    else:
        for path, one in answers:
            guesses = ", ".join(
                f"{n} {100 * c:.1f} %" for n, c in zip(one.names, one.confidences, strict=True)
            )
            typer.echo(f"{path}: {'unknown? ' if one.is_unknown else ''}{guesses}")
        if found and not found[0].calibrated:
            typer.echo("note: confidences are uncalibrated: no task had images to spare for that", err=True)


def rename(old: str, new: str, model: Model, weights: options.Weights = None) -> None:
    """Give a class another name."""
    from ease.app.classifier import Classifier

    classifier = Classifier.open(model, weights)
    classifier.rename(old, new)
    typer.echo(f"'{old}' is called '{new}' now (generation {classifier.generation})")


def forget(name: str, model: Model, weights: options.Weights = None, as_json: options.Json = False) -> None:
    """Drop a class and all earlier generations, which would still hold it. This cannot be undone."""
    from ease.app.classifier import Classifier

    done = Classifier.open(model, weights).forget(name)
    if as_json:
        print_json(asdict(done))
        return
    typer.echo(f"forgot '{name}' and all earlier generations (generation {done.generation})")
    typer.echo(f"other classes: directions turned by at most {done.moved:.2g} (1 - cosine)")
    if done.kept:
        typer.echo(f"what still carries some of it: {done.kept}")


def rollback(
    model: Model,
    generation: Annotated[
        int | None, typer.Argument(help="The generation to go to; listed if left out.")
    ] = None,
) -> None:
    """Go back to an earlier generation; a later one can be had back the same way."""
    from ease.storage.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    if generation is None:
        current = directory.manifest().generation
        for number in directory.generations():
            manifest = directory.manifest(number)
            mark = "*" if number == current else " "
            typer.echo(f"{mark} {number}  {manifest.created}  {len(manifest.classes)} classes")
        return
    directory.rollback(generation)
    typer.echo(f"{model} is at generation {generation}: {len(directory.manifest().classes)} classes")
