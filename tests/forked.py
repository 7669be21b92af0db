"""Processes that are forked from the one of the tests: a new interpreter takes seconds to import torch."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ease.errors import EaseError


class Forked:
    """A child that does some work, and then ends with exit code 0, or that of a `SystemExit`, or 1 for an error.

    Attributes:
        pid: Its number.
        out: The file with what it has printed; errors stand in it, too, unless `errors` is another one.
    """

    def __init__(self, work: Callable[[], object], out: Path, errors: Path | None = None) -> None:
        self.out = out
        self._code: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(work, errors or out)

    def _work(self, work: Callable[[], object], errors: Path) -> None:
        code = 1
        try:
            atexit._clear()  # what the process of the tests does at its end is not for its children to do
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number, path in ((1, self.out), (2, errors)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8")
            sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8")
            work()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, or None as long as it runs."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, seconds: float = 300) -> int:
        """The exit code when it has ended. One that does not end in time is killed, which is an error."""
        until = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                raise TimeoutError(f"a child has not ended; it has printed {self.out.read_text()}")
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send it a signal, if it is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Leave it no chance to tidy up."""
        self.send_signal(signal.SIGKILL)


def ease_command(*words: object) -> Callable[[], None]:
    """Work for a child: the `ease` command with these words."""
    from ease.cli import main, parser

    parser()  # made here once, and not in each child

    def work() -> None:
        sys.argv = ["ease", *map(str, words)]
        main()

    return work


def in_little_memory(work: Callable[[], object], out: Path) -> str:
    """What work prints, or the error it ends with. It may take 400 MiB; at 4 GiB the system stops it."""

    def measured() -> None:
        import resource  # other systems have none

        own = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (own + 4096 * 2**20, own + 4096 * 2**20))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            print(work())
        except EaseError as error:
            print(error)
        taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
        assert taken < 400, f"it took {taken} MiB"

    assert Forked(measured, out).wait() == 0, out.read_text()[-2000:]
    (line,) = out.read_text().splitlines()
    return line
