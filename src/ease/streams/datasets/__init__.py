"""Datasets by name: `load_dataset("glyphs")`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ease.errors import EaseError, unknown
from ease.streams.datasets import benchmarks, digits, downloadable, folder, glyphs  # noqa: F401 (they register)
from ease.streams.datasets.registry import LOADERS, Request, Unreadable, dataset
from ease.streams.stream import Dataset

__all__ = ["Request", "dataset", "dataset_list", "load_dataset"]


def dataset_list() -> dict[str, str]:
    """Every name `load_dataset` knows, with one line on what it is."""
    return {name: LOADERS[name][0] for name in sorted(LOADERS)}


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
        name: one of `dataset_list()`.
        root: its folder; `$EASE_DATA/<name>` if left out. Built-in datasets need none.
        limit_per_class: keep at most this many train and as many test images of each class.
        unreadable: refuse a damaged image with an error that names it, or skip it with a note.
        download: allow fetching over the network where the dataset supports it.
    """
    if name not in LOADERS:
        raise unknown("dataset", name, LOADERS)
    if limit_per_class is not None and limit_per_class < 1:
        raise EaseError(f"limit per class is {limit_per_class}: choose 1 or more, or none")
    request = Request(None if root is None else Path(root), unreadable, download, limit_per_class)
    loaded = LOADERS[name][1](request)
    if limit_per_class is None:
        return loaded
    return replace(
        loaded,
        train=loaded.train.limit(limit_per_class),
        test=loaded.test.limit(limit_per_class),
        notes=(*loaded.notes, f"limited to {limit_per_class} train and as many test images per class"),
    )
