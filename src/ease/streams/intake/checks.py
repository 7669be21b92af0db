"""The checks that every image passes, whatever its source: damage, duplicates, class sizes.

Learning, `ease datasets check` and the uploads of the server use the same functions. Class names are checked by
`ease.streams.intake.names.class_names`.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import content_hash
from ease.streams.intake.decode import (
    LARGE_IMAGE_PIXELS,
    ImageContent,
    check_decodable,
    content_digest,
    count_pixels,
    read_bytes_of,
)
from ease.streams.intake.limits import LIMITS, ImageLimits
from ease.streams.intake.names import list_names
from ease.streams.intake.threads import decoding_threads

CHECKED_AT_ONCE = 64
"""Images that are checked between two steps of a progress bar."""

FEW_IMAGES = 5
"""A class with fewer images is small: none of them is held out, and a note says so."""

IMBALANCE = 10
"""Classes whose sizes differ by more than this factor get a note."""

_EXAMPLES = 3
"""How many examples a note gives."""

_one_large_image = threading.Lock()


# --- damage ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ImageCheck:
    """The result of checking one image.

    Attributes:
        digest: Content hash; empty if the file cannot be opened.
        fault: Why the image cannot be used; None if it can.
    """

    digest: str
    fault: str | None


def check_image(
    content: ImageContent | EaseError, name: str = "", limits: ImageLimits = LIMITS
) -> ImageCheck:
    """Check whether an image can be decoded, down to the last byte of its file.

    Args:
        content: A file, the bytes of a file, or pixels; an error if the image could not even be taken in.
        name: What messages call the image; a file without a name is called by its path.
        limits: The largest image that is accepted.
    """
    if isinstance(content, EaseError):
        return ImageCheck("", str(content))
    if isinstance(content, Tensor):
        return ImageCheck(content_digest(content), None)
    digest = ""
    try:
        if isinstance(content, Path):
            name = name or str(content)
        content = read_bytes_of(content, name)
        digest = content_hash(content)
        check_decodable(content, name, limits)
    except EaseError as error:
        return ImageCheck(digest, str(error))
    return ImageCheck(digest, None)


def check_images(
    contents: Sequence[ImageContent | EaseError], names: Sequence[str] | None = None
) -> list[ImageCheck]:
    """Check several images in parallel, see `check_image`.

    Args:
        contents: The images.
        names: What messages call them; files without names are called by their paths.

    Returns:
        One result per image, in the same order.
    """
    with decoding_threads(4) as pool:  # decoding releases the interpreter lock
        return list(pool.map(check_image, contents, names or [""] * len(contents)))


def check_upload(path: Path, name: str, limits: ImageLimits, *, decode: bool = True) -> None:
    """Raise an error for a file from outside that is too large or damaged.

    Large images are decoded one at a time, because each of them may need a gigabyte of memory.

    Args:
        path: Where the file was stored.
        name: What messages call the image.
        limits: The largest image that is accepted.
        decode: Whether to decode the image; without it, only its size is checked.

    Raises:
        TooLargeError: The image exceeds a limit.
        EaseError: The image is damaged or not an image.
    """
    pixels = count_pixels(path, name, limits)
    if decode:
        with _one_large_image if pixels > LARGE_IMAGE_PIXELS else nullcontext():
            check_decodable(path.read_bytes(), name, limits)


# --- duplicates -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelledDigest:
    """What the search for duplicates needs to know of an image.

    Attributes:
        digest: Content hash.
        label: The class of the image.
        name: What messages call the image.
    """

    digest: str
    label: int
    name: str


@dataclass(frozen=True)
class Duplicates:
    """Images with equal content.

    Attributes:
        copies: Class -> how many of its training images repeat an earlier one of the class.
        between_classes: Two classes -> for each content that both have, the first image of it in each.
        between_parts: (test image, training image with the same content).
        distinct: Class -> how many different images it has.
    """

    copies: Counter[int]
    between_classes: dict[tuple[int, int], list[tuple[str, str]]]
    between_parts: list[tuple[str, str]]
    distinct: Counter[int]

    def notes(self, class_names: Sequence[str]) -> list[str]:
        """One line on copies within classes, and one for each two classes that share images."""
        notes = []
        if total := self.copies.total():
            most = ", ".join(f"{class_names[c]}: {n}" for c, n in self.copies.most_common(_EXAMPLES) if n)
            copies = "exact copy" if total == 1 else "exact copies"
            notes.append(f"{total:,} {copies} of other images in the same class ({most}): each copy counts")
        for (first, second), pairs in sorted(self.between_classes.items()):
            examples = ", ".join(f"{one} = {other}" for one, other in pairs[:_EXAMPLES])
            examples += " ..." if len(pairs) > _EXAMPLES else ""
            both = f"both '{class_names[first]}' and '{class_names[second]}'"
            images = "1 image is" if len(pairs) == 1 else f"{len(pairs):,} images are"
            notes.append(f"{images} in {both} ({examples}): one of the labels must be wrong")
        return notes


def find_duplicates(train: Iterable[LabelledDigest], test: Iterable[LabelledDigest] = ()) -> Duplicates:
    """Find images with equal content within classes, between classes, and between train and test.

    Args:
        train: The training images.
        test: The test images.
    """
    train, test = list(train), list(test)
    copies: Counter[int] = Counter()
    first_train: dict[str, str] = {}
    owners: dict[str, dict[int, str]] = defaultdict(dict)  # digest -> class -> first image
    seen: set[tuple[str, int]] = set()
    for image in train:
        copies[image.label] += (image.digest, image.label) in seen
        seen.add((image.digest, image.label))
        first_train.setdefault(image.digest, image.name)
    for image in (*train, *test):
        owners[image.digest].setdefault(image.label, image.name)
    between: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
    for classes in owners.values():
        for first, second in combinations(sorted(classes), 2):
            between[first, second].append((classes[first], classes[second]))
    distinct = Counter(label for classes in owners.values() for label in classes)
    parts = [(image.name, first_train[image.digest]) for image in test if image.digest in first_train]
    return Duplicates(copies, dict(between), parts, distinct)


# --- class sizes ----------------------------------------------------------------------------------


def size_notes(sizes: Mapping[str, int]) -> list[str]:
    """One line each on classes that differ much in size, and on classes with few images.

    Args:
        sizes: Class name -> number of images; at least one class.
    """
    notes = []
    small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[large] > IMBALANCE * sizes[small]:
        notes.append(
            f"classes differ a lot in size: '{large}' has {sizes[large]:,} images, '{small}' {sizes[small]:,}"
        )
    few = [f"{name}: {count}" for name, count in sizes.items() if count < FEW_IMAGES]
    if few:
        notes.append(f"fewer than {FEW_IMAGES} images ({list_names(few)}): more images would help")
    return notes
