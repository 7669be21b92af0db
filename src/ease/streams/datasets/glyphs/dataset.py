"""60 letters, digits and signs in the fonts of matplotlib: a benchmark that needs no download.

Training and test images come from different font families, so a method has to learn the letter, not the typeface.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import zipfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ease.streams.datasets.glyphs.characters import CHARACTERS, TEST_FONTS, TRAIN_FONTS
from ease.streams.datasets.glyphs.rendering import SIDE, RenderingStyle, render_character
from ease.streams.datasets.registry import DatasetLoader, DatasetRequest
from ease.streams.images import ImageSet
from ease.streams.stream import Augmentation, Dataset

VERSION = 1
"""Increased when the images change for equal settings."""

SEED = 2024
STYLE = RenderingStyle()
PARTS = {"train": (TRAIN_FONTS, 45), "test": (TEST_FONTS, 18)}
"""The fonts of each part and the number of images per class; fonts are used in turn."""

Images = dict[str, npt.NDArray[np.uint8]]
"""Part -> uint8 RGB [N, 64, 64, 3], class by class."""


class Glyphs(DatasetLoader):
    """Images that are drawn on first use and then read from the cache."""

    name = "glyphs"
    about = "60 letters, digits and signs, 64x64, 2,700 train / 1,080 test in other typefaces; built in"

    def load(self, request: DatasetRequest) -> Dataset:
        """See `DatasetLoader`."""
        path = cache_folder() / f"glyphs-{settings_hash()}.npz"
        images = _from_cache(path)
        if images is None:
            images = draw()
            _to_cache(path, images)
        labels = {part: np.repeat(np.arange(len(CHARACTERS)), count) for part, (_, count) in PARTS.items()}
        return Dataset(
            name=self.name,
            class_names=tuple(character.name for character in CHARACTERS),
            train=ImageSet.of_arrays(images["train"], labels["train"]),
            test=ImageSet.of_arrays(images["test"], labels["test"]),
            augmentation=Augmentation.for_characters(),
        )


def draw() -> Images:
    """Draw all images. Every image has its own seed, so that they are always the same."""
    return {
        part: np.stack(
            [
                render_character(character, fonts[i % len(fonts)], STYLE, (SEED, number, c, i))
                for c, character in enumerate(CHARACTERS)
                for i in range(count)
            ]
        )
        for number, (part, (fonts, count)) in enumerate(PARTS.items())
    }


def settings_hash() -> str:
    """A hash of everything that decides the images, including the libraries that draw them."""
    import matplotlib
    import PIL
    from PIL import features

    settings = {
        "version": [VERSION, SEED, SIDE],
        "style": asdict(STYLE),
        "parts": PARTS,
        "characters": [asdict(character) for character in CHARACTERS],
        "drawn by": [PIL.__version__, features.version("freetype2"), matplotlib.__version__],
    }
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()


def cache_folder() -> Path:
    """The folder for cached images: `$EASE_CACHE`, else `$XDG_CACHE_HOME/ease`, else `~/.cache/ease`."""
    if os.environ.get("EASE_CACHE"):
        return Path(os.environ["EASE_CACHE"]).expanduser()
    if os.environ.get("XDG_CACHE_HOME"):
        return Path(os.environ["XDG_CACHE_HOME"]).expanduser() / "ease"
    return Path("~/.cache/ease").expanduser()


def _from_cache(path: Path) -> Images | None:
    try:
        with np.load(path, allow_pickle=False) as stored:
            images = {part: stored[part] for part in PARTS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # missing or damaged: the images are drawn again
    for part, (_, count) in PARTS.items():
        if images[part].dtype != np.uint8 or images[part].shape != (len(CHARACTERS) * count, SIDE, SIDE, 3):
            return None
    return images


def _to_cache(path: Path, images: Images) -> None:
    """Write to a temporary file and rename it, so that an incomplete file is never read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                np.savez(file, train=images["train"], test=images["test"])
            except BaseException:
                file.close()
                os.unlink(file.name)
                raise
        os.replace(file.name, path)
    except OSError:
        pass  # without a cache the images are drawn again, which takes seconds
