"""What the server tells of itself: one JSON line per event on stderr, and figures for Prometheus."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any, TextIO

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)


class Log:
    """JSON lines. Never an image, never a token."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def event(self, kind: str, **fields: Any) -> None:
        """One line: the time, what happened, and its particulars."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "event": kind, **fields}, default=str)
        with self._lock:
            print(line, file=self._stream or sys.stderr, flush=True)

    def failure(self, what: str, error: BaseException) -> None:
        """Something that should not have happened: the traceback is for the log, never for an answer."""
        detail = "".join(traceback.format_exception(error))
        self.event("error", what=what, error=type(error).__name__, detail=detail)

    def take_over(self, *names: str) -> None:
        """What libraries log, and warnings, become lines of the same kind."""
        logging.captureWarnings(True)
        for name in (*names, "py.warnings"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [_Lines(self)], False
            logger.setLevel(logging.WARNING)


class _Lines(logging.Handler):
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
        """One more observation."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def lines(self, name: str) -> Iterator[str]:
        """As Prometheus reads it."""
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
    """Figures since the start of the process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._jobs: Counter[str] = Counter()
        self._images = 0
        self.seconds = Histogram(SECONDS)
        self.batches = Histogram(IMAGES)

    def request(self, route: str, method: str, status: int) -> None:
        """One more answer."""
        with self._lock:
            self._requests[route, method, status] += 1

    def predicted(self, images: int, seconds: float) -> None:
        """One more request for predictions, answered."""
        self.seconds.observe(seconds)
        with self._lock:
            self._images += images

    def job(self, state: str) -> None:
        """One more job that ended so."""
        with self._lock:
            self._jobs[state] += 1

    def text(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Everything in Prometheus' text format; `gauges` is name -> (help, value now)."""
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
            *_about("ease_images_predicted_total", "counter", "images that were predicted"),
            f"ease_images_predicted_total {images}",
            *_about("ease_batch_images", "histogram", "images that went through the model together"),
            *self.batches.lines("ease_batch_images"),
            *_about("ease_jobs_total", "counter", "jobs by how they ended"),
            *(f'ease_jobs_total{{state="{state}"}} {count}' for state, count in sorted(jobs.items())),
        ]
        for name, (about, value) in gauges.items():
            lines += [*_about(name, "gauge", about), f"{name} {value:.15g}"]
        return "\n".join(lines) + "\n"


def _about(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def resident_bytes() -> int:
    """Memory this process holds now; where the system does not tell, its peak."""
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
