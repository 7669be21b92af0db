"""Small images that torchvision can fetch: CIFAR-10, CIFAR-100, Fashion-MNIST; its files or class folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ease.errors import EaseError
from ease.filesystem import entries, exists, is_folder, shown
from ease.streams.datasets.folder import dataset_of
from ease.streams.datasets.published import PUBLISHED, recognise
from ease.streams.datasets.registry import DamagedError, Request, dataset
from ease.streams.images import ImageSet
from ease.streams.intake.names import numeric_order
from ease.streams.intake.scan import Classes, FolderScan, scan_folder
from ease.streams.stream import Dataset

KINDS = {"cifar10": "CIFAR10", "cifar100": "CIFAR100", "fashion-mnist": "FashionMNIST"}
"""Our names -> torchvision's classes."""


def load_downloadable(name: str, request: Request) -> Dataset:
    """Class folders if the root has a train/, else torchvision's files under it. Both have the official label order."""
    root = request.folder(name, _expected(name))
    if not is_folder(root / "train"):
        return _official(name, root, request.download)
    scan = scan_folder(root, request.unreadable)
    names = _in_official_order(name, scan)
    sizes = [[len(paths) for paths in part.values()] for part in (scan.train, scan.test or {})]
    called, note = recognise(name, *sizes)
    if note is not None:
        scan.notes.append(note)
    return replace(dataset_of(scan, called, request.limit), class_names=names)


def examine_downloadable(name: str, request: Request) -> FolderScan | Dataset:
    """The files a check looks at; torchvision's are whole if they can be loaded."""
    root = request.folder(name, _expected(name))
    if not is_folder(root / "train"):
        return _official(name, root, download=False)
    # CIFAR-100 has a class `train`: such a folder without test/ is a split only if no class lies beside it.
    alone = all(path.name == "train" for path in entries(root) if path.is_dir())
    return scan_folder(root, "skip", split=alone, keep_empty=True)


def _in_official_order(name: str, scan: FolderScan) -> tuple[str, ...]:
    """Bring the class folders into the order of the official labels; their names. Fashion-MNIST's is not the
    alphabetical one, and a folder cannot be called `T-shirt/top`, so folders may be numbers or close spellings.
    """
    official = [str(c) for c in getattr(_kind(name), "classes", ())]
    known = {_plain(c): c for c in official} | {str(label): c for label, c in enumerate(official)}
    if all(_plain(folder) in known for folder in scan.train) and len(scan.train) <= len(official):
        names = {folder: known[_plain(folder)] for folder in scan.train}
        if len(set(names.values())) == len(names):
            order = sorted(names, key=lambda folder: official.index(names[folder]))
            scan.train = _in_order(scan.train, order)
            return tuple(names[folder] for folder in order)
    scan.train = _in_order(scan.train, numeric_order(list(scan.train)))
    return tuple(scan.train)


def _in_order(classes: Classes, order: Sequence[str]) -> Classes:
    return {name: classes[name] for name in order}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _kind(name: str) -> Any:
    import ease.torchvision_cure  # noqa: F401

    # isort: split
    import torchvision

    kind = getattr(torchvision.datasets, KINDS[name])
    # Old torchvision kept a processed copy of such files, which is loaded unchecked where one lies: never do.
    return type(kind.__name__, (kind,), {"_check_legacy_exist": lambda self: False})


def _official(name: str, root: Path, download: bool) -> Dataset:
    """What torchvision downloads. CIFAR's are pickles: it opens each one only after its MD5 has matched."""
    published, kind = PUBLISHED[name], _kind(name)
    try:
        parts = [_images(kind(str(root), train=train, download=download)) for train in (True, False)]
    except (OSError, RuntimeError, ValueError, AssertionError, LookupError, EOFError) as error:
        there = [folder for folder in published.folders if exists(root / folder)]
        how = "the download failed" if download else "nothing was downloaded"
        how = f"{there[0]} is incomplete or altered" if there else how
        line = f"{published.title} is not in '{shown(root)}' ({how}): {_expected(name)}"
        raise (DamagedError if there else EaseError)(line) from error
    (train, classes), (test, _) = parts
    sizes = [np.bincount(part.labels, minlength=len(classes)).tolist() for part in (train, test)]
    called, note = recognise(name, *sizes)
    return Dataset(called, classes, train, test, notes=() if note is None else (note,))


def _expected(name: str) -> str:
    published = PUBLISHED[name]
    return (
        f"put train/CLASS and test/CLASS there, or the unpacked {published.folders[0]} of {published.source}, "
        "or allow the download (--download)"
    )


def _images(files: Any) -> tuple[ImageSet, tuple[str, ...]]:
    """The images in RGB, and the names of the classes."""
    pixels, labels, classes = np.asarray(files.data), np.asarray(files.targets), tuple(files.classes)
    if not len(labels) or not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError("labels that no class has")
    if pixels.ndim == 3:  # grey
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    return ImageSet.of_arrays(np.ascontiguousarray(pixels), labels), classes


for _name in KINDS:
    dataset(
        _name,
        f"{PUBLISHED[_name].line}: class folders or torchvision's files",
        partial(examine_downloadable, _name),
    )(partial(load_downloadable, _name))
