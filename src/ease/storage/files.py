"""Durable files: written atomically (completely or not at all), checked when they are read, and never pickled."""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors
from safetensors.torch import save as encode_safetensors
from torch import Tensor

from ease.documents import check_depth
from ease.errors import EaseError
from ease.filesystem import explained, is_folder, read_bytes, shown, size_of

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

JSON_LIMIT = 64 * 2**20
JSON_DEPTH = 64
TENSORS_LIMIT = 16 * 2**30
HEADER_LIMIT = 100 * 10**6  # safetensors' own


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


@dataclass(frozen=True)
class FileEntry:
    """The checksum and the size of a file, as recorded in a manifest."""

    sha256: str
    size: int


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


# --- JSON -----------------------------------------------------------------------------------------


def encode_json(value: Any) -> bytes:
    """The one way a JSON value is written: insertion order, indent 1, no NaN, a newline at the end."""
    try:
        return (json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a class named after a folder whose name is not valid UTF-8
        return (json.dumps(value, indent=1, allow_nan=False) + "\n").encode()


def decode_json(data: bytes, path: Path | str) -> Any:
    """The value in `data`; `path` is for the error."""
    try:
        value = json.loads(data.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise BrokenFileError(f"{path} is damaged (not valid JSON): restore it from a backup") from error
    try:
        check_depth(value, JSON_DEPTH)
    except ValueError:
        raise EaseError(
            f"{path} is nested deeper than {JSON_DEPTH} levels: check that it is the right file"
        ) from None
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def write_json(path: Path | str, value: Any) -> None:
    """Write a JSON value. One that JSON cannot hold (NaN, an object) raises before anything is written."""
    write_atomic(path, encode_json(value))


def read_json(path: Path | str, limit_bytes: int = JSON_LIMIT) -> Any:
    """Read a JSON value of bounded size and depth."""
    return decode_json(read_bytes(path, limit_bytes), path)


# --- tensors --------------------------------------------------------------------------------------


def entry_of(data: bytes) -> FileEntry:
    """Checksum and size of a content."""
    return FileEntry(hashlib.sha256(data).hexdigest(), len(data))


def sha256_of(path: Path | str) -> str:
    """SHA-256 of a file, as `sha256sum` prints it."""
    digest = hashlib.sha256()
    with explained("read", path), open(path, "rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    return digest.hexdigest()


def encode_tensors(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Safetensors bytes that depend on names, values and metadata alone, not on any order of insertion."""
    plain: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        storage = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if storage in storages else value  # safetensors refuses shared memory
        storages.add(storage)
    data: bytes = encode_safetensors(plain)
    return _with_metadata(data, metadata) if metadata else data


def _with_metadata(data: bytes, metadata: Mapping[str, str]) -> bytes:
    # safetensors keeps metadata in a hash map, so its own order differs from process to process.
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": dict(sorted(metadata.items())), **json.loads(data[8 : 8 + length])}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def write_tensors(
    path: Path | str, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> FileEntry:
    """Write tensors as safetensors; equal tensors and metadata give equal bytes."""
    data = encode_tensors(tensors, metadata)
    write_atomic(path, data)
    return entry_of(data)


def read_tensors(path: Path | str, entry: FileEntry | None = None) -> dict[str, Tensor]:
    """Read safetensors; with an entry, only if size and checksum are the recorded ones."""
    data = read_checked(path, entry) if entry else read_bytes(path, TENSORS_LIMIT)
    try:
        # Sorted, because safetensors gives them in an order that differs from process to process.
        return dict(sorted(decode_safetensors(data).items()))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise damaged(path, "it is not valid safetensors") from error


def read_checked(path: Path | str, entry: FileEntry) -> bytes:
    """The bytes of a file whose size and checksum are the recorded ones; one of another size is not read."""
    size, data = size_of(path), b""
    if size == entry.size:
        data = read_bytes(path, TENSORS_LIMIT)
        size = len(data)
    if size != entry.size:
        raise damaged(path, f"it has {size} bytes in place of {entry.size}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise damaged(path, "its checksum differs")
    return data


def read_metadata(path: Path | str) -> dict[str, str]:
    """The text that was written beside the tensors, without reading the tensors."""
    path = Path(path)
    size = size_of(path)
    with explained("read", path), open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= min(size, HEADER_LIMIT) else b""
    try:
        metadata = json.loads(header.decode()).get("__metadata__", {})
    except (ValueError, RecursionError, AttributeError) as error:
        raise damaged(path, "it is not valid safetensors") from error
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


class BrokenFileError(EaseError):
    """A file is not what was written, or is gone: whoever asked for something that needs it is not at fault."""


def damaged(path: Path | str, how: str) -> BrokenFileError:
    """The error for a model file that is not what was written."""
    return BrokenFileError(
        f"model file {path} is damaged ({how}): "
        "restore it from a backup or roll back to an earlier generation"
    )
