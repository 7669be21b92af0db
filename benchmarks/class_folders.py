"""Class folders to measure on: steps of classes that arrive one after the other, and a test folder with all of them.

`glyphs` and `digits` come with the package and are written as PNG files. `cifar100-200` and `photos-42` are read from
the archives in $EASE_SHARED/data; where that is not set they are left out.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.cases import shared
from ease import Classifier
from ease.backbone.zoo import EMBEDDED
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet
from ease.streams.datasets import load_dataset

DEIT = "deit_tiny_patch16_224"
BACKBONES = (EMBEDDED, DEIT)
STEPS = 3


@dataclass(frozen=True)
class Model:
    """A backbone, its weights file (None if it comes with the package) and its input size (None: its own)."""

    backbone: str
    weights: Path | None
    input_size: int | None

    def new_classifier(
        self, path: Path, method: str = "strata", settings: Mapping[str, Any] | None = None
    ) -> Classifier:
        """A classifier that knows no class yet, with the app's settings for this method unless others are given."""
        return Classifier.create(
            path,
            self.backbone,
            weights=self.weights,
            input_size=self.input_size,
            method=method,
            settings=settings,
        )


@dataclass(frozen=True)
class Folders:
    """Where the photos of one set lie: a folder with class folders for each step, and one for the test."""

    steps: tuple[Path, ...]
    test: Path


@dataclass(frozen=True)
class FolderSet:
    """A set of photos.

    Attributes:
        name: of the dataset, or of the archive.
        train: photos per class to learn from, at most; the first ones by name.
        test: photos per class to test with, at most.
        side: input size for DeiT-tiny; the embedded ViT has its own.
        archived: whether it is in $EASE_SHARED.
    """

    name: str
    train: int
    test: int
    side: int = 128
    archived: bool = False

    def model(self, backbone: str) -> Model:
        """The backbone as it reads these photos."""
        if backbone == EMBEDDED:
            return Model(backbone, None, None)
        return Model(backbone, shared() / "weights" / f"{backbone}.safetensors", self.side)

    def lacks(self, backbone: str) -> str | None:
        """Why the set cannot be measured with this backbone here, in one line."""
        weights = self.model(backbone).weights
        wanted = [self._archive] * self.archived + ([] if weights is None else [weights])
        if wanted and "EASE_SHARED" not in os.environ:
            return f"{self.name} with {backbone} is left out: set EASE_SHARED to a folder with weights/ and data/"
        gone = [path.name for path in wanted if not path.is_file()]
        return f"{self.name} with {backbone} is left out: EASE_SHARED has no {gone[0]}" if gone else None

    @property
    def _archive(self) -> Path:
        return shared() / "data" / f"{self.name}.tar"

    def write(self, root: Path, steps: int = STEPS, classes: int | None = None) -> Folders:
        """Write the first classes by name, all by default, in about equal steps below `root`."""
        folders = Folders(tuple(root / f"step-{step + 1}" for step in range(steps)), root / "test")
        with self._photos() as photos:
            names = sorted({photo.label for photo in photos})[:classes]
            parts = np.array_split(np.array(names, dtype=object), steps)
            place = {("train", name): folders.steps[at] for at, part in enumerate(parts) for name in part}
            place |= {("test", name): folders.test for name in names}
            limits = {"train": self.train, "test": self.test}
            room = {(part, name): limit for part, limit in limits.items() for name in names}
            for photo in sorted(photos, key=lambda photo: photo.file):
                key = (photo.part, photo.label)
                if room.get(key, 0):
                    room[key] -= 1
                    (place[key] / photo.label).mkdir(parents=True, exist_ok=True)
                    (place[key] / photo.label / photo.file).write_bytes(photo.read())
        return folders

    @contextmanager
    def _photos(self) -> Iterator[list[_Photo]]:
        if not self.archived:
            data = load_dataset(self.name)
            yield [
                _Photo(part, data.class_names[label], f"{at:05d}.png", partial(_png, images, at))
                for part, images in (("train", data.train), ("test", data.test))
                for at, label in enumerate(images.labels.tolist())
            ]
            return
        with tarfile.open(self._archive) as archive:
            found = []
            for member in archive:
                parts = member.name.removeprefix("./").split("/")
                if member.isfile() and len(parts) == 3 and parts[0] in ("train", "test"):
                    found.append(_Photo(parts[0], parts[1], parts[2], partial(_content, archive, member)))
            yield found


@dataclass(frozen=True)
class _Photo:
    """One file of a set, read when it is asked for."""

    part: str
    label: str
    file: str
    read: Callable[[], bytes]


def _png(images: ImageSet, at: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(images.image(at).permute(1, 2, 0).numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # it is a file
    return file.read()


SETS = {
    one.name: one
    for one in (
        FolderSet("glyphs", 45, 18),
        FolderSet("digits", 200, 200),
        FolderSet("cifar100-200", 30, 50, archived=True),
        FolderSet("photos-42", 25, 12, side=224, archived=True),
    )
}
"""All photos there are, but for the CIFAR subset, which has 200 + 100 of each class."""


def generation_bytes(classifier: Classifier) -> int:
    """Bytes of the current generation: its manifest and the files that it names."""
    directory = ModelDirectory(classifier.path)
    files = directory.manifest().files.values()
    return directory.manifest_path.stat().st_size + sum(entry.size for entry in files)
