"""Commands that grow a classifier from photos: learn, rename, forget, rollback."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ease.cli import asking, options
from ease.cli.output import echo, print_json
from ease.errors import EaseError, unknown

if TYPE_CHECKING:
    from ease.app.changes import Learned
    from ease.app.classifier import Classifier


def learn(
    model: Annotated[Path, typer.Option(help="Model directory; it is created if it does not exist.")],
    source: options.Photos = None,
    labels: options.Labels = None,
    root: options.Root = None,
    columns: options.Columns = None,
    allow_urls: options.AllowUrls = False,
    allow_private_urls: options.AllowPrivateUrls = False,
    inbox: Annotated[
        bool,
        typer.Option("--inbox", help="Learn the photos of the inbox that have names, see 'ease inbox'."),
    ] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Also learn from photos of classes that the model knows.")
    ] = False,
    unreadable: options.Unreadable = "refuse",
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help="Keep one small picture of each new class in the model.")
    ] = False,
    weights: options.Weights = None,
    precision: options.Precision = None,
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
    """Teach a model the classes of photos: a folder for each class, a table with paths and labels, or its inbox.

    The model stores no photo, unless --thumbnails is given. Repeat the command with further folders at any time; the
    model remembers the options it was made with, so they may be left out or given again.
    """
    from ease.app.classifier import Classifier
    from ease.config import parse_sets
    from ease.progress import Bars
    from ease.storage.model_directory import ModelDirectory
    from ease.streams.intake import collect_images

    shape: dict[str, Any] = {
        "labels": labels,
        "root": root,
        "columns": options.names(columns) or None,
        "allow_urls": options.allowed_urls(allow_urls, allow_private_urls),
        "unreadable": options.refuse_or_skip(unreadable),
    }
    if inbox and (source is not None or labels is not None):
        raise EaseError("--inbox learns the photos of the inbox alone: leave the other photos out")
    given: dict[str, Any] = {
        "method": method,
        "backbone": backbone,
        "input_size": input_size,
        "augment": augment,
        "seed": seed,
    }
    asked = options.asked_precision(precision)
    there = ModelDirectory(model).exists

    def open_model() -> Classifier:
        return Classifier.open_or_create(
            model, weights=weights, settings=parse_sets(sets or []), precision=asked, **given
        )

    if inbox:
        _refuse_without_use(thumbnails, tune)
        if not there:
            raise EaseError(f"there is no model in {model} whose answers were corrected: check the path")
        classifier = open_model()
        _tell_learned(classifier.learn_inbox(progress=Bars()), classifier, as_json)
        return
    existing = open_model() if there else None  # wrong options are reported before photos are read
    photos = collect_images(source, progress=Bars(), **shape)
    classifier = existing or open_model()  # a new one is written by its first successful `learn`
    learned = classifier.learn(photos, extend=extend, tune=tune, thumbnails=thumbnails, progress=Bars())
    _tell_learned(learned, classifier, as_json)


def _refuse_without_use(thumbnails: bool, tune: bool) -> None:
    for name in ["--thumbnails"] * thumbnails + ["--tune"] * tune:
        raise EaseError(f"{name} is for a folder of photos, not for --inbox: leave it out")


def _tell_learned(learned: Learned, classifier: Classifier, as_json: bool) -> None:
    if as_json:
        print_json(asdict(learned))
        return
    what = [_count(len(learned.classes), "new class", "new classes")] * bool(learned.classes)
    what += [f"more of {_count(len(learned.extended), 'known class', 'known classes')}"] * bool(
        learned.extended
    )
    echo(
        f"learned {' and '.join(what)} from {_count(learned.images, 'image')}; "
        f"the model has {_count(len(classifier.classes), 'class', 'classes')}"
    )
    if learned.accuracy is not None:
        echo(
            f"recognised {learned.accuracy:.1f} % of {_count(learned.held_out, 'held-out image')} of the new classes"
        )
    elif classifier.calibration.calibrated:
        echo("no image was held out, so the accuracy was not measured")
    else:
        echo("no image was held out: confidences are not calibrated")
    for note in learned.notes:
        echo(f"note: {note}")
    echo(f"wrote generation {learned.generation} of {classifier.path}")


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"


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
    echo(f"renamed '{old}' to '{new}' (generation {classifier.generation})")


def forget(
    name: Annotated[str, typer.Argument(help="Name of the class.")],
    model: options.ModelDirectory,
    weights: options.Weights = None,
    yes: asking.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Remove a class and all other generations.

    Earlier and later generations are removed because they still contain the class. This cannot be undone, so a
    terminal is asked first, and a script needs --yes.
    """
    from ease.app.classifier import Classifier

    asking.ask_before_removing("forget", _what_goes(model, name), yes)
    done = Classifier.open(model, weights).forget(name)
    if as_json:
        print_json(asdict(done))
        return
    echo(f"forgot '{name}' and all other generations (generation {done.generation})")
    echo(f"largest change of the direction of another class: {done.moved:.2g} (1 - cosine)")
    if done.kept:
        echo(f"what still contains information about it: {done.kept}")


def _what_goes(model: Path, name: str) -> list[str]:
    """What `forget` removes, one phrase each; an unknown class is an error before anybody is asked."""
    from ease.app.job_book import job_book, jobs_that_name
    from ease.storage.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    manifest = directory.manifest()
    entry = next((each for each in manifest.classes if each.name == name), None)
    if entry is None:
        raise unknown("class", name, manifest.class_names)
    picture = " and its small picture" if str(entry.id) in manifest.kept_images else ""
    goes = [f"the class '{name}', learned from {_count(entry.count, 'image')}{picture}"]
    goes += asking.history_of(model, manifest.generation, directory.generations())
    jobs = jobs_that_name(model, name)
    return goes + [f"its name in {_count(jobs, 'job')} of {job_book(model)}"] * bool(jobs)


def rollback(
    model: options.ModelDirectory,
    generation: Annotated[
        int | None,
        typer.Argument(
            help="Generation to go back to; without it, all are listed with what each of them did."
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Go back to an earlier generation of a model, or list its generations.

    Later generations are kept, and can be restored the same way.
    """
    from ease.storage.model_directory import ModelDirectory

    directory = ModelDirectory(model)
    if generation is None:
        _list_generations(model, as_json)
        return
    if as_json:
        raise EaseError("--json is for the list of generations: leave it out, or give no generation")
    directory.rollback(generation)
    classes = _count(len(directory.manifest().classes), "class", "classes")
    echo(f"{model} is at generation {generation}: {classes}")


def _list_generations(model: Path, as_json: bool) -> None:
    from ease.app.history import HistoryReader

    found = HistoryReader(model).read()
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    for one in found.generations:
        mark = "*" if one.current else " "
        what = one.what
        if one.measured is not None:
            figures = one.measured
            what += (
                f" {figures.right} of {figures.count} held-out photos recognised then "
                f"({figures.low:.0f} to {figures.high:.0f} %)."
            )
        if one.undone:
            what += " Undone by a rollback."
        echo(
            f"{mark} {one.generation}  {one.date[:16].replace('T', ' ')}  "
            f"{_count(one.total, 'class', 'classes')}: {what}"
        )
