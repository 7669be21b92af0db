"""Datasets of small images that torchvision can download: CIFAR-10, CIFAR-100, Fashion-MNIST."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ease.errors import EaseError
from ease.filesystem import entries, exists, is_folder, shown
from ease.streams.datasets.dataset_info import DATASET_INFO, identify_variant
from ease.streams.datasets.folder import dataset_from_scan
from ease.streams.datasets.registry import DamagedError, DatasetLoader, DatasetRequest
from ease.streams.images import ImageSet
from ease.streams.intake.names import numeric_order
from ease.streams.intake.scan import Classes, FolderScan, scan_folder
from ease.streams.stream import Dataset


class Downloadable(DatasetLoader):
    """A dataset in torchvision's files, or in class folders. Both give the official order of labels.

    Args:
        name: A name in `DATASET_INFO`.
        torchvision_class: The class of `torchvision.datasets` that reads and downloads it.
    """

    def __init__(self, name: str, torchvision_class: str) -> None:
        self.name = name
        self.about = f"{DATASET_INFO[name].summary}: class folders or torchvision's files"
        self._torchvision_class = torchvision_class

    def load(self, request: DatasetRequest) -> Dataset:
        """Read class folders if there is a train/, otherwise torchvision's files."""
        root = request.folder(self.name, self._expected())
        if not is_folder(root / "train"):
            return self._official(root, request.download)
        scan = scan_folder(root, request.unreadable)
        names = self._in_official_order(scan)
        sizes = [[len(paths) for paths in part.values()] for part in (scan.train, scan.test or {})]
        variant, note = identify_variant(self.name, *sizes)
        if note is not None:
            scan.notes.append(note)
        return replace(dataset_from_scan(scan, variant, request.limit), class_names=names)

    def content_to_check(self, request: DatasetRequest) -> FolderScan | Dataset:
        """See `DatasetLoader`. Files of torchvision are undamaged if they can be loaded."""
        root = request.folder(self.name, self._expected())
        if not is_folder(root / "train"):
            return self._official(root, download=False)
        # CIFAR-100 has a class `train`: such a folder without test/ is a split only if no class lies beside it.
        alone = all(path.name == "train" for path in entries(root) if path.is_dir())
        return scan_folder(root, "skip", layout="split" if alone else "auto", keep_empty=True)

    def _in_official_order(self, scan: FolderScan) -> tuple[str, ...]:
        """Sort the class folders by the official labels, and return the names of the classes.

        Fashion-MNIST's order is not alphabetical, and a folder cannot be called `T-shirt/top`, so folders may be
        called by number or by a similar spelling.
        """
        official = [str(c) for c in getattr(self._reader(), "classes", ())]
        known = {_plain(c): c for c in official} | {str(label): c for label, c in enumerate(official)}
        if all(_plain(folder) in known for folder in scan.train) and len(scan.train) <= len(official):
            names = {folder: known[_plain(folder)] for folder in scan.train}
            if len(set(names.values())) == len(names):
                order = sorted(names, key=lambda folder: official.index(names[folder]))
                scan.train = _in_order(scan.train, order)
                return tuple(names[folder] for folder in order)
        scan.train = _in_order(scan.train, numeric_order(list(scan.train)))
        return tuple(scan.train)

    def _reader(self) -> Any:
        """The class of torchvision."""
        import ease.vision_libraries  # noqa: F401

        # isort: split
        import torchvision

        reader = getattr(torchvision.datasets, self._torchvision_class)
        # Old versions of torchvision kept a processed copy, which would be loaded as a pickle without any check.
        return type(reader.__name__, (reader,), {"_check_legacy_exist": lambda self: False})

    def _official(self, root: Path, download: bool) -> Dataset:
        """Read torchvision's files. CIFAR's are pickles; torchvision opens each only if its MD5 is right."""
        info, reader = DATASET_INFO[self.name], self._reader()
        try:
            parts = [_images(reader(str(root), train=train, download=download)) for train in (True, False)]
        except (OSError, RuntimeError, ValueError, AssertionError, LookupError, EOFError) as error:
            there = [folder for folder in info.folders if exists(root / folder)]
            how = "the download failed" if download else "nothing was downloaded"
            how = f"{there[0]} is incomplete or altered" if there else how
            line = f"{info.title} is not in '{shown(root)}' ({how}): {self._expected()}"
            raise (DamagedError if there else EaseError)(line) from error
        (train, classes), (test, _) = parts
        sizes = [np.bincount(part.labels, minlength=len(classes)).tolist() for part in (train, test)]
        variant, note = identify_variant(self.name, *sizes)
        return Dataset(variant, classes, train, test, notes=() if note is None else (note,))

    def _expected(self) -> str:
        """What should be in the folder, for error messages."""
        info = DATASET_INFO[self.name]
        return (
            f"put train/CLASS and test/CLASS there, or the unpacked {info.folders[0]} of {info.source}, "
            "or allow the download (--download)"
        )


def _in_order(classes: Classes, order: Sequence[str]) -> Classes:
    return {name: classes[name] for name in order}


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


def _images(files: Any) -> tuple[ImageSet, tuple[str, ...]]:
    """The images of one part as RGB, and the names of the classes."""
    pixels, labels, classes = np.asarray(files.data), np.asarray(files.targets), tuple(files.classes)
    if not len(labels) or not 0 <= labels.min() <= labels.max() < len(classes):
        raise ValueError("a label is not that of a class")
    if pixels.ndim == 3:  # grey
        pixels = np.repeat(pixels[..., None], 3, axis=-1)
    return ImageSet.of_arrays(np.ascontiguousarray(pixels), labels), classes
