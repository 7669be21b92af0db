"""Log and metrics of the server: one JSON line per event on stderr, and metrics for Prometheus."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any, TextIO

from ease.app.server.refusals import refusal_of_disk
from ease.errors import EaseError

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Log:
    """Writes JSON lines, which never contain an image or a token.

    A line that cannot be written, because the disk is full or the reader of a pipe is gone, is dropped: the server
    goes on answering. The next line that can be written says how many were lost.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock, self._lost = threading.Lock(), 0

    def event(self, kind: str, **fields: Any) -> None:
        """Write one line: the time, the kind of event, and its fields."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        with self._lock:
            lost = {"lines_lost": self._lost} if self._lost else {}
            line = json.dumps({"time": now, "event": kind, **fields, **lost}, default=str)
            # What fitted on the disk of a line that was lost may still be there: this one must not continue it.
            begin = "\n" if self._lost else ""
            try:
                print(begin + line, file=self._stream or sys.stderr, flush=True)
            except (OSError, ValueError):
                self._lost += 1
            else:
                self._lost = 0

    def failure(self, what: str, error: BaseException) -> None:
        """Log an error. One whose cause is known, such as a full disk, is one sentence; others have their traceback.

        Neither is ever part of an answer.
        """
        if isinstance(error, EaseError) or refusal_of_disk(error) is not None:
            self.event("error", what=what, error=str(error))
            return
        detail = "".join(traceback.format_exception(error))
        self.event("error", what=what, error=type(error).__name__, detail=detail)

    @contextmanager
    def capturing(self, *names: str) -> Iterator[None]:
        """Inside the `with`, warnings and the messages of these loggers become lines of this log."""
        loggers = [logging.getLogger(name) for name in (*names, "py.warnings")]
        before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
        for logger in loggers:
            logger.handlers, logger.propagate = [_LogHandler(self)], False
            logger.setLevel(logging.WARNING)
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
                logger.handlers, logger.propagate = handlers, propagate
                logger.setLevel(level)


class _LogHandler(logging.Handler):
    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        detail = {}
        if record.exc_info and record.exc_info[1]:
            detail = {"detail": "".join(traceback.format_exception(record.exc_info[1]))}
        self._log.event("note", source=record.name, message=record.getMessage().strip(), **detail)


class Histogram:
    """Counts of observations up to each bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts = bounds, [0] * (len(bounds) + 1)
        self._sum, self._lock = 0.0, threading.Lock()

    def observe(self, value: float) -> None:
        """Add an observation."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """Lines in the text format of Prometheus."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        running = 0
        for bound, count in zip((*self._bounds, float("inf")), counts, strict=True):
            running += count
            text = "+Inf" if bound == float("inf") else f"{bound:g}"
            yield f'{name}_bucket{{le="{text}"}} {running}'
        yield f"{name}_sum {total:.9g}"
        yield f"{name}_count {running}"


class Metrics:
    """Counters and histograms since the start of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._jobs: Counter[str] = Counter()
        self._images = 0
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(IMAGES)

    def request(self, route: str, method: str, status: int) -> None:
        """Count an answer."""
        with self._lock:
            self._requests[route, method, status] += 1

    def predicted(self, images: int, seconds: float) -> None:
        """Count an answered request for predictions."""
        self.seconds.observe(seconds)
        with self._lock:
            self._images += images

    def job(self, state: str) -> None:
        """Count a job that ended in this state."""
        with self._lock:
            self._jobs[state] += 1

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """All metrics in the text format of Prometheus; `gauges` is name -> (help, present value)."""
        with self._lock:
            requests, jobs, images = dict(self._requests), dict(self._jobs), self._images
        lines = [
            *_about("ease_requests_total", "counter", "answers by route and status"),
            *(
                f'ease_requests_total{{route="{route}",method="{method}",status="{status}"}} {count}'
                for (route, method, status), count in sorted(requests.items())
            ),
            *_about("ease_predict_seconds", "histogram", "from the arrival of a request to its predictions"),
            *self.seconds.lines("ease_predict_seconds"),
            *_about("ease_images_predicted_total", "counter", "images predicted"),
            f"ease_images_predicted_total {images}",
            *_about("ease_batch_images", "histogram", "images that went through the model together"),
            *self.batches.lines("ease_batch_images"),
            *_about("ease_jobs_total", "counter", "ended jobs by state"),
            *(f'ease_jobs_total{{state="{state}"}} {count}' for state, count in sorted(jobs.items())),
        ]
        for name, (about, value) in gauges.items():
            lines += [*_about(name, "gauge", about), f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def _about(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


_ARENA_MAX, _MMAP_THRESHOLD = -8, -3  # numbers of glibc's malloc.h
ARENAS = 2
LARGE_BYTES = 8 << 20
"""The matrices of a generation are larger than this. A threshold of 1 MB made batches of predictions 28 % slower, since
the activations of a batch were then returned as well."""


def bound_allocator() -> None:
    """Make the C library return large blocks to the system when they are freed, where it is glibc.

    Each generation has matrices of some 10 MB, which several threads allocate and free. By default glibc keeps such
    blocks for later, in up to eight heaps per core: a server that learns often would use far more memory than it
    needs. With a fixed threshold, blocks above it are separate mappings, which are removed when they are freed.
    """
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(_ARENA_MAX, ARENAS)
        library.mallopt(_MMAP_THRESHOLD, LARGE_BYTES)


def return_memory() -> None:
    """Give freed memory back to the system, where the C library is glibc."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Memory that this process uses now; its peak where the system does not report that."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        pass
    try:
        import resource
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)
