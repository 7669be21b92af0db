"""Durable files: written atomically, completely or not at all. What a killed writer leaves is removed later."""

from __future__ import annotations

import contextlib
import errno
import glob
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import BinaryIO

from ease.errors import EaseError
from ease.filesystem import explained, is_folder, shown

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Fence = Callable[[], None]
"""Raises if this process may no longer write."""

_fences: list[tuple[Path, Fence]] = []


@contextlib.contextmanager
def fenced(folder: Path, check: Fence) -> Iterator[None]:
    """Inside the `with`, `check` is called before anything in the folder is replaced, made or removed.

    It is called at the last moment, when the new content is complete beside the old. A process that is stopped
    between the check and the rename can still write one file late; it is a complete one.
    """
    entry = (Path(os.path.abspath(folder)), check)
    _fences.append(entry)
    try:
        yield
    finally:
        _fences.remove(entry)


def check_fence(path: Path) -> None:
    """Raise if this process may no longer write at a path."""
    if _fences:
        place = Path(os.path.abspath(path))
        for folder, check in list(_fences):
            if place.is_relative_to(folder):
                check()


def _no_fault(point: str, path: Path) -> None:
    """Nothing goes wrong."""


fault: Callable[[str, Path], None] = _no_fault
"""Called at every point where a crash or a full disk could occur; tests replace it to simulate one."""


def make_folder(folder: Path) -> list[Path]:
    """Make a folder and its parents, each recorded on disk in the folder above it, all of them or none.

    Returns:
        Those that were not there, the deepest first.
    """
    with explained("make the folder", folder):
        if folder.is_dir():
            return []
        check_fence(folder)
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for made in reversed(missing):
                sync_folder(made.parent)
        except BaseException:
            remove_empty(missing)
            raise
    return missing


def remove_empty(folders: Iterable[Path]) -> None:
    """Remove these folders, as far as they are there and empty."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder for what is written inside the `with`; if that fails, what was made and is empty goes again."""
    made = make_folder(folder)
    try:
        yield
    except BaseException:
        remove_empty(made)
        raise


def write_all(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write several files into a folder, which is made if need be; if one fails, the new ones go again.

    Args:
        folder: where to.
        contents: name -> content.

    Returns:
        The paths, in the same order.
    """
    paths, new = [folder / name for name in contents], []
    with made_folder(folder):
        try:
            for path, data in zip(paths, contents.values(), strict=True):
                if not os.path.lexists(path):
                    new.append(path)
                write_atomic(path, data)
        except BaseException:
            for path in new:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            raise
    return paths


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder survive a power cut."""
    fault("before-folder-fsync", folder)
    if os.name == "posix":  # elsewhere a folder cannot be opened
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            # Some network file systems cannot sync a folder; they then order renames themselves.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(handle)
    fault("after-folder-fsync", folder)


def write_atomic(path: Path | str, data: bytes, durable: bool = True) -> None:
    """Replace the content of `path` by `data` atomically: after an error or a crash the old content is still there.

    Only the sync of the folder comes after the replacement. If that fails, the new content is in place but may be
    lost in a power failure. With `durable=False` nothing is synced: the file survives a crash of the process but
    perhaps not one of the machine. This is for caches that check what they read.
    """
    with replacing(path, durable) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path | str, durable: bool = True) -> Iterator[BinaryIO]:
    """As `write_atomic`, for content that is written piece by piece inside the `with`."""
    path = Path(path)
    _check_replaceable(path)
    if durable:
        remove_abandoned(path)
    temporary = temporary_beside(path)
    try:
        with explained("write", path):
            with open(temporary, "xb") as file:
                claim(file.fileno())
                fault("before-write", path)
                yield file
                file.flush()
                fault("after-write", path)
                if durable:
                    fault("before-fsync", path)
                    os.fsync(file.fileno())
                    fault("after-fsync", path)
            fault("before-replace", path)
            check_fence(path)
            os.replace(temporary, path)
            fault("after-replace", path)
            if durable:
                sync_folder(path.parent)
    except BaseException:  # nor may Ctrl-C leave a temporary file
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def check_place(path: Path) -> None:
    """Refuse a path that no file could be written to, before the work for it is done. Nothing is made."""
    _check_replaceable(path)
    if not path.name or is_folder(path):
        raise EaseError(f"cannot write {shown(path)}: it is a folder, name a file")
    check_folder_place(path.parent)


def check_folder_place(folder: Path) -> None:
    """Refuse a path that no folder could be made at: something above it is no folder. Nothing is made."""
    with explained("make the folder", folder):
        there = next(f for f in (folder, *folder.parents) if os.path.lexists(f) or f == f.parent)
        if not is_folder(there):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _check_replaceable(path: Path) -> None:
    """A file takes the place of what was there. A device or a pipe that was named by mistake is not replaced."""
    with explained("write", path), contextlib.suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode) or stat.S_ISDIR(mode)):
            raise EaseError(f"cannot write {path}: it is a device or a pipe, name a file")


def temporary_beside(path: Path) -> Path:
    """An unused name in the same folder, for a file that is renamed to `path` once it is complete."""
    if not path.name:
        raise EaseError(f"cannot write '{path}': it is a folder, name a file")
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def claim(handle: int) -> None:
    """Hold a temporary file or folder for as long as it is open, so that `remove_abandoned` leaves it alone."""
    if fcntl is not None:
        with contextlib.suppress(OSError):  # where nothing can be locked, nothing is removed either
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files and folders of `path` that writers left beside it when they were killed.

    One whose writer lives is left alone: it is a process of this machine, or one of another machine that holds a lock.
    A folder of this very process that holds no lock was left by a writer that failed and could not remove it.
    """
    if fcntl is None:
        return
    for left in path.parent.glob(f".{glob.escape(path.name)}.tmp-*-*"):
        writer = re.fullmatch(r".+\.tmp-([0-9]{1,10})-[0-9a-f]+", left.name, re.DOTALL)
        if writer is None:
            continue
        failed_here = int(writer[1]) == os.getpid() and left.is_dir()
        if _is_alive(int(writer[1])) and not failed_here:
            continue
        with contextlib.suppress(OSError):
            handle = os.open(left, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            finally:
                os.close(handle)


@contextlib.contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """A new folder beside `path` for what is made for it inside the `with`; it may be renamed to `path`.

    Afterwards it is gone, and with it the folders above that were made for it, if they are empty. The next one for
    the same path removes that of a process that was killed.
    """
    remove_abandoned(path)
    temporary = temporary_beside(path)
    with explained("write", path), contextlib.ExitStack() as held:
        made = make_folder(temporary)
        held.callback(remove_empty, made)
        held.callback(shutil.rmtree, temporary, ignore_errors=True)
        if os.name == "posix":  # elsewhere a folder cannot be opened
            handle = os.open(temporary, os.O_RDONLY)
            held.callback(os.close, handle)
            claim(handle)
        yield temporary


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def remove(path: Path) -> None:
    """Remove a file; it is no error if it is gone already."""
    with explained("remove", path):
        fault("before-remove", path)
        check_fence(path)
        path.unlink(missing_ok=True)
        fault("after-remove", path)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all it holds, as far as that is possible; what is left does no harm."""
    check_fence(folder)
    shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path | str, name: str = "*") -> list[Path]:
    """Remove what crashed writers of files called `name` (a glob) left in `folder`, and say what it was.

    Only safe while no other process writes these files: a temporary file in use looks the same.
    """
    left = sorted(Path(folder).glob(f".{name}.tmp-*-*"))
    for path in left:
        remove(path)
    return left
