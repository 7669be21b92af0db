"""Commands of the review inbox: correct an answer, look at what was kept, name or discard it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ease.cli import options
from ease.cli.output import echo, print_json
from ease.errors import EaseError

if TYPE_CHECKING:
    from ease.app.inbox import Inbox
    from ease.app.inbox_photos import InboxPhoto

Yes = Annotated[bool, typer.Option("--yes", help="Accept a name that is very like another one.")]
T = TypeVar("T")


def correct(
    image: Annotated[Path, typer.Argument(help="The photo.")],
    name: Annotated[str, typer.Argument(help="What it shows: a known class, or a new one.")],
    model: options.ModelDirectory,
    yes: Yes = False,
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """Say what a photo shows, if the model was wrong.

    The photo is kept in the folder MODEL.inbox with this name until 'ease learn --inbox' has learned it. The model
    answers it with this name from now on, if it knows that class.
    """
    from ease.app.classifier import Classifier

    classifier = Classifier.open(model, weights)
    done = _confirmed(partial(classifier.correct, image, name), yes)
    if as_json:
        print_json(asdict(done))
        return
    if done.confirmed:
        echo(f"the model says '{done.name}' already: counted as right, the photo is not kept")
        return
    what = f"'{done.name}'" if done.known else f"'{done.name}', a new class"
    echo(f"kept {image} as {what} ({done.id}); learn it with: ease learn --inbox --model {model}")
    if done.similar:
        names = ", ".join(f"'{other}'" for other in done.similar)
        echo(
            f"note: there is a class {names}; if you meant that: ease inbox --model {model} --name {done.id}=NAME"
        )


def inbox(
    model: options.ModelDirectory,
    names: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="ID=NAME", help="Name a photo; can be given several times."),
    ] = None,
    discard: Annotated[
        list[str] | None,
        typer.Option("--discard", metavar="ID", help="Remove a photo; can be given several times."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all photos.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take back the last correction.")] = False,
    yes: Yes = False,
    weights: options.Weights = None,
    as_json: options.Json = False,
) -> None:
    """List the photos that wait to be named or learned, or change them.

    An ID may be shortened to its beginning or its end, as long as only one photo has it.
    """
    from ease.app.inbox import Inbox

    found = Inbox(model)
    found.known()  # a wrong path is reported as such
    wanted = [name for name, given in {"--clear": clear, "--undo": undo}.items() if given]
    if len(wanted) + bool(names or discard) > 1:
        raise EaseError("--name and --discard, --clear, and --undo exclude each other: choose one")
    if not wanted and not names and not discard:
        _list(found, model, weights, as_json)
        return
    for line in _changed(found, names or [], discard or [], clear, undo, yes):
        echo(line)


def _changed(
    inbox: Inbox, names: list[str], discard: list[str], clear: bool, undo: bool, yes: bool
) -> list[str]:
    """Make the changes; a line for each."""
    if clear:
        return [f"removed {_photos(inbox.clear())}"]
    if undo:
        taken = inbox.undo()
        what = "removed" if taken.state == "corrected" else "it has no name any more"
        return [f"took back '{taken.name}' of {_title(taken)}: {what}"]
    pairs = [_pair(text) for text in names]
    known = inbox.photos()
    named = [(_id(known, photo), name) for photo, name in pairs]
    leaving = [_id(known, photo) for photo in discard]
    lines = []
    for photo, name in named:
        done = _confirmed(partial(inbox.rename, photo, name), yes)
        lines.append(f"{_title(done)} is '{done.name}'{'' if done.class_id is not None else ', a new class'}")
    for photo in leaving:
        inbox.discard(photo)
        lines.append(f"removed {photo}")
    return lines


def _confirmed(act: Callable[..., T], yes: bool) -> T:
    """Do it, and ask first if a name is very like another; where nobody can be asked, it is refused."""
    from ease.app.names import LikeNameError

    try:
        return act(confirm=yes)
    except LikeNameError as error:
        if not sys.stdin.isatty():
            raise
        echo(str(error))
        if not typer.confirm("Use the new name?"):
            raise EaseError("nothing was changed: give the name again as it should be") from error
        return act(confirm=True)


def _pair(text: str) -> tuple[str, str]:
    photo, equals, name = text.partition("=")
    if not (photo and equals and name.strip()):
        raise EaseError(f"'--name {text}' is not ID=NAME: write for example --name {photo or 'ID'}=cat")
    return photo, name


def _id(photos: list[InboxPhoto], text: str) -> str:
    found = [p.id for p in photos if p.id == text or p.id.startswith(text) or p.id.endswith(text)]
    if len(found) != 1:
        what = "several photos have" if found else "no photo of the inbox has"
        raise EaseError(f"{what} the id '{text}': list them with 'ease inbox', and copy the whole id")
    return found[0]


def _list(inbox: Inbox, model: Path, weights: Path | None, as_json: bool) -> None:
    from ease.storage.model_directory import ModelDirectory

    photos = inbox.photos()
    groups = _groups(inbox, photos, weights)
    history = ModelDirectory(inbox.model).manifest().history
    outcome = inbox.outcomes(history[-1].generation if history else 0)
    if as_json:
        print_json(
            {
                "on": inbox.on,
                "most_images": inbox.most_images,
                "most_bytes": inbox.most_bytes,
                "bytes": inbox.total_bytes,
                "photos": [_as_json(photo) for photo in photos],
                "groups": groups,
                "outcomes": asdict(outcome),
            }
        )
        return
    if not inbox.on:
        echo(f"{model} has no inbox: nothing is kept until an answer is corrected (ease correct)")
        return
    echo(f"{_photos(len(photos))}, {inbox.total_bytes / 1e6:.1f} of {inbox.most_bytes / 1e6:.0f} MB")
    for photo in photos:
        name = "?" if photo.name is None else photo.name + (" (new)" if photo.class_id is None else "")
        said = ", ".join(f"{each.name} {100 * each.confidence:.0f} %" for each in photo.suggestions[:2])
        answer = f"  the model said: {said}" if said else ""
        echo(f"{photo.id}  {photo.state:9}  {name}  {photo.file}{answer}")
    for group in groups:
        echo(f"look alike, perhaps a new class: {', '.join(group)}")
    if outcome.count:
        echo(
            f"answers that people judged since the model last learned: {outcome.right} of {outcome.count} right"
        )
    if any(photo.name is not None for photo in photos):
        echo(f"learn those that have names with: ease learn --inbox --model {model}")


def _groups(inbox: Inbox, photos: list[InboxPhoto], weights: Path | None) -> list[list[str]]:
    """Photos that look alike; the model is opened only if there are enough photos for a group."""
    from ease.app.unsure import Groups, groupable

    if not groupable(photos):
        return []
    from ease.app.classifier import Classifier

    return Groups().of(Classifier.open(inbox.model, weights), photos)


def _as_json(photo: InboxPhoto) -> dict[str, Any]:
    suggestions = [each.model_dump() for each in photo.suggestions]
    return {**asdict(photo), "path": str(photo.path), "suggestions": suggestions}


def _title(photo: InboxPhoto) -> str:
    return f"{photo.id} ({photo.file})" if photo.file else photo.id


def _photos(count: int) -> str:
    return f"{count} photo{'s' * (count != 1)}"
