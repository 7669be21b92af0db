"""What a change of a classifier reports, and the entries of its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Learned:
    """The result of one call of `Classifier.learn`, as measured at that time.

    Attributes:
        generation: Generation of the model afterwards.
        date: Date and time in UTC, in ISO format.
        classes: Names of the new classes.
        extended: Names of the classes that were known before and were given more images.
        images: Number of images learned from.
        held_out: Number of images held out for measuring the accuracy.
        accuracy: Percentage of the held-out images recognised among all classes of that time; None without any.
        notes: Remarks about the images and the training.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier = Classifier.create(f"{folder}/model", input_size=16)
        ...     learned = classifier.learn({"dark": images[:2], "bright": images[2:]})
        >>> learned.classes, learned.images, learned.accuracy
        (('dark', 'bright'), 4, None)
    """

    generation: int
    date: str
    classes: tuple[str, ...]
    extended: tuple[str, ...]
    images: int
    held_out: int
    accuracy: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forgotten:
    """The result of `Classifier.forget`.

    Attributes:
        generation: Generation of the model afterwards.
        name: Name of the class that was removed.
        moved: Largest change of the direction of another class's prototype, as 1 - cosine; 0 if none moved.
        kept: What still contains some information about the class, in words; empty if nothing does.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier = Classifier.create(f"{folder}/model", input_size=16)
        ...     _ = classifier.learn({"dark": images[:2], "bright": images[2:]})
        ...     forgotten = classifier.forget("dark")
        >>> forgotten.name, classifier.classes
        ('dark', ['bright'])
    """

    generation: int
    name: str
    moved: float
    kept: str


def renamed(entry: Learned, old: str, new: str) -> Learned:
    """History follows a new name, so that `forget` finds all that was learned of a class."""

    def current(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if each == old else each for each in names)

    return replace(entry, classes=current(entry.classes), extended=current(entry.extended))


def without_unknown(entry: Learned, known: set[str]) -> Learned:
    """An entry of the history without classes that there are no more.

    Notes name classes, under the names they had at the time: if one of them is gone, the entry has no notes any more.
    """
    named = {*entry.classes, *entry.extended}
    classes, extended = (tuple(n for n in names if n in known) for names in (entry.classes, entry.extended))
    return replace(entry, classes=classes, extended=extended, notes=entry.notes if named <= known else ())


def tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples: JSON has no tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def lists(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `tuples`."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}
