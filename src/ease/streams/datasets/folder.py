"""`folder`: your own images, in class folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ease.errors import EaseError
from ease.streams.datasets.registry import DatasetLoader, DatasetRequest
from ease.streams.images import ImageSet, chosen_by_content
from ease.streams.intake.checks import check_images
from ease.streams.intake.decode import MixedSource, content_digest
from ease.streams.intake.scan import Classes, FolderScan, Unreadable, scan_folder
from ease.streams.stream import Dataset

TEST_SHARE = 0.2
"""How much of a class becomes test images where the folder has no test/ of its own."""


class ImageFolder(DatasetLoader):
    """train/CLASS and test/CLASS (or val/CLASS), or CLASS folders."""

    name = "folder"
    about = "your own images: train/CLASS and test/CLASS, or CLASS folders (a fifth is used for testing)"

    def load(self, request: DatasetRequest) -> Dataset:
        """See `read_folder`."""
        return read_folder(request.folder(self.name), self.name, request.unreadable, request.limit)

    def content_to_check(self, request: DatasetRequest) -> FolderScan:
        """See `DatasetLoader`."""
        return scan_folder(request.folder(self.name), "skip", keep_empty=True)


def read_folder(
    root: Path, name: str = "folder", unreadable: Unreadable = "refuse", limit: int | None = None
) -> Dataset:
    """Read a folder of class folders, see `scan_folder` and `dataset_from_scan`.

    Args:
        root: The folder.
        name: Name of the dataset.
        unreadable: What to do with an image that cannot be used.
        limit: At most this many train and as many test images per class.
    """
    return dataset_from_scan(scan_folder(root, unreadable), name, limit)


def dataset_from_scan(
    scan: FolderScan,
    name: str,
    limit: int | None = None,
    *,
    keep_order: bool = False,
    min_classes: int = 2,
) -> Dataset:
    """Make a dataset of the files that were found in a folder.

    Every image that is used is decoded once, so that a damaged file is found now and not in the middle of training.
    Without a test folder, a fifth of each class is used for testing.

    Args:
        scan: The files found. Classes and files keep their order.
        name: Name of the dataset.
        limit: At most this many train and as many test images per class.
        keep_order: Never shuffle the classes.
        min_classes: Raise an error if there are fewer classes.

    Raises:
        EaseError: There are too few classes, a class has no image, or an image cannot be used.
    """
    names = tuple(scan.train)
    if len(names) < min_classes:
        found = f"only the class '{names[0]}'" if names else "no class folder"
        hint = " (if it is not a class, it needs a test/ beside it)" if names == ("train",) else ""
        raise EaseError(
            f"folder '{scan.root}' has {found}{hint}: "
            f"make one folder of images for each of at least {min_classes} classes"
        )
    if scan.test is None:
        everything = {c: _readable(scan, paths) for c, paths in scan.train.items()}
        train, test = _split(everything, limit)
        scan.notes.append(
            f"no test/ found: {TEST_SHARE:.0%} of each class, chosen by content, is used for testing"
        )
    else:
        for unknown in (c for c in scan.test if c not in scan.train):
            raise EaseError(f"test class '{unknown}' in '{scan.root}' is not in train/: add or remove it")
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
        keep_order=keep_order,
        notes=(*scan.notes, *scan.skipped_notes()),
    )


def _readable(scan: FolderScan, paths: list[Path], limit: int | None = None) -> list[Path]:
    """The first `limit` files that can be decoded; those after them are not opened."""
    wanted = len(paths) if limit is None else limit
    found: list[Path] = []
    while paths and len(found) < wanted:
        here, paths = paths[: wanted - len(found)], paths[wanted - len(found) :]
        for path, check in zip(here, check_images(here), strict=True):
            if check.fault is None:
                found.append(path)
            else:
                scan.refuse_or_skip(path, check.fault)
    return found


def _split(classes: Classes, limit: int | None) -> tuple[Classes, Classes]:
    """Train and test images of each class, chosen by content, so that the names of files do not matter.

    Equal files are in the same part; a class with two different images has at least one for testing.
    """
    train: Classes = {}
    test: Classes = {}
    for name, paths in classes.items():
        digests = [content_digest(path) for path in paths]
        chosen = chosen_by_content(digests, TEST_SHARE)
        train[name] = [p for p, digest in zip(paths, digests, strict=True) if digest not in chosen][:limit]
        test[name] = [p for p, digest in zip(paths, digests, strict=True) if digest in chosen][:limit]
    return train, test


def _image_set(classes: Classes) -> ImageSet:
    paths = [path for own in classes.values() for path in own]
    labels = np.repeat(np.arange(len(classes)), [len(own) for own in classes.values()])
    return ImageSet(MixedSource(paths), np.arange(len(paths)), labels.astype(np.int64))
