"""The threads that decode images for predictions and explanations."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ease.app.server.pending import FairQueue, PendingWork, Turn
from ease.streams.intake.decode import LARGE_IMAGE_PIXELS, count_pixels
from ease.streams.intake.limits import ImageLimits
from ease.streams.intake.sources import NamedFile

T = TypeVar("T")


class Decoders:
    """Two pools of threads: one photo does not wait for the large images of others.

    Large images are decoded one at a time: one of them can take a gigabyte of memory, and a second or more.

    Args:
        threads: How many other images are decoded at a time.

    Attributes:
        small: The threads for images of a usual size.
        large: The thread for larger ones.
    """

    def __init__(self, threads: int) -> None:
        self._arrivals = itertools.count()
        self.small = OrderedThreads(threads, "decode")
        self.large = OrderedThreads(1, "decode-large")

    def turn(self, images: int) -> Turn:
        """The turn of a request that has arrived with this many images."""
        return Turn(images, next(self._arrivals))

    async def prepared(
        self, turn: Turn, image: NamedFile, limits: ImageLimits, prepare: Callable[[NamedFile], T]
    ) -> T:
        """What `prepare` makes of an image when it is the turn of its request. An image over the limits is refused."""
        looked = self.small.submit(turn, lambda: count_pixels(image.path, image.shown, limits))
        threads = self.small if await asyncio.wrap_future(looked) <= LARGE_IMAGE_PIXELS else self.large
        made: T = await asyncio.wrap_future(threads.submit(turn, lambda: prepare(image)))
        return made

    def stop(self) -> None:
        """Finish what is being done, and cancel what waits."""
        self.small.stop()
        self.large.stop()


class OrderedThreads:
    """Threads for work that is done in the order of a `FairQueue`, and not in that of submission.

    Args:
        count: How many.
        name: What their names begin with.
    """

    def __init__(self, count: int, name: str) -> None:
        self._waiting: FairQueue[PendingWork] = FairQueue()
        self._threads = ThreadPoolExecutor(count, name)

    def submit(self, turn: Turn, work: Callable[[], Any]) -> Future[Any]:
        """Do some work when it is its turn."""
        one = PendingWork(work)
        self._waiting.put((turn, one))
        self._threads.submit(self._do_next)
        return one.future

    def stop(self) -> None:
        """Finish what is being done, and cancel what waits."""
        self._threads.shutdown(cancel_futures=True)
        while not self._waiting.empty():
            self._waiting.get()[-1].future.cancel()

    def _do_next(self) -> None:
        self._waiting.get()[-1].run()  # there are as many calls as pieces of work, so this never waits
