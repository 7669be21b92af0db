"""Labels in the form of COCO as a source: a JSON file with images, annotations and categories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ease.documents import parse_json
from ease.errors import EaseError
from ease.filesystem import expanded, read_bytes, shown
from ease.streams.intake.decode import ImageContent
from ease.streams.intake.limits import MB
from ease.streams.intake.names import display_name
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources.candidates import Candidates, Gathered
from ease.streams.intake.sources.places import AllowUrls, Places
from ease.streams.intake.sources.table import label_text, shown_image

MAX_BYTES = 512 * MB
"""Size of the JSON file. The largest of COCO itself has 470 MB."""


def from_coco(
    path: Path | str,
    root: Path | str | None = None,
    unreadable: Unreadable = "refuse",
    allow_urls: AllowUrls = False,
) -> Candidates:
    """List the images of a COCO file, each of which has one category.

    Args:
        path: The JSON file: `images` with `id` and `file_name`, `annotations` with `image_id` and `category_id`,
            `categories` with `id` and `name`.
        root: The folder that file names begin at; the folder of the JSON file if None. They never lead out of it.
        unreadable: What to do with images that cannot be used, such as one with two categories.
        allow_urls: Whether http and https addresses are fetched.

    Returns:
        The images; classes in the order of their names. Images without an annotation are left out with a note.
    """
    path = expanded(path)
    where = f"'{shown(path)}'"
    value = _read(path)
    categories = {
        _id(each, "id", f"{where}, categories[{i}]"): each.get("name")
        for i, each in enumerate(_entries(value, "categories", where))
    }
    labels: dict[Any, set[Any]] = {}
    for i, each in enumerate(_entries(value, "annotations", where)):
        here = f"{where}, annotations[{i}]"
        category = _id(each, "category_id", here)
        if category not in categories:
            raise EaseError(f"{here}: there is no category {display_name(str(category))}: repair the file")
        labels.setdefault(_id(each, "image_id", here), set()).add(category)
    places, gathered, without = (
        Places(path.parent if root is None else expanded(root), allow_urls),
        Gathered(unreadable),
        0,
    )
    for i, each in enumerate(_entries(value, "images", where)):
        here = f"images[{i}] of {path.name}"
        own = labels.get(_id(each, "id", f"{where}, images[{i}]"), set())
        if not own:
            without += 1
            continue
        name = f"{display_name(str(each.get('file_name')))} ({here})"
        try:
            if len(own) > 1:
                several = ", ".join(sorted(display_name(str(categories[one])) for one in own))
                raise EaseError(
                    f"'{display_name(str(each.get('file_name')))}' has several categories ({several}): keep one"
                )
            image = places.image(each.get("file_name"))
            gathered.add(
                label_text(categories[next(iter(own))]), name, image, f"{shown_image(image)} ({here})"
            )
        except EaseError as error:
            gathered.leave_out(name, f"{here}: {error}")
    if without:
        gathered.notes.append(f"left out {without:,} images of {path.name} without an annotation")
    if not gathered:
        raise EaseError(f"{where} has no image with an annotation: give labels in the form of COCO")
    return gathered.candidates()


def coco_images(path: Path, places: Places) -> Iterator[tuple[str, ImageContent | EaseError]]:
    """The images of a COCO file without their labels, in the order of the file.

    Args:
        path: The JSON file; only `images` with `file_name` is needed.
        places: Turns file names into images.

    Yields:
        The file name, and the image or the error that says why there is none.
    """
    for i, each in enumerate(_entries(_read(path), "images", f"'{shown(path)}'")):
        name = each.get("file_name")
        try:
            yield str(name), places.image(name)
        except EaseError as error:
            yield str(name or ""), EaseError(f"images[{i}] of {path.name}: {error}")


def _read(path: Path) -> dict[str, Any]:
    where = f"'{shown(path)}'"
    value = parse_json(read_bytes(path, MAX_BYTES), where, "give labels in the form of COCO")
    if not isinstance(value, dict):
        raise EaseError(f"{where} has no images, annotations and categories: give labels in the form of COCO")
    return value


def _entries(value: dict[str, Any], key: str, where: str) -> Sequence[dict[str, Any]]:
    entries = value.get(key)
    if not isinstance(entries, list):
        raise EaseError(f"{where} has no list '{key}': give labels in the form of COCO")
    for i, each in enumerate(entries):
        if not isinstance(each, dict):
            raise EaseError(f"{where}, {key}[{i}]: it is not an object: repair the file")
    return entries


def _id(entry: dict[str, Any], key: str, where: str) -> int | str:
    value = entry.get(key)
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise EaseError(f"{where}: '{key}' is neither a number nor text: repair the file")
    return value
