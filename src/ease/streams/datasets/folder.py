"""Your own images: a folder of class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ease.errors import EaseError
from ease.streams.datasets.registry import Request, Unreadable, dataset
from ease.streams.images import ImageSet, chosen_by_content
from ease.streams.intake.decode import FileSource, check_files, file_digest
from ease.streams.intake.scan import Classes, FolderScan, scan_folder
from ease.streams.stream import Augmentation, Dataset

__all__ = ["FileSource", "dataset_of", "read_folder", "scan_folder"]

TEST_SHARE = 0.2
"""How much of a class becomes test images where the folder has no test/ of its own."""


def examine_folder(request: Request) -> FolderScan:
    """The files a check looks at."""
    return scan_folder(request.folder("folder"), "skip", keep_empty=True)


@dataset(
    "folder",
    "your own images: train/CLASS and test/CLASS, or CLASS folders (a fifth is for testing)",
    examine_folder,
)
def load_folder(request: Request) -> Dataset:
    """The folder at the root given."""
    return read_folder(request.folder("folder"), "folder", request.unreadable, request.limit)


def read_folder(
    root: Path, name: str = "folder", unreadable: Unreadable = "refuse", limit: int | None = None
) -> Dataset:
    """Read `train/CLASS/**` and `test/CLASS/**` (or `val/`), or `CLASS/**`; see `dataset_of`."""
    return dataset_of(scan_folder(root, unreadable), name, limit)


def dataset_of(
    scan: FolderScan,
    name: str,
    limit: int | None = None,
    *,
    augmentation: Augmentation | None = None,
    keep_order: bool = False,
    fewest_classes: int = 2,
) -> Dataset:
    """The dataset in a folder. Classes and files come in the order of their names.

    Every image that is used is decoded once here: a damaged file stops the work now, not in mid-training.

    Args:
        scan: the files found.
        name: of the dataset.
        limit: at most this many train and as many test images per class.
        augmentation: of training images; the usual one if left out.
        keep_order: never shuffle the classes.
        fewest_classes: refuse a folder with fewer.
    """
    names = tuple(scan.train)
    if len(names) < fewest_classes:
        found = f"only the class '{names[0]}'" if names else "no class folder"
        hint = " (if it is no class, it needs a test/ beside it)" if names == ("train",) else ""
        raise EaseError(
            f"folder '{scan.root}' has {found}{hint}: "
            f"make one folder of images for each of at least {fewest_classes} classes"
        )
    if scan.test is None:
        everything = {c: _readable(scan, paths) for c, paths in scan.train.items()}
        train, test = _split(everything, limit)
        scan.notes.append(
            f"no test/ found: {TEST_SHARE:.0%} of each class, chosen by content, is for testing"
        )
    else:
        for stranger in (c for c in scan.test if c not in scan.train):
            raise EaseError(f"test class '{stranger}' in '{scan.root}' is not in train/: add or remove it")
        train = {c: _readable(scan, paths, limit) for c, paths in scan.train.items()}
        test = {c: _readable(scan, scan.test.get(c, []), limit) for c in names}
    for c in names:
        if not train[c]:
            raise EaseError(f"class '{c}' in '{scan.root}' has no readable image: add some or remove it")
    untested = [c for c in names if not test[c]]
    if untested:
        scan.notes.append(
            f"{len(untested)} of {len(names)} classes have no test image: {', '.join(untested)}"
        )
    return Dataset(
        name=name,
        class_names=names,
        train=_image_set(train),
        test=_image_set(test),
        augmentation=augmentation or Augmentation(),
        keep_order=keep_order,
        notes=(*scan.notes, *scan.left_out()),
    )


def _readable(scan: FolderScan, paths: list[Path], limit: int | None = None) -> list[Path]:
    """The first `limit` files that decode; those behind them are not opened."""
    wanted = len(paths) if limit is None else limit
    found: list[Path] = []
    while paths and len(found) < wanted:
        here, paths = paths[: wanted - len(found)], paths[wanted - len(found) :]
        for path, checked in zip(here, check_files(here), strict=True):
            if checked.fault is None:
                found.append(path)
            else:
                scan.refuse_or_skip(path, checked.fault)
    return found


def _split(classes: Classes, limit: int | None) -> tuple[Classes, Classes]:
    """A fifth of each class for testing, chosen by content: renaming files changes nothing.

    Equal files are on the same side; a class with two different images has at least one for testing.
    """
    train: Classes = {}
    test: Classes = {}
    for name, paths in classes.items():
        digests = [file_digest(path) for path in paths]
        chosen = chosen_by_content(digests, TEST_SHARE)
        train[name] = [p for p, digest in zip(paths, digests, strict=True) if digest not in chosen][:limit]
        test[name] = [p for p, digest in zip(paths, digests, strict=True) if digest in chosen][:limit]
    return train, test


def _image_set(classes: Classes) -> ImageSet:
    paths = [path for own in classes.values() for path in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])
    return ImageSet(FileSource(paths), np.arange(len(paths)), labels.astype(np.int64))
