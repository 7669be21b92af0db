"""One job in its own process: `python -m ease.app.server.learning ORDER PARENT`.

It reads an order (JSON file), learns, and writes JSON lines to its standard output: its progress, then the result or
the error. It ends when its parent process does. The model directory is changed at the very end, in one step.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

NICENESS = 10
REPORT_PERIOD = 0.2
"""Least number of seconds between two lines about the progress."""

Report = Callable[[dict[str, Any]], None]


def main() -> None:
    """Entry point of the new process."""
    order_path, parent = Path(sys.argv[1]), int(sys.argv[2])
    # Libraries may print to stdout: their output must not get among the JSON lines.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)  # predictions have priority

    from ease.training.processes import begin_work

    order = json.loads(order_path.read_text(encoding="utf-8"))
    begin_work(int(order["threads"]), parent)
    # Paths in messages and in the model's notes are then relative to the folder of the images.
    os.chdir(order["folder"])

    def report(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=lines, flush=True)

    learn(order, report)


def learn(order: dict[str, Any], report: Report) -> None:
    """Carry out an order and report its progress and its result or error."""
    from ease.app.classifier import Classifier
    from ease.errors import EaseError

    try:
        report({"progress": 0.01, "message": "opening the model"})
        classifier = Classifier.open(order["model"], order["weights"], precision=order.get("precision"))
        if order.get("inbox") is not None:
            learned = classifier.learn_inbox(only=order["inbox"], progress=JobProgress(report))
            report({"learned": asdict(learned)})
            return
        images = {name: [Path(path) for path in paths] for name, paths in order["images"].items()}
        learned = classifier.learn(
            images,
            extend=order["extend"],
            tune=order["tune"],
            unreadable=order["unreadable"],
            thumbnails=order["thumbnails"],
            progress=JobProgress(report),
        )
        report({"learned": asdict(learned)})
    except EaseError as error:
        report({"error": str(error)})
    except Exception as error:
        sentence = "learning failed unexpectedly: see the server's log"
        report({"error": sentence, "detail": "".join(traceback.format_exception(error))})


class JobProgress:
    """Progress of a whole job from 0 to 1. Training takes most of the time, so it gets most of the scale."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._share, self._last, self._trained = 0.02, 0.0, False

    @contextmanager
    def bar(self, label: str, total: int | None, done: int = 0) -> Iterator[Callable[[int], None]]:
        """See `Progress`."""
        training = re.fullmatch(r"task \d+: .*", label) is not None
        self._trained = self._trained or training
        start, end = (0.1, 0.9) if training else (0.9, 0.99) if self._trained else (0.02, 0.1)
        message = "learning" if training else label
        made = done

        def advance(steps: int) -> None:
            nonlocal made
            made += steps
            self._move(start + (end - start) * min(1.0, made / max(1, total or 0)), message)

        self._move(start, message, at_once=True)
        yield advance
        self._move(end, message)

    def say(self, line: str) -> None:
        """See `Progress`."""
        self._move(self._share, line, at_once=True)

    def _move(self, share: float, message: str, at_once: bool = False) -> None:
        self._share = max(self._share, share)
        now = time.monotonic()
        if at_once or now - self._last >= REPORT_PERIOD:
            self._last = now
            self._report({"progress": round(self._share, 4), "message": message})


if __name__ == "__main__":
    main()
