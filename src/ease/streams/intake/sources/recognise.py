"""Which source a path stands for: class folders, a table, a COCO file, a dataset of Hugging Face, or shards."""

from __future__ import annotations

import glob
import re
from collections.abc import Sequence
from pathlib import Path

from ease.errors import EaseError
from ease.filesystem import expanded, is_folder, shown, what_is
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources.arrow import (
    HUB,
    from_arrow_files,
    from_hub,
    from_saved_dataset,
    has_images,
    is_saved_dataset,
)
from ease.streams.intake.sources.candidates import Candidates
from ease.streams.intake.sources.coco import from_coco
from ease.streams.intake.sources.folder import from_folder
from ease.streams.intake.sources.places import AllowUrls
from ease.streams.intake.sources.rows import TABLES
from ease.streams.intake.sources.shards import from_shards
from ease.streams.intake.sources.table import from_table

MAX_SHARDS = 100_000
_BRACES = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")


def find_source(
    source: Path | str | None,
    labels: Path | str | None = None,
    *,
    root: Path | str | None = None,
    columns: Sequence[str] | None = None,
    allow_urls: AllowUrls = False,
    unreadable: Unreadable = "refuse",
) -> Candidates:
    """List the images of whatever a path stands for.

    Args:
        source: Class folders; a table (`.csv`, `.tsv`, `.jsonl`, `.parquet`); a COCO file (`.json`); a folder written
            by `save_to_disk` or `hf:NAME`; shards (`.tar`, also `shard-{000..009}.tar` or a glob). With `labels`,
            the folder that the paths of the labels begin at.
        labels: A table or a COCO file.
        root: The folder that relative paths of a table or COCO file begin at; its own folder if None.
        columns: The names of the columns of paths (or images) and labels, where they are not recognised.
        allow_urls: Whether http and https addresses in tables are fetched; `private` allows private networks, too.
        unreadable: What to do with images that cannot be used.

    Returns:
        The images, which have not been decoded yet.
    """
    if labels is not None:
        if source is not None and root is not None:
            raise EaseError(
                f"the images of '{shown(labels)}' are in two places: give the folder or --root, not both"
            )
        if source is not None and not is_folder(expanded(source)):
            raise EaseError(
                f"'{shown(source)}' is not a folder: give the one that the paths of the labels begin at"
            )
        source, root = labels, source if source is not None else root
    if source is None:
        raise EaseError("there is nothing to look at: give a folder of photos, or a table with --labels")
    ending = Path(source).suffix.lower()
    is_table = labels is not None or ending in TABLES or ending == ".json"
    if not is_table and (root is not None or allow_urls):
        option = "--root" if root is not None else "--allow-urls"
        raise EaseError(f"{option} belongs to a table of images, and '{shown(source)}' is none: leave it out")
    if is_table and what_is(expanded(source)) == "missing":
        raise EaseError(f"table '{shown(source)}' does not exist: check the path")
    if is_table and ending == ".json":
        _no_columns(columns, source)
        return from_coco(source, root, unreadable, allow_urls)
    if is_table and not (ending == ".parquet" and has_images(expanded(source))):
        return from_table(source, root, columns, unreadable, allow_urls)
    if is_table:
        return from_arrow_files([expanded(source)], columns, unreadable)
    return _without_paths(source, columns, unreadable)


def _without_paths(source: Path | str, columns: Sequence[str] | None, unreadable: Unreadable) -> Candidates:
    """A source that holds the images themselves."""
    if str(source).startswith(HUB) and what_is(source) == "missing":
        return from_hub(str(source), columns, unreadable)
    place = expanded(source)
    if is_folder(place) and is_saved_dataset(place):
        return from_saved_dataset(place, columns, unreadable)
    _no_columns(columns, source)
    if place.suffix.lower() == ".tar" and not is_folder(place):
        return from_shards(shard_files(place), unreadable)
    return from_folder(place, unreadable)


def shard_files(pattern: Path | str) -> list[Path]:
    """The tar files that a path, a glob or a range such as `shard-{000..009}.tar` stands for.

    Example:
        >>> [path.name for path in shard_files("shard-{08..10}.tar")]
        ['shard-08.tar', 'shard-09.tar', 'shard-10.tar']
    """
    text = str(pattern)
    if what_is(text) == "file":
        return [Path(text)]
    if found := _BRACES.search(text):
        first, last = int(found[1]), int(found[2])
        if _BRACES.search(text, found.end()) or not 0 <= last - first < MAX_SHARDS:
            raise EaseError(
                f"'{shown(text)}' is not one range of at most {MAX_SHARDS:,} shards: write it out"
            )
        names = (f"{number:0{len(found[1])}d}" for number in range(first, last + 1))
        return [Path(text[: found.start()] + name + text[found.end() :]) for name in names]
    matches = sorted(glob.glob(text)) if glob.has_magic(text) else [text]
    if not matches:
        raise EaseError(f"no file matches '{shown(text)}': check the path")
    return [Path(match) for match in matches]


def _no_columns(columns: Sequence[str] | None, source: Path | str) -> None:
    if columns is not None:
        raise EaseError(f"--columns belongs to a table, and '{shown(source)}' is none: leave it out")
