"""One job in a process of its own: `python -m ease.app.server.learning ORDER PARENT`.

It reads an order (JSON), learns, and tells of it in JSON lines on its standard output: how far it is, then what was
learned or why not. It ends when its parent does. The model directory changes at the very end, in one step.
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
PERIOD = 0.2
"""Seconds between two lines about how far it is."""

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """In the new process."""
    order_path, parent = Path(sys.argv[1]), int(sys.argv[2])
    # Libraries may print: what they say must not get among the lines, which go where stdout went.
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    with suppress(OSError, AttributeError):
        os.nice(NICENESS)  # predictions come first

    from ease.training.processes import begin_work

    order = json.loads(order_path.read_text(encoding="utf-8"))
    begin_work(int(order["threads"]), parent)
    os.chdir(
        order["folder"]
    )  # so that what is told of images, and kept in the model, are their relative paths

    def tell(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=lines, flush=True)

    learn(order, tell)


def learn(order: dict[str, Any], tell: Tell) -> None:
    """Carry an order out; what happens, good or bad, is told."""
    from ease.app.classifier import Classifier
    from ease.errors import EaseError

    try:
        tell({"progress": 0.01, "message": "opening the model"})
        classifier = Classifier.open(order["model"], order["weights"])
        images = {name: [Path(path) for path in paths] for name, paths in order["images"].items()}
        learned = classifier.learn(
            images,
            extend=order["extend"],
            tune=order["tune"],
            unreadable=order["unreadable"],
            thumbnails=order["thumbnails"],
            progress=Telling(tell),
        )
        tell({"learned": asdict(learned)})
    except EaseError as error:
        tell({"error": str(error)})
    except Exception as error:
        sentence = "learning failed in a way that was not foreseen: look at the server's log"
        tell({"error": sentence, "detail": "".join(traceback.format_exception(error))})


class Telling:
    """Progress as one figure from 0 to 1. Training takes most of the time, so it gets most of the scale."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._figure, self._last, self._trained = 0.02, 0.0, False

    @contextmanager
    def bar(self, label: str, total: int, done: int = 0) -> Iterator[Callable[[int], None]]:
        """See `Progress`."""
        training = re.fullmatch(r"task \d+: .*", label) is not None
        self._trained = self._trained or training
        start, end = (0.1, 0.9) if training else (0.9, 0.99) if self._trained else (0.02, 0.1)
        message = "learning" if training else label
        made = done

        def advance(steps: int) -> None:
            nonlocal made
            made += steps
            self._move(start + (end - start) * min(1.0, made / max(1, total)), message)

        self._move(start, message, at_once=True)
        yield advance
        self._move(end, message)

    def say(self, line: str) -> None:
        """See `Progress`."""
        self._move(self._figure, line, at_once=True)

    def _move(self, figure: float, message: str, at_once: bool = False) -> None:
        self._figure = max(self._figure, figure)
        now = time.monotonic()
        if at_once or now - self._last >= PERIOD:
            self._last = now
            self._tell({"progress": round(self._figure, 4), "message": message})


if __name__ == "__main__":
    main()
