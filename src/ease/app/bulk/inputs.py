"""From files, folders, globs, lists, tables, datasets and videos to a stream of images, always in the same order."""

from __future__ import annotations

import codecs
import glob
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from ease.errors import EaseError
from ease.filesystem import expanded, explained, is_file, is_folder, shown, what_is
from ease.streams.intake.decode import ImageContent
from ease.streams.intake.formats import IMAGE_EXTENSIONS
from ease.streams.intake.scan import existing, no_image, walk_images
from ease.streams.intake.sources.arrow import arrow_images, has_images, is_saved_dataset, saved_files
from ease.streams.intake.sources.coco import coco_images
from ease.streams.intake.sources.places import MAX_PATH, AllowUrls, Places
from ease.streams.intake.sources.recognise import shard_files
from ease.streams.intake.sources.rows import Table
from ease.streams.intake.sources.shards import shard_images
from ease.streams.intake.sources.table import table_images
from ease.streams.intake.sources.video import VIDEO_EXTENSIONS, is_video, video_frames

LIST_ENDINGS = (".txt", ".lst")
_PIECE = 64 * 1024


@dataclass(frozen=True)
class Input:
    """One image to predict.

    Attributes:
        name: What its row is called: the path as it was given, or VIDEO#FRAME.
        content: The image, which has not been decoded yet, or the reason why there is none.
    """

    name: str
    content: ImageContent | EaseError


def place_inputs(places: Sequence[Path | str], every: int | None = None) -> Iterator[Input]:
    """The images of files, folders and globs. Folders are walked while their images are used, never listed as a whole.

    Args:
        places: Images, videos, folders (searched at any depth), patterns such as `photos/**/*.jpg`, shards (`.tar`) and
            folders that `save_to_disk` wrote.
        every: Take each n-th frame of videos; without it a video is an error, and folders are searched for images.

    Raises:
        EaseError: At once, if a place does not exist or has no image in it.
    """
    streams = [_place(str(place), every) for place in places]
    return chain.from_iterable(streams)


def listed_inputs(
    file: BinaryIO, *, nul: bool = False, every: int | None = None, allow_urls: AllowUrls = False
) -> Iterator[Input]:
    """The images of a list of paths. A path that does not exist is a row with an error, not the end.

    Args:
        file: The list, one path per line; empty lines are left out.
        nul: Whether paths end with a NUL byte in place of a line break, as `find -print0` writes them.
        every: As for `place_inputs`.
        allow_urls: Whether http and https addresses are fetched.
    """
    places = Places(Path(), allow_urls, keep=False, confined=False)
    for text in _separated(file, b"\0" if nul else b"\n"):
        try:
            yield from _image(text, places.image(text), every)
        except EaseError as error:
            yield Input(text, error)


def table_inputs(
    path: Path | str,
    *,
    root: Path | str | None = None,
    column: str | None = None,
    every: int | None = None,
    allow_urls: AllowUrls = False,
) -> Iterator[Input]:
    """The images of a table of paths, see `ease.streams.intake.sources.table`. Rows are called by their paths.

    Args:
        path: The table, `.csv`, `.tsv`, `.jsonl` or `.parquet`.
        root: The folder that relative paths begin at; the folder of the table if None.
        column: The name of the column of paths, where it is not recognised.
        every: As for `place_inputs`.
        allow_urls: Whether http and https addresses are fetched.
    """
    table = Table(expanded(path))
    places = Places(table.path.parent if root is None else expanded(root), allow_urls, keep=False)
    for _, text, image in table_images(table, places, column):
        yield from _image(text, image, every)


def source_inputs(
    source: Path | str,
    *,
    root: Path | str | None = None,
    column: str | None = None,
    every: int | None = None,
    allow_urls: AllowUrls = False,
) -> Iterator[Input]:
    """The images of whatever a path or a pattern stands for, whether it has labels or not.

    Args:
        source: A table as for `table_inputs`; a list of paths, `.txt` or `.lst`; a COCO file (`.json`); a folder that
            `save_to_disk` wrote or a Parquet file with images in it; shards (`.tar`, also `shard-{000..009}.tar` or a
            glob); or a folder, a file or a glob of images.
        root: The folder that relative paths of a table or COCO file begin at; its own folder if None.
        column: The name of the column of paths or of images, where it is not recognised.
        every: As for `place_inputs`.
        allow_urls: Whether http and https addresses in a table, a list or a COCO file are fetched.

    Raises:
        EaseError: At once, if the source does not exist, or an option does not belong to it.
    """
    path, ending = expanded(source), Path(source).suffix.lower()
    saved = is_folder(path) and is_saved_dataset(path)
    if saved or (ending == ".parquet" and is_file(path) and has_images(path)):
        _without(source, root=root, allow_urls=allow_urls)
        return _begun(_stored(arrow_images(saved_files(path) if saved else [path], column)), path)
    if ending == ".tar" and not is_folder(path):
        _without(source, root=root, allow_urls=allow_urls, column=column)
        return _begun(_stored(shard_images([existing(shard) for shard in shard_files(path)])), path)
    if ending == ".json":
        _without(source, column=column)
        places = Places(path.parent if root is None else expanded(root), allow_urls, keep=False)
        found = (_image(name, image, every) for name, image in coco_images(existing(path), places))
        return _begun(chain.from_iterable(found), path)
    if is_folder(path) or glob.has_magic(str(source)):
        _without(source, root=root, allow_urls=allow_urls, column=column)
        return place_inputs([str(source)], every)
    if ending in LIST_ENDINGS:
        _without(source, root=root, column=column)
        return _list(existing(path), every, allow_urls)
    if ending in IMAGE_EXTENSIONS or ending in VIDEO_EXTENSIONS:
        _without(source, root=root, allow_urls=allow_urls, column=column)
        return place_inputs([str(source)], every)
    return table_inputs(source, root=root, column=column, every=every, allow_urls=allow_urls)


