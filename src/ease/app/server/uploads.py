"""Multipart forms, written to disk while they arrive.

Files are stored under numbers: the names that a sender chose are never used as paths. What the files contain is checked
by `ease.streams.intake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ease.app.server.refusals import RefusalError
from ease.streams.intake.sources import NamedFile
from ease.streams.intake.sources.uploads import safe_suffix

CHUNK = 256 * 1024
"""Bytes that are parsed and written at a time."""
FIELD_BYTES = 4096
HEADER_BYTES = 8192
FIELDS = 16


@dataclass
class Form:
    """A multipart form whose files are on disk.

    Attributes:
        fields: Name of a part -> its value.
        files: Name of a part -> the files that were sent under it, in the order in which they arrived.
    """

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[NamedFile]] = field(default_factory=dict)


async def receive_form(
    kind: str,
    body: AsyncIterator[bytes],
    folder: Path,
    *,
    files: dict[str, int],
    fields: Sequence[str] = (),
    threads: Executor | None = None,
) -> Form:
    """Receive a form piece by piece; only one piece is ever in memory.

    Args:
        kind: The Content-Type of the request.
        body: The body of the request.
        folder: Where files are stored.
        files: Names of parts that may be files -> how many of each.
        fields: Names of parts that may be plain values.
        threads: Where pieces are parsed and written, so that other requests do not wait for the disk.

    Returns:
        The complete form.

    Raises:
        RefusalError: The form is damaged, incomplete or too large, or has parts that are not expected.
    """
    media, options = parse_options_header(kind)
    if media != b"multipart/form-data" or not options.get(b"boundary"):
        raise RefusalError(415, "send multipart/form-data with a boundary")
    loop = asyncio.get_running_loop()
    with _FormWriter(options[b"boundary"], folder, files, fields) as writer:
        waiting = bytearray()
        async for piece in body:
            waiting += piece
            if len(waiting) >= CHUNK:
                taken, waiting = bytes(waiting), bytearray()
                await loop.run_in_executor(threads, writer.write, taken)
        await loop.run_in_executor(threads, writer.write, bytes(waiting))
        return writer.complete_form()


class _FormWriter:
    """Parses a form piece by piece and writes its files to disk."""

    def __init__(self, boundary: bytes, folder: Path, files: dict[str, int], fields: Sequence[str]) -> None:
        self._form, self._folder, self._files, self._fields = Form(), folder, files, fields
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._field: tuple[str, bytearray] | None = None
        self._file: BinaryIO | None = None
        self._count = 0
        self._ended = False
        callbacks: dict[str, Callable[..., None]] = {
            "on_part_begin": self._begin,
            "on_header_field": lambda data, start, end: _grow(self._header, data[start:end]),
            "on_header_value": lambda data, start, end: _grow(self._value, data[start:end]),
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._part_end,
            "on_end": self._end,
        }
        try:
            self._parser = MultipartParser(boundary, callbacks)  # type: ignore[arg-type]
        except FormParserError as error:
            raise _not_a_form() from error

    def __enter__(self) -> _FormWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, piece: bytes) -> None:
        """Parse the next piece."""
        if not piece:
            return
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _not_a_form() from error

    def complete_form(self) -> Form:
        """The form, after its end has arrived."""
        if not self._ended:
            raise RefusalError(400, "the form ends before its last boundary: send it again")
        return self._form

    def _begin(self) -> None:
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""

    def _header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = bytes(self._value)
        self._header, self._value = bytearray(), bytearray()

    def _headers_finished(self) -> None:
        _, options = parse_options_header(self._disposition)
        part, name = _text(options.get(b"name", b"")), options.get(b"filename")
        if name is not None:
            self._begin_file(part, _text(name))
        elif part in self._fields and len(self._form.fields) < FIELDS:
            self._field = (part, bytearray())
        elif part in self._files:
            raise RefusalError(422, f"part '{part}' must be a file with a name")
        else:
            raise self._unknown(part)

    def _begin_file(self, part: str, name: str) -> None:
        if part not in self._files:
            raise self._unknown(part)
        own = self._form.files.setdefault(part, [])
        if len(own) >= self._files[part]:
            raise RefusalError(
                413, f"more than {self._files[part]} parts named '{part}': send fewer at a time"
            )
        path = self._folder / f"{self._count:06d}{safe_suffix(name)}"
        own.append(NamedFile(name, path))
        self._count += 1
        self._file = open(path, "xb")  # noqa: SIM115 (closed at the part's end, or in __exit__)

    def _unknown(self, part: str) -> RefusalError:
        known = ", ".join((*self._files, *self._fields))
        return RefusalError(422, f"unknown part '{part[:60]}' in the form: known: {known}")

    def _data(self, data: bytes, start: int, end: int) -> None:
        if self._file is not None:
            self._file.write(memoryview(data)[start:end])
        elif self._field is not None:
            self._field[1].extend(data[start:end])
            if len(self._field[1]) > FIELD_BYTES:
                raise RefusalError(413, f"field '{self._field[0]}' is longer than {FIELD_BYTES} bytes")

    def _part_end(self) -> None:
        if self._file is not None:
            self._file.close()
        elif self._field is not None:
            self._form.fields[self._field[0]] = _text(bytes(self._field[1]))
        self._file = self._field = None

    def _end(self) -> None:
        self._ended = True


def _grow(header: bytearray, piece: bytes) -> None:
    header += piece
    if len(header) > HEADER_BYTES:
        raise RefusalError(400, f"a header of a part is longer than {HEADER_BYTES} bytes")


def _not_a_form() -> RefusalError:
    return RefusalError(400, "this is not a multipart form: check how it is sent")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RefusalError(400, "a name in the form is not UTF-8: send it as UTF-8") from error
