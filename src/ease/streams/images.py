"""Labelled images that are decoded when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

IntArray = npt.NDArray[np.int64]


class Source(Protocol):
    """Where pixels come from. `load` gives uint8 RGB [3, H, W]; `digest` names the content."""

    def __len__(self) -> int: ...

    def load(self, index: int) -> Tensor: ...

    def digest(self, index: int) -> str: ...


class ArraySource:
    """Images held in memory as uint8 [N, H, W, 3]."""

    def __init__(self, pixels: npt.NDArray[np.uint8]) -> None:
        if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8 [N, H, W, 3], not {pixels.dtype} {list(pixels.shape)}")
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def load(self, index: int) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(self.pixels[index].transpose(2, 0, 1)))

    def digest(self, index: int) -> str:
        pixels = np.ascontiguousarray(self.pixels[index])
        return content_hash(str(pixels.shape).encode() + pixels.tobytes())


def content_hash(content: bytes) -> str:
    """128 bits in hex: enough to name an image, short enough to store per prediction."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def chosen_by_content(digests: Iterable[str], share: float) -> set[str]:
    """About this share of the different contents, at least one, but never all: names and order do not matter."""
    distinct = sorted(set(digests))
    count = min(max(1, round(share * len(distinct))), max(0, len(distinct) - 1))
    return set(distinct[:count])


@dataclass(frozen=True)
class ImageSet:
    """Some images of a source with their labels; cheap to slice, nothing is decoded until asked for.

    Attributes:
        source: where the pixels are.
        indices: [N] positions in the source.
        labels: [N] class of each image. In a task these are positions in the stream's class order.
    """

    source: Source
    indices: IntArray
    labels: IntArray

    def __post_init__(self) -> None:
        if len(self.indices) != len(self.labels):
            raise ValueError(f"{len(self.indices)} indices but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.indices)

    def image(self, position: int) -> Tensor:
        """The decoded image, uint8 [3, H, W]."""
        return self.source.load(int(self.indices[position]))

    def digest(self, position: int) -> str:
        """The content hash of one image."""
        return self.source.digest(int(self.indices[position]))

    def take(self, positions: Sequence[int] | IntArray) -> ImageSet:
        """The images at these positions, in this order."""
        at = np.asarray(positions, dtype=np.int64)
        return ImageSet(self.source, self.indices[at], self.labels[at])

    def of_classes(self, classes: Sequence[int], relabel: Callable[[int], int] | None = None) -> ImageSet:
        """The images of these classes, class by class in the order given, file order within a class."""
        positions = np.concatenate(
            [np.flatnonzero(self.labels == c) for c in classes] or [np.empty(0, np.int64)]
        )
        chosen = self.take(positions)
        if relabel is None:
            return chosen
        labels = np.array([relabel(int(c)) for c in chosen.labels], dtype=np.int64)
        return ImageSet(chosen.source, chosen.indices, labels)

    def limit(self, per_class: int) -> ImageSet:
        """At most this many images of each class, the first ones in file order."""
        keep = [np.flatnonzero(self.labels == c)[:per_class] for c in np.unique(self.labels)]
        return self.take(np.sort(np.concatenate(keep)) if keep else np.empty(0, np.int64))

    @staticmethod
    def of_arrays(pixels: npt.NDArray[np.uint8], labels: npt.ArrayLike) -> ImageSet:
        """A set over pixels in memory, uint8 [N, H, W, 3]."""
        return ImageSet(ArraySource(pixels), np.arange(len(pixels)), np.asarray(labels, dtype=np.int64))
