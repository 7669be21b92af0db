"""From a source to labelled images that are known to be readable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ease.errors import EaseError
from ease.progress import Progress, Quiet
from ease.streams.images import ImageSet
from ease.streams.intake.checks import (
    CHECKED_AT_ONCE,
    LabelledDigest,
    check_images,
    find_duplicates,
    size_notes,
)
from ease.streams.intake.decode import ImageContent, MixedSource
from ease.streams.intake.names import list_files
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources import AllowUrls, Candidates, find_source, from_memory
from ease.streams.intake.sources.memory import image_content


@dataclass(frozen=True)
class LabelledImages:
    """Classes and their images, each of which has been decoded once.

    Attributes:
        names: The classes. Those of a folder are in the order of their names, those of a mapping as given.
        images: The images; their labels are positions in `names`.
        notes: One line each for what people should know: skipped files, duplicates, small classes.
    """

    names: tuple[str, ...]
    images: ImageSet
    notes: tuple[str, ...]


def collect_images(
    source: Path | str | Mapping[str, Sequence[Any]] | Candidates | None = None,
    *,
    labels: Path | str | None = None,
    root: Path | str | None = None,
    columns: Sequence[str] | None = None,
    allow_urls: AllowUrls = False,
    unreadable: Unreadable = "refuse",
    progress: Progress | None = None,
) -> LabelledImages:
    """Collect the images of a source and check all of them, so that damage is found before learning begins.

    Args:
        source: A folder with one folder of images per class, or any other place that `find_source` recognises; a
            mapping from class names to images as `as_image_set` takes them; or the candidates of another source.
        labels: A table or a COCO file with the labels of the images in the folder `source`.
        root: The folder that relative paths of a table begin at; its own folder if None.
        columns: The names of the table's columns of paths and labels, where they are not recognised.
        allow_urls: Whether http and https addresses in tables are fetched; `private` allows private networks, too.
        unreadable: `refuse` raises an error that names an image that cannot be used; `skip` leaves it out with a note.
        progress: Shows how many images have been checked.

    Returns:
        The images of at least one class, with notes on skipped files, duplicates and class sizes.

    Raises:
        EaseError: There is no class, a class has no image, or an image cannot be used.

    Example:
        >>> import numpy as np
        >>> black, white = np.zeros((8, 8), np.uint8), np.full((8, 8), 255, np.uint8)
        >>> found = collect_images({"dark": [black], "light": [white]})
        >>> found.names, len(found.images)
        (('dark', 'light'), 2)
    """
    if isinstance(source, Mapping | Candidates):
        if labels is not None or root is not None or columns is not None or allow_urls:
            raise EaseError("labels, root, columns and allow_urls belong to a path: leave them out")
        source = from_memory(source) if isinstance(source, Mapping) else source
    else:
        source = find_source(
            source, labels, root=root, columns=columns, allow_urls=allow_urls, unreadable=unreadable
        )
    names = source.class_names
    if not names:
        raise EaseError("there is no class: name at least one, with its images")
    contents, facts, skipped = _readable(source, unreadable, progress or Quiet())
    counts = Counter(fact.label for fact in facts)
    for label, name in enumerate(names):
        if not counts[label]:
            why = next((reason for own, reason in skipped.values() if own == label), "it has none")
            raise EaseError(f"class '{name}' has no image to learn from ({why})")
    notes = [
        *_skipped_note(skipped),
        *source.notes,
        *find_duplicates(facts).notes(names),
        *size_notes({name: counts[label] for label, name in enumerate(names)}),
    ]
    known = np.array([fact.label for fact in facts], dtype=np.int64)
    pixels = MixedSource(contents, [fact.name for fact in facts])
    return LabelledImages(names, ImageSet(pixels, np.arange(len(facts)), known), tuple(notes))


_Skipped = dict[str, tuple[int | None, str]]


def _readable(
    source: Candidates, unreadable: Unreadable, progress: Progress
) -> tuple[list[ImageContent], list[LabelledDigest], _Skipped]:
    """The images that can be decoded, what is known of each, and those that were skipped."""
    contents: list[ImageContent] = []
    facts: list[LabelledDigest] = []
    skipped = dict(source.skipped)
    with progress.bar("checking images", len(source.images)) as advance:
        for start in range(0, len(source.images), CHECKED_AT_ONCE):
            batch = source.images[start : start + CHECKED_AT_ONCE]
            # One after the other: one Pillow image may be there twice, and must not be loaded by two threads.
            converted = [_converted(candidate.content, candidate.name) for candidate in batch]
            checks = check_images(converted, [candidate.full_name or candidate.name for candidate in batch])
            for candidate, content, check in zip(batch, converted, checks, strict=True):
                if check.fault is None and not isinstance(content, EaseError):
                    contents.append(content)
                    facts.append(LabelledDigest(check.digest, candidate.label, candidate.name))
                elif unreadable == "refuse":
                    raise EaseError(f"{check.fault}, or skip unreadable files")
                else:
                    skipped[candidate.name] = (candidate.label, str(check.fault))
            advance(len(batch))
    return contents, facts, skipped


def _converted(value: Any, name: str) -> ImageContent | EaseError:
    try:
        return image_content(value, name)
    except EaseError as error:
        return error


def _skipped_note(skipped: _Skipped) -> list[str]:
    if not skipped:
        return []
    (_, first), *_ = skipped.values()
    return [f"left out {list_files(list(skipped))}: cannot be read ({first})"]
