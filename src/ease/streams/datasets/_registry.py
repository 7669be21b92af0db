"""Names of datasets -> how to load them."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ease.errors import EaseError
from ease.streams.stream import Dataset

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

    def folder(self, name: str) -> Path:
        """Where the files of this dataset are: the root given, else `$EASE_DATA/<name>`."""
        if self.root is not None:
            return Path(self.root).expanduser()
        if os.environ.get("EASE_DATA"):
            return Path(os.environ["EASE_DATA"]).expanduser() / name
        raise EaseError(
            f"dataset '{name}' needs its folder: give the root, "
            f"or set EASE_DATA to the folder that has '{name}' in it"
        )


Loader = Callable[[Request], Dataset]
LOADERS: dict[str, tuple[str, Loader]] = {}


def dataset(name: str, line: str) -> Callable[[Loader], Loader]:
    """Register a loader under a name, with the one line that describes it."""

    def register(loader: Loader) -> Loader:
        LOADERS[name] = (line, loader)
        return loader

    return register
