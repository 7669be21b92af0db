"""Names of datasets -> how to load them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from ease.errors import EaseError
from ease.filesystem import expanded
from ease.streams.stream import Dataset

if TYPE_CHECKING:
    from ease.streams.intake.scan import FolderScan

Unreadable = Literal["skip", "refuse"]


@dataclass(frozen=True)
class Request:
    """What a loader is asked for.

    Attributes:
        root: the folder given by the user, if any.
        unreadable: whether a damaged image is skipped (with a note) or refused.
        download: the user allowed fetching over the network.
        limit: images per class that will be kept, for loaders that can save work by knowing it.
    """

    root: Path | None = None
    unreadable: Unreadable = "refuse"
    download: bool = False
    limit: int | None = None

    def folder(self, name: str, expected: str = "") -> Path:
        """Where the files of this dataset are: the root given, else `$EASE_DATA/<name>`.

        Args:
            name: of the dataset.
            expected: what should lie there, for whoever has not got it yet.
        """
        if self.root is not None:
            return expanded(self.root)
        if os.environ.get("EASE_DATA"):
            return expanded(os.environ["EASE_DATA"]) / name
        raise EaseError(
            f"dataset '{name}' needs its folder: give the root, "
            f"or set EASE_DATA to the folder that has '{name}' in it" + (f"; {expected}" if expected else "")
        )


class DamagedError(EaseError):
    """The files are there, but they are not what was published."""


Loader = Callable[[Request], Dataset]
Examine = Callable[[Request], "FolderScan | Dataset"]
LOADERS: dict[str, tuple[str, Loader]] = {}
EXAMINERS: dict[str, Examine] = {}
"""How `ease datasets check` gets at the files of a dataset; built-in ones have none."""


def dataset(name: str, line: str, examine: Examine | None = None) -> Callable[[Loader], Loader]:
    """Register a loader under a name, with the one line that describes it and what a check looks at."""

    def register(loader: Loader) -> Loader:
        LOADERS[name] = (line, loader)
        if examine is not None:
            EXAMINERS[name] = examine
        return loader

    return register
