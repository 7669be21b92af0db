"""Datasets by name: `load_dataset("glyphs")`.

How a dataset is added
----------------------
Write a subclass of `DatasetLoader` with a `name`, a line `about` it, and a method `load` that returns a `Dataset`::

    import numpy as np
    from ease.streams import Dataset, DatasetLoader, DatasetRequest, ImageSet

    class Stripes(DatasetLoader):
        name = "stripes"
        about = "two classes of stripes, 8x8"

        def load(self, request: DatasetRequest) -> Dataset:
            pixels = np.zeros((20, 8, 8, 3), np.uint8)
            pixels[:10, ::2] = 255      # horizontal
            pixels[10:, :, ::2] = 255   # vertical
            images = ImageSet.of_arrays(pixels, np.repeat([0, 1], 10))
            return Dataset("stripes", ("horizontal", "vertical"), train=images, test=images)

A dataset of files gets its folder from `request.folder(self.name)` and its images from
`ease.streams.datasets.folder.dataset_from_scan`, which reads class folders, checks every image and follows links. If it
also implements `content_to_check`, `ease datasets check` works for it.

A dataset of this package is added to `BUILT_IN` below. Another package offers its dataset by an entry point::

    [project.entry-points."ease.datasets"]
    stripes = "my_package:Stripes"
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ease.errors import EaseError
from ease.streams.datasets.benchmarks import Benchmark
from ease.streams.datasets.cub import Cub200
from ease.streams.datasets.digits import Digits
from ease.streams.datasets.downloadable import Downloadable
from ease.streams.datasets.folder import ImageFolder
from ease.streams.datasets.glyphs import Glyphs
from ease.streams.datasets.registry import (
    DatasetLoader,
    DatasetRequest,
    dataset_faults,
    dataset_list,
    find_dataset,
    register,
)
from ease.streams.intake.scan import Unreadable
from ease.streams.stream import Dataset

__all__ = [
    "DatasetLoader",
    "DatasetRequest",
    "dataset_faults",
    "dataset_list",
    "find_dataset",
    "load_dataset",
]

BUILT_IN: tuple[DatasetLoader, ...] = (
    Digits(),
    Glyphs(),
    ImageFolder(),
    Cub200(),
    *(Benchmark(name) for name in ("imagenet-a", "imagenet-r", "objectnet", "omnibenchmark", "vtab")),
    Downloadable("cifar10", "CIFAR10"),
    Downloadable("cifar100", "CIFAR100"),
    Downloadable("fashion-mnist", "FashionMNIST"),
)
for _loader in BUILT_IN:
    register(_loader, built_in=True)


def load_dataset(
    name: str,
    root: Path | None = None,
    limit_per_class: int | None = None,
    unreadable: Unreadable = "refuse",
    *,
    download: bool = False,
) -> Dataset:
    """Load a dataset by name.

    Args:
        name: One of `dataset_list()`.
        root: Its folder; `$EASE_DATA/<name>` if left out. `digits` and `glyphs` need none.
        limit_per_class: Keep at most this many train and as many test images of each class.
        unreadable: `refuse` raises an error that names a damaged image; `skip` leaves it out with a note.
        download: Allow a download where the dataset supports it.

    Returns:
        Train and test images of named classes.

    Raises:
        EaseError: The name is unknown, or the files are missing or damaged.

    Example:
        >>> digits = load_dataset("digits", limit_per_class=5)
        >>> len(digits.class_names), len(digits.train)
        (10, 50)
    """
    loader = find_dataset(name)
    if limit_per_class is not None and limit_per_class < 1:
        raise EaseError(f"limit per class is {limit_per_class}: choose 1 or more, or none")
    request = DatasetRequest(None if root is None else Path(root), unreadable, download, limit_per_class)
    loaded = loader.load(request)
    if name in (faults := dataset_faults()):
        loaded = replace(loaded, notes=(*loaded.notes, faults[name]))
    if limit_per_class is None:
        return loaded
    return replace(
        loaded,
        train=loaded.train.limit(limit_per_class),
        test=loaded.test.limit(limit_per_class),
        notes=(*loaded.notes, f"limited to {limit_per_class} train and as many test images per class"),
    )
