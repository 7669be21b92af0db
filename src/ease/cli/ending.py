"""How the console script ends: once, whatever signals come, and without waiting for threads that still load torch."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130

HASTE = 3.0
"""Seconds after a first signal in which others are ignored, so that they do not disturb the tidying up."""


class _Ending:
    """A handler of signals. The first one interrupts, and one that comes more than `HASTE` later ends the process."""

    def __init__(self) -> None:
        self._began: float | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now
            raise KeyboardInterrupt
        if now - self._began > HASTE:
            with contextlib.suppress(OSError):
                os.write(2, b"interrupted\n")
            os._exit(INTERRUPTED)


def end_once() -> None:
    """Treat SIGTERM like Ctrl-C, and both only once. A signal that this process was told to ignore stays ignored."""
    ending = _Ending()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, ending)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, ending)


def leave(code: int) -> NoReturn:
    """End the process. No signal changes the exit code any more.

    The interpreter is not taken apart while a thread runs that cannot be waited for, such as one that loads torch:
    the C++ libraries would call that a crash. Nor is it after an interruption: it would wait for threads that read
    images, and `python -m` could end by the signal in place of the exit code.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if code == INTERRUPTED or any(thread.daemon for thread in threading.enumerate()):
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)
