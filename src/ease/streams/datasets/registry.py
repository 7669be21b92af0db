"""The datasets that can be loaded by name: those of this package and those that other packages offer.

Another package offers a dataset by an entry point in the group `ease.datasets`. A dataset that cannot be used does not
disturb the others: it is named where datasets are listed, and refused where it is asked for. The names of the built-in
datasets cannot be taken over.
"""

from __future__ import annotations

import inspect
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path

from ease.errors import EaseError, unknown
from ease.filesystem import expanded
from ease.plugins import check_name, check_same_name, load_plugins, name_taken
from ease.streams.intake.scan import FolderScan, Unreadable
from ease.streams.stream import Dataset

GROUP = "ease.datasets"
"""The group of entry points in which other packages offer datasets."""

_loaders: dict[str, DatasetLoader] = {}
_built_in: set[str] = set()
_faults: dict[str, EaseError] = {}


@dataclass(frozen=True)
class DatasetRequest:
    """What a loader is asked for.

    Attributes:
        root: The folder given by the user, if any.
        unreadable: Whether a damaged image is skipped with a note or refused.
        download: Whether the user allowed downloads.
        limit: Images per class that will be kept, for loaders that can save work by knowing it.
    """

    root: Path | None = None
    unreadable: Unreadable = "refuse"
    download: bool = False
    limit: int | None = None

    def folder(self, name: str, expected: str = "") -> Path:
        """The folder of a dataset: the root given, else `$EASE_DATA/<name>`.

        Args:
            name: Name of the dataset.
            expected: What the folder should contain; part of the error message if no folder is given.
        """
        if self.root is not None:
            return expanded(self.root)
        if os.environ.get("EASE_DATA"):
            return expanded(os.environ["EASE_DATA"]) / name
        raise EaseError(
            f"dataset '{name}' needs its folder: give the root, "
            f"or set EASE_DATA to the folder that has '{name}' in it" + (f"; {expected}" if expected else "")
        )


class DatasetLoader(ABC):
    """A dataset that can be loaded by name. Subclass this to add one.

    Attributes:
        name: Lower-case words joined by `-`.
        about: One line for the list of datasets.
    """

    name: str
    about: str

    @abstractmethod
    def load(self, request: DatasetRequest) -> Dataset:
        """Load the dataset.

        Args:
            request: Where the files are, and what to do with damaged ones.

        Returns:
            Train and test images. `limit_per_class` is applied to them afterwards.
        """

    def content_to_check(self, request: DatasetRequest) -> FolderScan | Dataset | None:
        """What `ease datasets check` examines: files, images, or None if there is nothing to check.

        Args:
            request: Where the files are. Files that cannot be used are to be recorded, not refused.
        """
        return None


class DamagedError(EaseError):
    """The files of a dataset are there, but they are not what was published."""


def register(loader: DatasetLoader, *, built_in: bool = False) -> None:
    """Make a dataset known by its name.

    Args:
        loader: The dataset.
        built_in: Whether it belongs to this package.

    Raises:
        EaseError: The loader is not usable, or another dataset has its name.
    """
    _check(loader)
    owner = _loaders.get(loader.name, loader)
    if owner is not loader:
        raise name_taken(loader.name, type(owner))
    _loaders[loader.name] = loader
    if built_in:
        _built_in.add(loader.name)


def _check(loader: object) -> None:
    """Raise an error for a loader that would fail later, with a less clear message."""
    if not isinstance(loader, DatasetLoader):
        raise EaseError(
            f"{loader!r:.200} is not a dataset: it must be a subclass of ease.streams.DatasetLoader"
        )
    where = type(loader).__qualname__
    for attribute in ("name", "about"):
        value = getattr(loader, attribute, None)
        if not isinstance(value, str) or not value or "\n" in value:
            raise EaseError(f"{where} has no '{attribute}': give it one line of text")
    check_name(loader.name, where)


@cache
def _discover() -> None:
    _faults.update(load_plugins(GROUP, "dataset", _load))


def _load(entry: EntryPoint) -> None:
    loader = entry.load()
    if isinstance(loader, type) and issubclass(loader, DatasetLoader):
        if inspect.isabstract(loader):
            raise EaseError(f"{loader.__qualname__} lacks {', '.join(sorted(loader.__abstractmethods__))}")
        loader = loader()
    _check(loader)
    check_same_name(loader.name, entry)
    register(loader)


def dataset_list() -> dict[str, str]:
    """All datasets that `load_dataset` knows, those of other packages included.

    Returns:
        Name -> one line on what it is, in alphabetical order.

    Example:
        >>> "glyphs" in dataset_list()
        True
    """
    _discover()
    return {name: _loaders[name].about for name in sorted(_loaders)}


def dataset_faults() -> dict[str, str]:
    """Datasets of other packages that cannot be used.

    Returns:
        Name -> one line that says why, in alphabetical order.
    """
    _discover()
    return {name: str(fault) for name, fault in sorted(_faults.items())}


def find_dataset(name: str) -> DatasetLoader:
    """The dataset of this name.

    Args:
        name: One of `dataset_list()`.

    Raises:
        EaseError: The name is unknown, or the package that offers the dataset is broken.
    """
    _discover()
    if name in _faults and name not in _built_in:
        raise _faults[name]
    if name not in _loaders:
        raise unknown("dataset", name, _loaders)
    return _loaders[name]
