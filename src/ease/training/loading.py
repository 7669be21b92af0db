"""Loading of images: cached after decoding, and prepared ahead of time where cores are free."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ease.streams.images import ArraySource, ImageSet, IntArray, Source
from ease.streams.intake.threads import decoding_threads

T = TypeVar("T")

MEMORY = 256 * 2**20
"""Default size of the image cache in bytes. Images that do not fit are decoded again each time."""
MOST_WORKERS = 4


class ByteBudget:
    """A number of bytes shared by several caches. Thread-safe."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Reserve bytes; False if too few are left."""
        with self._lock:
            fits = size <= self._left
            self._left -= size * fits
            return fits

    def give(self, size: int) -> None:
        """Release bytes."""
        with self._lock:
            self._left += size


class ImageCache:
    """A cache of uint8 images by source and position."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held: dict[int, tuple[Source, dict[int, Tensor]]] = {}
        self._bytes = 0

    def find(self, source: Source, index: int) -> Tensor | None:
        """The cached image, or None."""
        _, held = self._held.get(id(source), (source, {}))
        return held.get(index)

    def keep(self, source: Source, index: int, image: Tensor) -> None:
        """Cache an image if it fits."""
        size = image.numel() * image.element_size()
        # The source is kept with its images, because an id is only unique while its object exists.
        _, held = self._held.setdefault(id(source), (source, {}))
        if index not in held and self._budget.take(size):
            held[index] = image
            self._bytes += size

    def clear(self) -> None:
        """Remove all images."""
        self._held.clear()
        self._budget.give(self._bytes)
        self._bytes = 0


class Loader:
    """Loads the images of a run.

    Decoded training images are cached until their task ends, so that only the first epoch decodes them. Test images are
    cached for the whole run, after the crop of the test transform. Images that are in memory anyway (`ArraySource`) are
    not cached.

    Args:
        memory: Size of the cache in bytes.
        workers: Threads that prepare the next batches while the model processes the current one; with 0 batches are
            prepared in between. The default is the number of cores that torch does not use: where it uses all of
            them, a further thread would slow it down.
    """

    def __init__(self, memory: int = MEMORY, workers: int | None = None) -> None:
        budget = ByteBudget(memory)
        self.workers = spare_cores() if workers is None else workers
        self._training, self._testing = ImageCache(budget), ImageCache(budget)

    def training(self, images: ImageSet, position: int, keep: bool = True) -> Tensor:
        """One decoded image, uint8 [3, H, W], which must not be modified. `keep` adds it to the cache."""
        source, index = images.source, int(images.indices[position])
        found = self._training.find(source, index)
        if found is None:
            found = source.load(index)
            if keep and not isinstance(source, ArraySource):
                self._training.keep(source, index, found)
        return found

    def testing(self, images: ImageSet, position: int, crop: Callable[[Tensor], Tensor]) -> Tensor:
        """One test image after `crop`, uint8 [3, s, s]."""
        source, index = images.source, int(images.indices[position])
        found = self._testing.find(source, index)
        if found is None:
            found = crop(source.load(index))
            if not isinstance(source, ArraySource):
                self._testing.keep(source, index, found)
        return found

    def drop_training_images(self) -> None:
        """Remove the training images from the cache at the end of their task."""
        self._training.clear()

    def batches(
        self, images: ImageSet, parts: Sequence[IntArray], make: Callable[[IntArray], T]
    ) -> Iterator[T]:
        """Yield `make(part)` for each part in turn, computed ahead of time if images must be decoded.

        Args:
            images: The images.
            parts: Positions of images, one array per batch.
            make: Makes a batch. It may run in another thread.
        """
        if not self.workers or isinstance(images.source, ArraySource):
            yield from map(make, parts)
            return
        with decoding_threads(self.workers) as pool:
            ahead = [pool.submit(make, part) for part in parts[: self.workers]]
            for following in range(len(ahead), len(parts) + len(ahead)):
                current = ahead.pop(0)
                if following < len(parts):
                    ahead.append(pool.submit(make, parts[following]))
                yield current.result()


def spare_cores() -> int:
    """Number of cores that torch's threads leave free, at most `MOST_WORKERS`."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(MOST_WORKERS, cores - torch.get_num_threads()))
