"""Durable files: whole or not there at all, checked when read, and never pickled."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors
from safetensors.torch import save as encode_safetensors
from torch import Tensor

from ease.errors import EaseError

JSON_LIMIT = 64 * 2**20
JSON_DEPTH = 64
TENSORS_LIMIT = 16 * 2**30
HEADER_LIMIT = 100 * 10**6  # safetensors' own


def _no_fault(point: str, path: Path) -> None:
    """Nothing goes wrong."""


fault: Callable[[str, Path], None] = _no_fault
"""Called at every point where a crash or a full disk could strike; tests put their accident here."""


@dataclass(frozen=True)
class FileEntry:
    """What a manifest remembers of a file's content."""

    sha256: str
    size: int


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
}


def explain(action: str, path: Path, error: OSError) -> EaseError:
    """The operating system's complaint as one line with a remedy."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    remedy = _REMEDIES.get(error.errno or 0, f"{reason}: check the disk and run again")
    return EaseError(f"cannot {action} {path}: {remedy}")


@contextlib.contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turns an `OSError` inside into an `EaseError`."""
    try:
        yield
    except OSError as error:
        raise explain(action, path, error) from error


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, each recorded on disk in the folder above it."""
    with explained("make the folder", folder):
        if folder.is_dir():
            return
        missing = [f for f in (folder, *folder.parents) if not f.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        for made in reversed(missing):
            sync_folder(made.parent)


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
    """Put `data` at `path`: afterwards it holds all of that, or, on an error or a crash, what it held before.

    Only the sync of the folder comes after the replacement. If that fails, the new content is in place but a
    power cut may still undo it. What is not `durable` survives a crash of the process, perhaps not of the
    machine: for caches that check what they read.
    """
    with replacing(path, durable) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path | str, durable: bool = True) -> Iterator[BinaryIO]:
    """As `write_atomic`, for content that is written piece by piece inside the `with`."""
    path = Path(path)
    temporary = temporary_beside(path)
    try:
        with explained("write", path):
            with open(temporary, "xb") as file:
                fault("before-write", path)
                yield file
                file.flush()
                fault("after-write", path)
                if durable:
                    fault("before-fsync", path)
                    os.fsync(file.fileno())
                    fault("after-fsync", path)
            fault("before-replace", path)
            os.replace(temporary, path)
            fault("after-replace", path)
            if durable:
                sync_folder(path.parent)
    except BaseException:  # Ctrl-C as well must leave no litter
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def temporary_beside(path: Path) -> Path:
    """A name that nobody else uses, for what will be renamed to `path` once it is whole."""
    return path.with_name(f".{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")


def remove(path: Path) -> None:
    """Remove a file; it is no error if it is gone already."""
    with explained("remove", path):
        fault("before-remove", path)
        path.unlink(missing_ok=True)
        fault("after-remove", path)


def sweep(folder: Path | str, name: str = "*") -> list[Path]:
    """Remove what crashed writers of files called `name` (a glob) left in `folder`, and say what it was.

    Only for one who knows that nobody else is writing these files now: a live temporary file looks the same.
    """
    litter = sorted(Path(folder).glob(f".{name}.tmp-*-*"))
    for path in litter:
        remove(path)
    return litter


def read_bytes(path: Path | str, limit_bytes: int) -> bytes:
    """The content of a regular file no larger than the limit."""
    path = Path(path)
    with explained("read", path):
        facts = path.stat()
        # A pipe or a device would block or never end.
        if not stat.S_ISREG(facts.st_mode):
            raise EaseError(f"cannot read {path}: it is not a regular file, check the path")
        if facts.st_size > limit_bytes:
            raise EaseError(
                f"cannot read {path}: {facts.st_size} bytes are more than the {limit_bytes} allowed, "
                "check that it is the right file"
            )
        with open(path, "rb") as file:
            return file.read(limit_bytes)


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
        raise EaseError(f"{path} is damaged (not valid JSON): restore it from a backup") from error
    layer, depth = [value], 0
    while layer:
        depth += 1
        if depth > JSON_DEPTH:
            raise EaseError(
                f"{path} is nested deeper than {JSON_DEPTH} levels: check that it is the right file"
            )
        inner = (v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, dict | list))
        layer = [v for values in inner for v in values]
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
    """The bytes of a file whose size and checksum are the recorded ones."""
    data = read_bytes(path, TENSORS_LIMIT)
    if len(data) != entry.size:
        raise damaged(path, f"it has {len(data)} bytes in place of {entry.size}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise damaged(path, "its checksum differs")
    return data


def read_metadata(path: Path | str) -> dict[str, str]:
    """The text that was written beside the tensors, without reading the tensors."""
    path = Path(path)
    with explained("read", path), open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= HEADER_LIMIT else b""
    try:
        metadata = json.loads(header.decode()).get("__metadata__", {})
    except (ValueError, RecursionError, AttributeError) as error:
        raise damaged(path, "it is not valid safetensors") from error
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def damaged(path: Path | str, how: str) -> EaseError:
    """The error for a model file that is not what was written."""
    return EaseError(
        f"model file {path} is damaged ({how}): "
        "restore it from a backup or roll back to an earlier generation"
    )
