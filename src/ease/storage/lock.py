"""One writer at a time: a lock that the operating system releases when its holder dies."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from ease.errors import EaseError
from ease.filesystem import explain
from ease.storage.files import make_folder, remove_empty

_BUSY = (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_UNSUPPORTED = (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)

_ATTEMPTS = 100
"""How often the lock file may vanish between being opened and being locked, because its last holder left nothing."""

_held: set[WriterLock] = set()


class BusyError(EaseError):
    """Somebody else is writing: the same wish may be granted later."""


class WriterLock:
    """The right to write in one folder. It is never waited for, and the thread that holds it may take it again.

    A folder that was made for the lock and in which nothing was written is removed with it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / ".lock"
        # Where the file system cannot lock, this file's existence is the lock; a crash then leaves it behind.
        self.flag = folder / ".lock-held"
        self._thread = threading.RLock()
        self._handle: int | None = None
        self._flagged = False
        self._made: list[Path] = []

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lock inside the `with`, or fail at once."""
        if not self._thread.acquire(blocking=False):
            raise self._busy()
        try:
            if self._handle is not None:
                yield
                return
            self._take()
            try:
                yield
            finally:
                self._release()
        finally:
            self._thread.release()

    def renew(self) -> None:
        """Take the lock again if it is held and somebody has removed its file, or the folder, beneath its holder."""
        held = self._handle
        if held is None or _is_at(held, self.path):
            return
        self._handle = None
        try:
            self._take()
        except BaseException:
            self._handle = held
            raise
        os.close(held)

    def _busy(self) -> BusyError:
        return BusyError(
            f"another process is writing {self.folder}: wait until it ends, or choose another folder"
        )

    def _take(self) -> None:
        for _ in range(_ATTEMPTS):
            made = make_folder(self.folder)
            if self._acquire():
                self._made = made
                return
        raise self._busy()

    def _acquire(self) -> bool:
        """False if the file that was locked is no longer the one at its path: its last holder has removed it."""
        try:
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain("lock", self.path, error) from error
        try:
            _lock(handle)
        except OSError as error:
            if error.errno in _BUSY:
                os.close(handle)
                raise self._busy() from error
            if error.errno not in _UNSUPPORTED:
                os.close(handle)
                raise explain("lock", self.path, error) from error
            try:
                self._raise_flag()
            except BaseException:
                os.close(handle)
                raise
        if not _is_at(handle, self.path):
            self._lower_flag()
            os.close(handle)
            return False
        self._handle = handle
        _held.add(self)
        return True

    def _raise_flag(self) -> None:
        try:
            os.close(os.open(self.flag, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError as error:
            raise BusyError(
                f"another process is writing {self.folder}, or died doing so: if none is, delete {self.flag}"
            ) from error
        except OSError as error:
            raise explain("lock", self.flag, error) from error
        self._flagged = True

    def _release(self) -> None:
        _held.discard(self)
        handle, self._handle = self._handle, None
        if handle is None:  # forgotten in a forked child
            return
        self._lower_flag()
        self._leave_nothing()  # before the lock is given back: who has it next must not lose the folder
        os.close(handle)

    def _lower_flag(self) -> None:
        if self._flagged:
            self._flagged = False
            with contextlib.suppress(OSError):
                self.flag.unlink()

    def _leave_nothing(self) -> None:
        """Remove the folders that were made to lock, if nothing but the lock is in them."""
        made, self._made = self._made, []
        with contextlib.suppress(OSError):  # not empty, or the system does not remove what is open
            if made and os.listdir(self.folder) == [self.path.name]:
                self.path.unlink()
                remove_empty(made)

    def _forget(self) -> None:
        """In a forked child: the lock is the parent's and must end with the parent, not with this copy."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle, self._flagged, self._made = None, False, []
        self._thread = threading.RLock()


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path))
    except OSError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _after_fork_in_child() -> None:
    for lock in list(_held):
        lock._forget()
    _held.clear()


if hasattr(os, "register_at_fork"):  # data loader workers outlive a killed parent for a while
    os.register_at_fork(after_in_child=_after_fork_in_child)
