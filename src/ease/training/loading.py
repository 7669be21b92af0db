"""Images on their way to the backbone: decoded once, a batch ahead where cores are to spare, never kept too long."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from ease.streams.images import ArraySource, ImageSet, IntArray, Source

T = TypeVar("T")

MEMORY = 256 * 2**20
"""Bytes of images that are held; those beyond are decoded again when they are asked for again."""
MOST_WORKERS = 4


class ByteBudget:
    """Bytes that several may take from, and threads at once."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._lock = threading.Lock()

    def take(self, size: int) -> bool:
        """Whether so many were left; then they are taken."""
        with self._lock:
            fits = size <= self._left
            self._left -= size * fits
            return fits

    def give(self, size: int) -> None:
        """Bytes that are free again."""
        with self._lock:
            self._left += size


class ImageCache:
    """uint8 images by source and position, up to so many bytes."""

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self._held: dict[int, tuple[Source, dict[int, Tensor]]] = {}
        self._bytes = 0

    def find(self, source: Source, index: int) -> Tensor | None:
        """What was kept."""
        _, held = self._held.get(id(source), (source, {}))
        return held.get(index)

    def keep(self, source: Source, index: int, image: Tensor) -> None:
        """Hold an image if there is room."""
        size = image.numel() * image.element_size()
        # The source is held with its images: an id names an object only as long as it lives.
        _, held = self._held.setdefault(id(source), (source, {}))
        if index not in held and self._budget.take(size):
            held[index] = image
            self._bytes += size

    def clear(self) -> None:
        """Let go of all of them."""
        self._held.clear()
        self._budget.give(self._bytes)
        self._bytes = 0


class Loader:
    """Where the images of a run come from.

    Training images are held, decoded, while their task lasts: one epoch decodes them, the others do not. Test images
    are held as the test transform leaves them, small, for the whole run. What lies in memory anyway (`ArraySource`) is
    not held twice.

    Args:
        memory: bytes to hold, of both.
        workers: threads that make the next batches while the model works on this one; 0 makes them in between. By
            default the cores that torch leaves free: where it uses all, a further thread would only push one of torch's
            off its core, and the others would wait for it.
    """

    def __init__(self, memory: int = MEMORY, workers: int | None = None) -> None:
        budget = ByteBudget(memory)
        self.workers = spare_cores() if workers is None else workers
        self._training, self._testing = ImageCache(budget), ImageCache(budget)

    def training(self, images: ImageSet, position: int, keep: bool = True) -> Tensor:
        """One decoded image, uint8 [3, H, W], not to be written to. Without `keep` only those held are remembered."""
        source, index = images.source, int(images.indices[position])
        found = self._training.find(source, index)
        if found is None:
            found = source.load(index)
            if keep and not isinstance(source, ArraySource):
                self._training.keep(source, index, found)
        return found

    def testing(self, images: ImageSet, position: int, crop: Callable[[Tensor], Tensor]) -> Tensor:
        """One test image as `crop` leaves it, uint8 [3, s, s]."""
        source, index = images.source, int(images.indices[position])
        found = self._testing.find(source, index)
        if found is None:
            found = crop(source.load(index))
            if not isinstance(source, ArraySource):
                self._testing.keep(source, index, found)
        return found

    def drop_training_images(self) -> None:
        """Let go of the training images: their task has ended."""
        self._training.clear()

    def batches(
        self, images: ImageSet, parts: Sequence[IntArray], make: Callable[[IntArray], T]
    ) -> Iterator[T]:
        """`make(part)` of each part in turn, ahead of time where images must be decoded and workers are there.

        Args:
            images: what it is about.
            parts: positions among them.
            make: pure, as it may run beside the caller.
        """
        if not self.workers or isinstance(images.source, ArraySource):
            yield from map(make, parts)
            return
        with ThreadPoolExecutor(self.workers, "decode") as pool:
            ahead = [pool.submit(make, part) for part in parts[: self.workers]]
            for following in range(len(ahead), len(parts) + len(ahead)):
                current = ahead.pop(0)
                if following < len(parts):
                    ahead.append(pool.submit(make, parts[following]))
                yield current.result()


def spare_cores() -> int:
    """Cores that torch's own threads leave free, up to a few."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(0, min(MOST_WORKERS, cores - torch.get_num_threads()))
