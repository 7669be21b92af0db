"""What was published under a name, and which of it a folder turns out to hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml

__all__ = ["PUBLISHED", "Published", "Split", "recognise"]


@dataclass(frozen=True)
class Split:
    """Another well-known cut of the same images into train and test."""

    title: str
    train: int
    test: int


@dataclass(frozen=True)
class Published:
    """A dataset as its authors gave it away.

    Attributes:
        title: its name in print.
        classes: how many it has; `train` and `test`: how many images.
        archives: file name -> MD5.
        folders: what its archives unpack to, where that is not called like the archive.
        splits: other cuts people may have, by short name.
        keep_order: its classes are never shuffled.
        source: where it was published, for messages.
    """

    title: str
    classes: int
    train: int
    test: int
    archives: dict[str, str]
    folders: tuple[str, ...]
    splits: dict[str, Split]
    keep_order: bool
    source: str

    @property
    def line(self) -> str:
        """Title and size."""
        return f"{self.title}, {self.classes} classes, {self.train:,} train / {self.test:,} test"


def _published(entry: dict[str, object]) -> Published:
    values: dict = {"keep_order": False, **entry}
    values["folders"] = tuple(values.get("folders", ()))
    values["splits"] = {short: Split(**split) for short, split in values.get("splits", {}).items()}
    return Published(**values)


PUBLISHED: dict[str, Published] = {
    name: _published(entry)
    for name, entry in yaml.safe_load(
        (files(__package__) / "published.yaml").read_text(encoding="utf-8")
    ).items()
}
"""Every dataset that has a published form, by the name we load it under."""


def recognise(name: str, train: Sequence[int], test: Sequence[int]) -> tuple[str, str | None]:
    """What a folder holds, by its images per class: the name its figures carry, and a note if it is not the
    published dataset itself. Fewer images are no damage, but figures on them are not the benchmark's.
    """
    published = PUBLISHED[name]
    found, wanted = (
        (len(train), sum(train), sum(test)),
        (published.classes, published.train, published.test),
    )
    if found == wanted:
        return name, None
    for short, split in published.splits.items():
        if found == (published.classes, split.train, split.test):
            return f"{name}-{short}", (
                f"{split.title} was found ({split.train:,} train / {split.test:,} test), not the one of the benchmark "
                f"({published.train:,} / {published.test:,}): its figures are called {name}-{short}'s"
            )
    if any(have > want for have, want in zip(found, wanted, strict=True)):
        kind, called = "not the published", f"{name}-other"
    elif len(set(train)) == 1 and len(train) == published.classes:
        kind, called = "a subset of", f"{name}-{train[0]}"
    else:
        kind, called = "a subset of", f"{name}-subset"
    counts = [f"{have:,} of {want:,}" for have, want in zip(found, wanted, strict=True)]
    return called, (
        f"{kind} {published.title}: {counts[0]} classes, {counts[1]} train and {counts[2]} test images; "
        f"its figures are not {published.title}'s, so they are called {called}'s"
    )
