"""Sets of labelled images that are decoded when they are needed."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

IntArray = npt.NDArray[np.int64]


class Source(Protocol):
    """Where the pixels of images come from: files, memory, or a database of another package."""

    def __len__(self) -> int:
        """The number of images."""
        ...

    def load(self, index: int) -> Tensor:
        """Decode one image, uint8 RGB [3, H, W]."""
        ...

    def digest(self, index: int) -> str:
        """The content hash of one image. Equal images of one source have equal hashes."""
        ...


class ArraySource:
    """Images of one size that are held in memory.

    Args:
        pixels: uint8 RGB [N, H, W, 3].
    """

    def __init__(self, pixels: npt.NDArray[np.uint8]) -> None:
        if pixels.ndim != 4 or pixels.shape[-1] != 3 or pixels.dtype != np.uint8:
            raise ValueError(f"pixels must be uint8 [N, H, W, 3], not {pixels.dtype} {list(pixels.shape)}")
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def load(self, index: int) -> Tensor:
        """See `Source`."""
        return torch.from_numpy(np.ascontiguousarray(self.pixels[index].transpose(2, 0, 1)))

    def digest(self, index: int) -> str:
        """See `Source`."""
        return pixel_hash(self.pixels[index])


def content_hash(content: bytes) -> str:
    """A hash of 128 bits, in hexadecimal, that identifies the content of an image file."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def pixel_hash(pixels: npt.NDArray[np.uint8]) -> str:
    """A hash that identifies an image without a file by its shape and pixels, uint8 [H, W, 3]."""
    return content_hash(str(pixels.shape).encode() + np.ascontiguousarray(pixels).tobytes())


def chosen_by_content(digests: Iterable[str], share: float) -> set[str]:
    """Choose some of the distinct images; names and order of the images do not matter.

    Args:
        digests: Content hashes of the images; copies of an image have the same hash.
        share: How many to choose, as a fraction of the distinct images.

    Returns:
        The hashes of the chosen images: at least one, but never all.
    """
    distinct = sorted(set(digests))
    count = min(max(1, round(share * len(distinct))), max(0, len(distinct) - 1))
    return set(distinct[:count])


@dataclass(frozen=True)
class ImageSet:
    """Some images of a source with their labels. It is cheap to slice; images are decoded when they are needed.

    Attributes:
        source: Where the pixels come from.
        indices: int64 [N], positions in the source.
        labels: int64 [N], the class of each image. In a task these are positions in the stream's class order.

    Example:
        >>> import numpy as np
        >>> images = ImageSet.of_arrays(np.zeros((4, 8, 8, 3), np.uint8), [0, 0, 1, 1])
        >>> len(images), tuple(images.image(0).shape)
        (4, (3, 8, 8))
        >>> images.of_classes([1]).labels.tolist()
        [1, 1]
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
        """Decode one image, uint8 RGB [3, H, W]."""
        return self.source.load(int(self.indices[position]))

    def digest(self, position: int) -> str:
        """The content hash of one image."""
        return self.source.digest(int(self.indices[position]))

    def take(self, positions: Sequence[int] | IntArray) -> ImageSet:
        """The images at these positions, in this order."""
        at = np.asarray(positions, dtype=np.int64)
        return ImageSet(self.source, self.indices[at], self.labels[at])

    def of_classes(self, classes: Sequence[int], relabel: Callable[[int], int] | None = None) -> ImageSet:
        """Select the images of some classes.

        Args:
            classes: Labels to select.
            relabel: Maps each old label to a new one; labels stay as they are if None.

        Returns:
            The images, class by class in the order given; within a class in their own order.
        """
        positions = np.concatenate(
            [np.flatnonzero(self.labels == c) for c in classes] or [np.empty(0, np.int64)]
        )
        chosen = self.take(positions)
        if relabel is None:
            return chosen
        labels = np.array([relabel(int(c)) for c in chosen.labels], dtype=np.int64)
        return ImageSet(chosen.source, chosen.indices, labels)

    def limit(self, per_class: int) -> ImageSet:
        """At most this many images of each class: the first ones."""
        keep = [np.flatnonzero(self.labels == c)[:per_class] for c in np.unique(self.labels)]
        return self.take(np.sort(np.concatenate(keep)) if keep else np.empty(0, np.int64))

    @staticmethod
    def of_arrays(pixels: npt.NDArray[np.uint8], labels: npt.ArrayLike) -> ImageSet:
        """Make a set of images in memory.

        Args:
            pixels: uint8 RGB [N, H, W, 3].
            labels: [N], the class of each image.
        """
        return ImageSet(ArraySource(pixels), np.arange(len(pixels)), np.asarray(labels, dtype=np.int64))


def png_file(image: Tensor) -> bytes:
    """An image, uint8 RGB [3, H, W], as a PNG file."""
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg_thumbnail(image: Tensor, side: int = 96) -> bytes:
    """A small version of an image as a JPEG file.

    Args:
        image: uint8 RGB [3, H, W].
        side: Length of the longer side, in pixels.
    """
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
