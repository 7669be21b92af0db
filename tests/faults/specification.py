"""What a model that keeps learning must be, as a plain table: class ids and names, and one entry per generation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from torch import Tensor

Pixels = npt.NDArray[np.uint8]
Classes = tuple[tuple[int, str], ...]
"""Id and name of each class, in the order of the logits."""

CREATE = {"input_size": 16, "augment": "gentle", "settings": {"layers": 1, "patches": False}}


@dataclass
class Specification:
    """A model, as its user sees it."""

    classes: Classes = ()
    next_id: int = 0
    generation: int = 1
    past: dict[int, tuple[Classes, Tensor | None]] = field(default_factory=dict)
    newest: int = 1
    words: int = 0

    @property
    def names(self) -> list[str]:
        return [name for _, name in self.classes]

    def word(self) -> str:
        """A name that no class ever had and that is in no file by chance."""
        self.words += 1
        return f"zyx{self.words}wvu"

    def learned(self, names: list[str]) -> Classes:
        return (*self.classes, *((self.next_id + i, name) for i, name in enumerate(names)))

    def without(self, name: str) -> Classes:
        return tuple(entry for entry in self.classes if entry[1] != name)

    def renamed(self, old: str, new: str) -> Classes:
        return tuple((number, new if name == old else name) for number, name in self.classes)

    def wrote(self, generation: int, classes: Classes, *, forgets: bool = False) -> None:
        """A new generation is current; its number is higher than any before."""
        assert generation > self.newest, (generation, self.newest)
        if forgets:
            self.past.clear()
        self.generation = self.newest = generation
        self.classes = classes
        self.next_id = max([self.next_id, *(number + 1 for number, _ in classes)])


def digits() -> list[Pixels]:
    """Images of handwritten digits, each uint8 [8, 8, 3]."""
    images = (load_digits().images * 15).astype(np.uint8)
    return [np.repeat(image[:, :, None], 3, axis=2) for image in images]


def class_means(path: Path) -> dict[int, bytes]:
    """The bytes of each class's mean as the current generation stores it, by position."""
    from ease.storage.model_directory import ModelDirectory

    files = ModelDirectory(path).load().files
    rows = [row for name in sorted(files) if name.startswith("prototypes/") for row in files[name]["means"]]
    return {
        position: row.contiguous().view(torch.uint8).numpy().tobytes() for position, row in enumerate(rows)
    }


def files_with(path: Path, content: bytes) -> list[str]:
    """The files below a folder that hold these bytes."""
    return [str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and content in f.read_bytes()]