def _without(source: Path | str, **options: object) -> None:
    """Refuse options that do not belong to this source."""
    for name, value in options.items():
        if value:
            option = f"--{name.replace('_', '-')}"
            raise EaseError(
                f"{option} belongs to a table of images, and '{shown(source)}' is none: leave it out"
            )


def _stored(images: Iterable[tuple[str, ImageContent | EaseError]]) -> Iterator[Input]:
    return (Input(name, image) for name, image in images)


def _list(path: Path, every: int | None, allow_urls: AllowUrls) -> Iterator[Input]:
    with explained("read", path), open(path, "rb") as file:
        yield from listed_inputs(file, every=every, allow_urls=allow_urls)


def _place(place: str, every: int | None) -> Iterator[Input]:
    if (place.lower().endswith(".tar") and not is_folder(place)) or is_saved_dataset(expanded(place)):
        return source_inputs(place)
    if what_is(place) == "missing" and glob.has_magic(place):
        # Sorted, so that a command that is repeated sees the same order. Only names are held.
        matches = sorted(glob.glob(place, recursive=True))
        if not matches:
            raise EaseError(f"nothing matches '{shown(place)}': check the pattern")
        return chain.from_iterable(_place(match, every) for match in matches if not is_folder(match))
    path = existing(expanded(place))
    if not is_folder(path):
        if is_video(path) and every is None:
            raise EaseError(f"'{shown(path)}' is a video: say which frames to look at, such as --every 30")
        return _image(str(path), path, every)
    return _begun(_folder(path, every), path)


def _begun(found: Iterator[Input], path: Path) -> Iterator[Input]:
    """The same inputs; the first one is read at once, so that a source without any is an error from the beginning."""
    first = next(found, None)
    if first is None:
        raise no_image(path)
    return chain([first], found)


def _folder(folder: Path, every: int | None) -> Iterator[Input]:
    bad: list[Input] = []

    def note(path: Path, why: str) -> None:
        bad.append(Input(str(path), EaseError(why)))

    for path in walk_images(folder, VIDEO_EXTENSIONS if every else frozenset(), note):
        yield from bad
        bad.clear()
        yield from _image(str(path), path, every)
    yield from bad


def _image(name: str, image: ImageContent | EaseError, every: int | None) -> Iterator[Input]:
    """An image, or the frames of a video."""
    if not isinstance(image, Path) or not is_video(image):
        yield Input(name, image)
        return
    if every is None:
        yield Input(name, EaseError(f"'{name}' is a video: say which frames to look at, such as --every 30"))
        return
    try:
        for frame, pixels in video_frames(image, every):
            yield Input(f"{name}#{frame}", pixels)
    except EaseError as error:
        yield Input(name, error)


def _separated(file: BinaryIO, end: bytes) -> Iterator[str]:
    """The non-empty texts between two ends, read piece by piece."""
    rest = b""
    for number, piece in enumerate(iter(lambda: file.read(_PIECE), b"")):
        if number == 0:
            if piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise EaseError("the list is text in UTF-16: save it as UTF-8")
            piece = piece.removeprefix(codecs.BOM_UTF8)
        *whole, rest = (rest + piece).split(end)
        yield from (_text(each) for each in whole if each.strip())
        if len(rest) > 16 * MAX_PATH:
            raise EaseError(f"the list has a path of more than {16 * MAX_PATH} bytes: is it a list of paths?")
    if rest.strip():
        yield _text(rest)


def _text(line: bytes) -> str:
    """A path, whatever bytes are in it."""
    return os.fsdecode(line.removesuffix(b"\r"))
