"""What durable files contain: JSON and tensors. They are checked when they are read, and never pickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors
from safetensors.torch import save as encode_safetensors
from torch import Tensor

from ease.documents import check_depth
from ease.errors import EaseError
from ease.filesystem import explained, read_bytes, size_of
from ease.storage.files import write_atomic

JSON_LIMIT = 64 * 2**20
JSON_DEPTH = 64
TENSORS_LIMIT = 16 * 2**30
HEADER_LIMIT = 100 * 10**6  # safetensors' own


@dataclass(frozen=True)
class FileEntry:
    """The checksum and the size of a file, as recorded in a manifest."""

    sha256: str
    size: int


class BrokenFileError(EaseError):
    """A file is not what was written, or is gone: whoever asked for something that needs it is not at fault."""


def damaged(path: Path | str, how: str) -> BrokenFileError:
    """The error for a model file that is not what was written."""
    return BrokenFileError(
        f"model file {path} is damaged ({how}): "
        "restore it from a backup or roll back to an earlier generation"
    )


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
