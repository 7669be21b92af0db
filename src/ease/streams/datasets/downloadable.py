"""CIFAR-100 (Krizhevsky 2009), from class folders or from the official python archive."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ease.errors import EaseError
from ease.streams.datasets._registry import Request, dataset
from ease.streams.datasets._scan import FolderScan, scan_folder
from ease.streams.datasets.folder import dataset_of
from ease.streams.images import ImageSet
from ease.streams.stream import Dataset

CLASSES, TRAIN, TEST = 100, 500, 100
"""Of the whole dataset: classes, train and test images of each."""


@dataset(
    "cifar100",
    "CIFAR-100, 32x32, 100 classes, 50,000 train / 10,000 test: class folders or torchvision's files",
)
def load_cifar100(request: Request) -> Dataset:
    """Class folders if the root has a train/ and a test/, else torchvision's files under it.

    Both give CIFAR's own label order, which is the alphabetical one of the class names.
    """
    root = request.folder("cifar100")
    if (root / "train").is_dir():
        scan = scan_folder(root, request.unreadable)
        return dataset_of(scan, _name(scan), request.limit)
    return _official(root, request.download)


def _name(scan: FolderScan) -> str:
    """A smaller CIFAR-100 is no damage, but its figures are not CIFAR-100's, so it gets a name of its own."""
    train = [len(paths) for paths in scan.train.values()]
    test = [len(paths) for paths in (scan.test or {}).values()]
    if (len(train), sum(train), sum(test)) == (CLASSES, CLASSES * TRAIN, CLASSES * TEST):
        return "cifar100"
    name = f"cifar100-{train[0]}" if len(set(train)) == 1 and len(train) == CLASSES else "cifar100-subset"
    scan.notes.append(
        f"a subset of CIFAR-100: {len(train)} of {CLASSES} classes, "
        f"{sum(train):,} of {CLASSES * TRAIN:,} train and {sum(test):,} of {CLASSES * TEST:,} test images; "
        f"its figures are not CIFAR-100's, so they are called {name}'s"
    )
    return name


def _official(root: Path, download: bool) -> Dataset:
    """The official files. torchvision unpickles them, but only after the MD5 of each one has matched."""
    import ease.torchvision_cure  # noqa: F401

    # isort: split
    from torchvision.datasets import CIFAR100

    try:
        train, test = (CIFAR100(str(root), train=part, download=download) for part in (True, False))
    except (OSError, RuntimeError) as error:
        how = "the download failed" if download else "nothing was downloaded"
        raise EaseError(
            f"CIFAR-100 is not in '{root}' ({how}): put train/CLASS and test/CLASS there, or the unpacked "
            "cifar-100-python of https://www.cs.toronto.edu/~kriz/cifar.html, or allow the download (--download)"
        ) from error
    images = [ImageSet.of_arrays(np.ascontiguousarray(d.data), d.targets) for d in (train, test)]
    return Dataset("cifar100", tuple(train.classes), images[0], images[1])
