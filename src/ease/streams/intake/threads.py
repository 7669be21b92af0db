"""Threads that read and decode images."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def decoding_threads(count: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that end with the work they are for. Ctrl-C does not wait for them: one may wait for a slow server."""
    pool, interrupted = ThreadPoolExecutor(count, "decode"), False
    try:
        yield pool
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        pool.shutdown(wait=not interrupted, cancel_futures=interrupted)
