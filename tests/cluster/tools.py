"""Waiting for what happens on a cluster: never for ever, and never without a word about what did not happen."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

PATIENCE = 120.0
"""Seconds to wait for what takes a few on a machine that has nothing else to do."""
LIMIT = 300.0
"""Seconds that one test may take. A test takes up to 30 on a machine that has nothing else to do."""
GRACE = 60.0
"""Seconds to clean up after a test that was ended by its limit; then the process ends."""


def wait_for(
    found: Callable[[], Any],
    what: str,
    *,
    unless: Callable[[], Any] = lambda: None,
    seconds: float = PATIENCE,
) -> Any:
    """Wait until something is found, and return it.

    Args:
        found: looks for it.
        what: is waited for, for the message.
        unless: says why it cannot happen any more; the wait ends then.
        seconds: to wait.
    """
    until = time.monotonic() + seconds
    while not (value := found()):
        why = unless()  # asked before the last look, since both may become true in between
        if why and not (value := found()):
            raise AssertionError(f"{what}: it did not happen, since {why}")
        if why:
            return value
        assert time.monotonic() < until, f"{what}: it did not happen in {seconds:g} seconds"
        time.sleep(0.05)
    return value


class Meanwhile:
    """Something that is done in a thread while a test works; `over` is set when that work has ended."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def is_over(self) -> str:
        return "the work has ended" if self.over.is_set() else ""


@contextmanager
def meanwhile(act: Callable[[Meanwhile], None]) -> Iterator[None]:
    """Do something in a thread while the work inside the `with` is done; what it raises is raised at the end."""
    failures: list[BaseException] = []
    state = Meanwhile()

    def run() -> None:
        try:
            act(state)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        state.over.set()
        thread.join(PATIENCE)
    if failures:
        raise failures[0]
    assert not thread.is_alive(), f"{act.__name__} has not ended"


class Command:
    """A command that runs, and what it has written so far."""

    def __init__(self, words: Sequence[str], program: Sequence[str] = ("-m", "ease")) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *program, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._readers = [threading.Thread(target=self._read, args=(n,), daemon=True) for n in self._lines]
        for reader in self._readers:
            reader.start()

    def _read(self, name: str) -> None:
        for line in getattr(self.process, name):
            self._lines[name].append(line)

    @property
    def printed(self) -> str:
        return "".join(list(self._lines["stdout"]))

    @property
    def errors(self) -> str:
        return "".join(list(self._lines["stderr"]))

    @property
    def error_lines(self) -> list[str]:
        return list(self._lines["stderr"])

    def has_ended(self) -> str:
        """Why nothing more can be expected of it; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        self._join()
        return f"the command has ended with {code}: {self.errors[-2000:]}"

    def end(self, seconds: float = PATIENCE) -> int:
        """Wait until it ends and everything it wrote was read; return its exit code."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"the command has not ended in {seconds:g} seconds; it wrote:\n{self.errors[-2000:]}"
            ) from None
        self._join()
        return code

    def _join(self) -> None:
        for reader in self._readers:  # a grandchild may keep the pipe open: do not wait for it
            reader.join(5.0)


@contextmanager
def running(words: Sequence[str], program: Sequence[str] = ("-m", "ease")) -> Iterator[Command]:
    """A command, which is killed when its test fails: it would keep the cores of the cluster."""
    command = Command(words, program)
    try:
        yield command
    finally:
        command.process.kill()
        command.process.wait(PATIENCE)


class LimitReachedError(BaseException):
    """A test took longer than its limit. Not an `Exception`: nothing in between may catch it."""


@contextmanager
def limited(name: str, seconds: float, grace: float, output: int) -> Iterator[None]:
    """End what takes longer with the stacks of all threads: by an error, and if that does not help by `_exit`.

    Args:
        name: of what is limited.
        seconds: after which the error is raised, in the main thread.
        grace: seconds after that when the process is ended.
        output: file descriptor that the stacks are written to.
    """

    def ring(_: int, frame: FrameType | None) -> None:
        os.write(output, f"\n{name} has not ended after {seconds:g} seconds:\n".encode())
        faulthandler.dump_traceback(output, all_threads=True)
        raise LimitReachedError(f"it has not ended after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    faulthandler.dump_traceback_later(seconds + grace, exit=True, file=output)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)
