"""Make the n-th system call of a kind fail, or kill the process there."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

KINDS = ("open", "write", "fsync", "rename", "mkdir", "unlink")
HARMS = ("ENOSPC", "EIO", "EACCES", "kill", "full")
"""`full` fails every call of the kind from the n-th on with ENOSPC; the others strike once."""
KILLED = 9

_CALLS = {
    "rename": ("rename", "replace"),
    "mkdir": ("mkdir",),
    "unlink": ("unlink", "remove", "rmdir"),
    "fsync": ("fsync",),
    "open": ("open",),
}


class Injection:
    """Counts the calls below a folder, and does harm at one of them.

    Args:
        root: only paths below it count. A call relative to an open folder counts as well.
        kind: one of `KINDS`; None only counts.
        number: the call to strike, from 1.
        harm: one of `HARMS`.
    """

    def __init__(self, root: Path, kind: str | None = None, number: int = 0, harm: str = "EIO") -> None:
        self._root, self._kind, self._number, self._harm = str(root), kind, number, harm
        self._owner = os.getpid()
        self.counts: Counter[str] = Counter()
        self.struck = 0

    def before(self, kind: str, path: Any = None) -> None:
        """Called before each call. A harm strikes here."""
        if self.is_due(kind, path):
            self.strike(path)

    def is_due(self, kind: str, path: Any) -> bool:
        """Count a call; True if it is the one to strike."""
        if os.getpid() != self._owner or not (path is None or self._is_below(path)):
            return False
        self.counts[kind] += 1
        count = self.counts[kind]
        return kind == self._kind and (
            count == self._number or (self._harm == "full" and count > self._number)
        )

    def strike(self, path: Any = None) -> None:
        """Do the harm. As from the system, the error names the path if the call did."""
        self.struck += 1
        if self._harm == "kill":
            os._exit(KILLED)
        number = errno.ENOSPC if self._harm == "full" else getattr(errno, self._harm)
        raise OSError(number, os.strerror(number), *(() if path is None else (os.fsdecode(path),)))

    def _is_below(self, path: Any) -> bool:
        return not isinstance(path, int) and os.path.abspath(os.fsdecode(path)).startswith(self._root)


class _TornFile(io.FileIO):
    """A file whose failing write puts half of the data on the disk first."""

    injection: Injection

    def write(self, data: Any) -> int:
        if self.injection.is_due("write", self.name):
            super().write(bytes(data)[: len(data) // 2])
            self.injection.strike()
        return super().write(data)


def _opened(injection: Injection, real: Callable[..., Any]) -> Callable[..., Any]:
    def opens(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
        if isinstance(file, int):
            return real(file, mode, buffering, *args, **options)
        if options.get("opener") is None:  # else os.open is asked, and counts
            injection.before("open", file)
        if not set(mode) & set("wxa") or "+" in mode or buffering == 0 or args:
            return real(file, mode, buffering, *args, **options)
        raw = _TornFile(file, mode.replace("b", "").replace("t", ""), opener=options.pop("opener", None))
        raw.injection = injection
        buffered = io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, **options)

    return opens


@contextlib.contextmanager
def injected(injection: Injection) -> Iterator[Injection]:
    """Inside the `with`, calls of this process go through the injection."""
    real = {name: getattr(os, name) for names in _CALLS.values() for name in names}
    real_open = builtins.open

    def through(kind: str, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            path = None if options.get("dir_fd") is not None or kind == "fsync" else args[0]
            injection.before(kind, path)
            return real[name](*args, **options)

        return call

    for kind, names in _CALLS.items():
        for name in names:
            setattr(os, name, through(kind, name))
    builtins.open = io.open = _opened(injection, real_open)  # type: ignore[assignment]
    try:
        yield injection
    finally:
        builtins.open = io.open = real_open
        for name, call in real.items():
            setattr(os, name, call)


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked process and return its exit code; an exception is 1."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
