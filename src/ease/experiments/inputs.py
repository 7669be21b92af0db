"""What a run reads: its dataset cut into tasks, and content hashes by which two runs can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ease.config import RunConfig
from ease.documents import cannot_be_shown
from ease.errors import EaseError
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream, order_from_file


def load_data(config: RunConfig) -> Dataset:
    """The dataset that a configuration asks for, with its limits applied."""
    root = None if config.data_root is None else Path(config.data_root)
    data = load_dataset(
        config.dataset, root, config.limit_per_class, config.unreadable, download=config.download
    )
    for name in data.class_names:
        if not name.strip() or cannot_be_shown(name):
            raise EaseError(
                f"class name {name[:60]!a} of '{config.dataset}' has characters that cannot be shown: rename it"
            )
    if config.limit_classes is not None:
        data = data.first_classes(config.limit_classes)
    if config.limit_test is not None:
        note = f"limited to {config.limit_test} test images per class"
        data = replace(data, test=data.test.limit(config.limit_test), notes=(*data.notes, note))
    return data


def make_tasks(config: RunConfig) -> tuple[Stream, list[str]]:
    """The stream that a configuration asks for, and notes for readers of its results."""
    data = load_data(config)
    order = None
    if config.class_order is not None:
        order = order_from_file(Path(config.class_order), data.class_names)
    stream = make_stream(data, config.protocol, config.seed, order)
    for task in stream.tasks:
        if not len(task.test):
            names = ", ".join(task.names)
            raise EaseError(
                f"task {task.index + 1} of '{config.dataset}' ({names}) has no test image: add some"
            )
    return stream, list(data.notes)


def data_digests(config: RunConfig) -> tuple[str, str]:
    """Content hashes of the training and test images that a run of this configuration reads.

    They are those of `RunInputs`. The images of a folder are read once and their hashes are remembered.
    """
    keys = (
        "dataset",
        "data_root",
        "limit_per_class",
        "limit_test",
        "limit_classes",
        "unreadable",
        "download",
    )
    return _data_digests(tuple((key, getattr(config, key)) for key in keys))


@lru_cache(maxsize=8)
def _data_digests(values: tuple[tuple[str, Any], ...]) -> tuple[str, str]:
    data = load_data(RunConfig(**dict(values)))
    return images_digest(data.class_names, [data.train]), images_digest(data.class_names, [data.test])


def images_digest(class_names: Sequence[str], parts: Iterable[ImageSet]) -> str:
    """A content hash of labelled images.

    Args:
        class_names: the name of each label.
        parts: the images. Their order does not matter, and neither does the order of the classes.

    Returns:
        128 bits in hex.
    """
    lines = sorted(
        f"{class_names[label]}\0{part.digest(position)}"
        for part in parts
        for position, label in enumerate(part.labels.tolist())
    )
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=16).hexdigest()
