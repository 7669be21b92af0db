"""Where the file system is asked: what lies at a path, what a file holds, and one kind of error for all of it."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ease.errors import EaseError

What = Literal["file", "folder", "special", "missing"]
"""What lies at a path, links followed. A pipe, a socket or a device is special: reading it may never end."""

PIECE = 2**16
"""How much is read at a time of a file that turns out longer than it said."""
LONGEST_SHOWN = 240
"""A path in a message is shortened beyond this; the system's own limit is 4,096 characters."""

_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space and run again",
    errno.EDQUOT: "your disk quota is used up: free some space and run again",
    errno.EFBIG: "the file size limit is reached: raise it (ulimit -f) and run again",
    errno.EACCES: "permission denied: change the folder's permissions or choose another folder",
    errno.EPERM: "not permitted: change the folder's permissions or choose another folder",
    errno.EROFS: "the disk is read-only: choose another folder",
    errno.ENOENT: "it does not exist: check the path",
    errno.EISDIR: "it is a folder: choose another name",
    errno.ENOTDIR: "a part of that path is a file: choose another folder",
    errno.EEXIST: "a file of that name is in the way: choose another folder",
    errno.ENAMETOOLONG: "the name is too long: choose a shorter one",
    errno.ELOOP: "its links lead in a circle: remove one of them",
    errno.EMFILE: "too many files are open: raise the limit (ulimit -n) and run again",
    errno.ENFILE: "too many files are open on this machine: close some programs and run again",
}


def explain(action: str, path: Path | str, error: OSError | ValueError) -> EaseError:
    """The operating system's complaint as one line with a remedy."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, ValueError):  # Python refuses such a path before the system is asked
        remedy = "the path holds a character that no path can have: check it"
    else:
        reason = os.strerror(number) if number else str(error)
        remedy = _REMEDIES.get(number or 0, f"{reason}: check the disk and run again")
    return EaseError(f"cannot {action} {shown(path)}: {remedy}")


@contextlib.contextmanager
def explained(action: str, path: Path | str) -> Iterator[None]:
    """Turns an `OSError` inside into an `EaseError`."""
    try:
        yield
    except OSError as error:
        raise explain(action, path, error) from error


def shown(path: Path | str) -> str:
    """A path as a message shows it: the beginning and the end of a very long one."""
    text = str(path) or "''"
    half = LONGEST_SHOWN // 2
    return text if len(text) <= LONGEST_SHOWN else f"{text[:half]}...{text[-half:]}"


# --- what is there --------------------------------------------------------------------------------


def what_is(path: Path | str) -> What:
    """What lies at a path, links followed; one that may not be looked at is an error, not missing."""
    try:
        return _what(os.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError) as error:
        raise explain("look at", path, error) from error


def _what(facts: os.stat_result) -> What:
    if stat.S_ISREG(facts.st_mode):
        return "file"
    return "folder" if stat.S_ISDIR(facts.st_mode) else "special"


def exists(path: Path | str) -> bool:
    """Whether anything is there; a link to nothing is nothing."""
    return what_is(path) != "missing"


def is_file(path: Path | str) -> bool:
    """Whether a regular file is there."""
    return what_is(path) == "file"


def is_folder(path: Path | str) -> bool:
    """Whether a folder is there."""
    return what_is(path) == "folder"


def size_of(path: Path | str) -> int:
    """Bytes of a file."""
    with explained("look at", path):
        return os.stat(path).st_size


def expanded(path: Path | str) -> Path:
    """A path with `~` or `~name` at its beginning replaced by that person's home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise EaseError(f"cannot find the home folder in {shown(path)}: write the path out") from error


def resolved(path: Path | str) -> Path:
    """The absolute path without links."""
    try:
        return Path(path).resolve()
    except (OSError, ValueError) as error:
        raise explain("look at", path, error) from error
    except RuntimeError as error:  # how Python tells of a loop
        raise explain("look at", path, OSError(errno.ELOOP, os.strerror(errno.ELOOP))) from error


def is_inside(path: Path | str, folder: Path | str) -> bool:
    """Whether a path, links followed, is that of a folder or of something in it."""
    return resolved(path).is_relative_to(resolved(folder))


def entries(folder: Path | str) -> list[Path]:
    """What a folder holds, in the order of names."""
    with explained("list", folder):
        return sorted(Path(folder).iterdir())


# --- reading --------------------------------------------------------------------------------------


def read_bytes(path: Path | str, limit_bytes: int) -> bytes:
    """The content of a regular file no larger than the limit. No more memory is asked for than the file has."""
    path = Path(path)
    with explained("read", path):
        _check_readable(path, _stat(path), limit_bytes)
        with open(path, "rb", opener=_open_at_once) as file:
            facts = os.fstat(file.fileno())
            _check_readable(path, facts, limit_bytes)
            if not facts.st_size:  # files of the system that say so may never end
                return b""
            pieces = [file.read(facts.st_size)]
            length = len(pieces[0])
            while piece := file.read(PIECE):  # it has grown meanwhile
                pieces.append(piece)
                length += len(piece)
                if length > limit_bytes:
                    raise _too_large(path, length, limit_bytes)
            return b"".join(pieces)


def content_digest(path: Path | str) -> str:
    """A hash of a file's content. A file that has not changed since it was last hashed is not read again."""
    with explained("read", path):
        facts = _stat(Path(path))
        return _content_digest(str(path), facts.st_size, facts.st_mtime_ns, facts.st_ino)


@lru_cache(maxsize=64)
def _content_digest(path: str, size: int, changed: int, inode: int) -> str:
    if what_is(path) != "file":
        raise EaseError(f"cannot read {shown(path)}: it is not a regular file, check the path")
    digest = hashlib.blake2b(digest_size=16)
    if not size:  # files of the system that say so may never end
        return digest.hexdigest()
    with open(path, "rb", opener=_open_at_once) as file:
        while piece := file.read(16 * PIECE):
            digest.update(piece)
    return digest.hexdigest()


def read_text(path: Path | str, limit_bytes: int) -> str:
    """The content of a text file in UTF-8, with or without a byte order mark."""
    try:
        return read_bytes(path, limit_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise EaseError(f"cannot read {shown(path)}: it is not UTF-8 text, save it as such") from error


def _stat(path: Path) -> os.stat_result:
    try:
        return os.stat(path)
    except ValueError as error:
        raise explain("read", path, error) from error


def _open_at_once(path: str, flags: int) -> int:
    """A pipe that took the file's place since it was looked at must not be waited for."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _check_readable(path: Path, facts: os.stat_result, limit_bytes: int) -> None:
    what = _what(facts)
    if what == "folder":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if what == "special":
        raise EaseError(f"cannot read {shown(path)}: it is not a regular file, check the path")
    if facts.st_size > limit_bytes:
        raise _too_large(path, facts.st_size, limit_bytes)


def _too_large(path: Path, size: int, limit_bytes: int) -> EaseError:
    return EaseError(
        f"cannot read {shown(path)}: {size} bytes are more than the {limit_bytes} allowed, "
        "check that it is the right file"
    )
