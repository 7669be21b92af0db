"""60 letters, digits and signs in the typefaces that ship with matplotlib: a benchmark that needs no download.

Training and test images come from different font families, so a method has to know the letter, not the typeface.
Neither trivial nor hopeless for the embedded ViT: see the figures in the docs.
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
from ease.streams.datasets.glyphs.rendering import SIDE, Look, print_character
from ease.streams.datasets.registry import Request, dataset
from ease.streams.images import ImageSet
from ease.streams.stream import Augmentation, Dataset

VERSION = 1
"""Raised when the drawing changes for equal settings."""

SEED = 2024
LOOK = Look()
PARTS = {"train": (TRAIN_FONTS, 45), "test": (TEST_FONTS, 18)}
"""The fonts of each part, and how many images of each class; the fonts take turns."""

Images = dict[str, npt.NDArray[np.uint8]]
"""For each part uint8 [N, 64, 64, 3], class by class."""


@dataset(
    "glyphs", "60 letters, digits and signs, 64x64, 2,700 train / 1,080 test in other typefaces; built in"
)
def load_glyphs(request: Request) -> Dataset:
    """Drawn on first use, then read from the cache."""
    path = cache_folder() / f"glyphs-{settings_hash()}.npz"
    images = _from_cache(path)
    if images is None:
        images = draw()
        _to_cache(path, images)
    labels = {part: np.repeat(np.arange(len(CHARACTERS)), count) for part, (_, count) in PARTS.items()}
    return Dataset(
        name="glyphs",
        class_names=tuple(character.name for character in CHARACTERS),
        train=ImageSet.of_arrays(images["train"], labels["train"]),
        test=ImageSet.of_arrays(images["test"], labels["test"]),
        augmentation=Augmentation(scale=(0.6, 1.0), flip=False),  # letters must stay letters
    )


def draw() -> Images:
    """All images, always the same: every image has its own seed."""
    return {
        part: np.stack(
            [
                print_character(character, fonts[i % len(fonts)], LOOK, (SEED, number, c, i))
                for c, character in enumerate(CHARACTERS)
                for i in range(count)
            ]
        )
        for number, (part, (fonts, count)) in enumerate(PARTS.items())
    }


def settings_hash() -> str:
    """Names everything that decides the images, the libraries that draw them included."""
    import matplotlib
    import PIL
    from PIL import features

    settings = {
        "version": [VERSION, SEED, SIDE],
        "look": asdict(LOOK),
        "parts": PARTS,
        "characters": [asdict(character) for character in CHARACTERS],
        "drawn by": [PIL.__version__, features.version("freetype2"), matplotlib.__version__],
    }
    return hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()


def cache_folder() -> Path:
    """`$EASE_CACHE`, else `$XDG_CACHE_HOME/ease`, else `~/.cache/ease`."""
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
        return None  # not there or damaged: draw again
    for part, (_, count) in PARTS.items():
        if images[part].dtype != np.uint8 or images[part].shape != (len(CHARACTERS) * count, SIDE, SIDE, 3):
            return None
    return images


def _to_cache(path: Path, images: Images) -> None:
    """Written beside and then moved, so that no one ever reads half a file."""
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
        pass  # a cache that cannot be written costs seconds, not the work
