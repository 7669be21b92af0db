"""What people send: multipart forms streamed to disk, archives unpacked within bounds, images looked at before use.

While they come in, files are numbered: no name from outside becomes a path before it was made harmless.
"""

from __future__ import annotations

import asyncio
import io
import re
import stat
import threading
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ease.app.server.limits import MB, Limits
from ease.app.server.refusals import RefusalError
from ease.errors import EaseError
from ease.streams.intake.decode import EXTENSIONS, WHOLE_PIXELS, check_decodable, check_header
from ease.streams.intake.limits import ImageLimits
from ease.streams.intake.sources import class_name

CHUNK = 256 * 1024
FIELD_BYTES = 4096
HEADER_BYTES = 8192
FIELDS = 16
_LARGE = threading.Lock()
"""Large images are checked one at a time: one of them can take a gigabyte."""
_JUNK = {"__macosx", "thumbs.db", "desktop.ini"}


@dataclass(frozen=True)
class Upload:
    """One file that was sent: the part's name, what it was called, and where it lies now."""

    part: str
    name: str
    path: Path


@dataclass
class Form:
    """A multipart form on disk."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[Upload] = field(default_factory=list)


async def receive_form(
    kind: str,
    body: AsyncIterator[bytes],
    folder: Path,
    *,
    files: dict[str, int],
    fields: Sequence[str] = (),
    threads: Executor | None = None,
) -> Form:
    """Take a form in, piece by piece; only one piece is ever in memory.

    Args:
        kind: the request's Content-Type.
        body: the request's body.
        folder: where files go.
        files: names of parts that may be files -> how many of each.
        fields: names of parts that may be plain values.
        threads: where pieces are parsed and written, so that nobody else waits for the disk.
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
        return writer.whole()


class _FormWriter:
    """Parses pieces of a form; files go to disk as they come."""

    def __init__(self, boundary: bytes, folder: Path, files: dict[str, int], fields: Sequence[str]) -> None:
        self._form, self._folder, self._files, self._fields = Form(), folder, files, fields
        self._header, self._value = bytearray(), bytearray()
        self._disposition = b""
        self._field: tuple[str, bytearray] | None = None
        self._file: BinaryIO | None = None
        self._counts: Counter[str] = Counter()
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
            raise _no_form() from error

    def __enter__(self) -> _FormWriter:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def write(self, piece: bytes) -> None:
        """The next piece."""
        if not piece:
            return
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _no_form() from error

    def whole(self) -> Form:
        """The form, once its end was seen."""
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
        if self._counts[part] >= self._files[part]:
            raise RefusalError(
                413, f"more than {self._files[part]} parts named '{part}': send fewer at a time"
            )
        path = self._folder / f"{len(self._form.files):06d}{_suffix(name)}"
        self._form.files.append(Upload(part, name, path))
        self._counts[part] += 1
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


def _no_form() -> RefusalError:
    return RefusalError(400, "this is not a multipart form: check how it is sent")


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise RefusalError(400, "a name in the form is not UTF-8: send it as UTF-8") from error


def _suffix(name: str) -> str:
    """The file's kind, for decoders and people; never anything else of its name."""
    suffix = Path(name.replace("\\", "/")).suffix.lower()
    return suffix if suffix in EXTENSIONS else ""


# --- archives -------------------------------------------------------------------------------------


def unpack(archive: Path, folder: Path, limits: Limits) -> list[Upload]:
    """The images of a zip, numbered, in `folder`. Whatever else is in it is refused, by name."""
    try:
        with _Bounded(archive, limits.learn_files) as file, zipfile.ZipFile(file) as content:
            return list(_unpacked(content, folder, limits))
    except (RefusalError, EaseError, OSError):  # the disk's errors are none of the archive's
        raise
    except Exception as error:  # on damaged archives zipfile raises almost anything
        raise RefusalError(422, "the archive is damaged or no zip file: pack it again") from error


class _Bounded(io.BufferedReader):
    """A file whose list of members, which zipfile reads at once, must have a sane size, and all of it lie inside."""

    def __init__(self, path: Path, members: int) -> None:
        super().__init__(io.FileIO(path))
        self._most, self._members = max(MB, 300 * members), members
        self._end = path.stat().st_size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As any file, but not to a place outside of it: an archive may name one that no system can reach."""
        if whence == io.SEEK_SET and not 0 <= offset <= self._end:
            raise zipfile.BadZipFile("an offset lies outside of the archive")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        """As any file, up to a bound."""
        most = self._most + 1
        piece = super().read(most if size is None or size < 0 else min(size, most))
        if len(piece) == most:
            raise RefusalError(
                413, f"the archive has more than {self._members} members: send fewer at a time"
            )
        return piece


def _unpacked(content: zipfile.ZipFile, folder: Path, limits: Limits) -> Iterator[Upload]:
    wanted = [info for info in content.infolist() if not info.is_dir() and not _is_junk(_checked_name(info))]
    if len(wanted) > limits.learn_files:
        raise RefusalError(
            413, f"the archive has more than {limits.learn_files} images: send fewer at a time"
        )
    left = limits.unpacked_bytes
    if sum(info.file_size for info in wanted) > left:
        raise _too_large_unpacked(limits)
    for number, info in enumerate(wanted):
        name = _checked_name(info)
        _check_member(info, name)
        limits.image.check_bytes(info.file_size, shown(name))
        path, size = folder / f"z{number:06d}{_suffix(name)}", 0
        with content.open(info) as packed, open(path, "xb") as unpacked:
            while piece := packed.read(CHUNK):
                size += len(piece)  # what an archive declares is not to be believed
                limits.image.check_bytes(size, shown(name))
                if size > left:
                    raise _too_large_unpacked(limits)
                unpacked.write(piece)
        left -= size
        yield Upload("archive", name, path)


def _checked_name(info: zipfile.ZipInfo) -> str:
    name = info.filename.replace("\\", "/")
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise RefusalError(
            422, f"the archive's member '{shown(name)}' leads out of it: pack it again without"
        )
    return name


def _check_member(info: zipfile.ZipInfo, name: str) -> None:
    kind = stat.S_IFMT(info.external_attr >> 16)
    if kind not in (0, stat.S_IFREG):
        raise RefusalError(
            422, f"the archive's member '{shown(name)}' is a link or no file: pack the file itself"
        )
    if info.flag_bits & 0x1:
        raise RefusalError(
            422, f"the archive's member '{shown(name)}' is encrypted: pack it without a password"
        )
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise RefusalError(
            422, f"the archive's member '{shown(name)}' is packed in an unusual way: use plain zip"
        )
    _check_extension(name, needed=True)


def _too_large_unpacked(limits: Limits) -> RefusalError:
    return RefusalError(
        413,
        f"the archive is larger than {limits.unpacked_bytes // MB} MB unpacked: send fewer images at a time",
    )


# --- classes --------------------------------------------------------------------------------------


def arranged(uploads: Sequence[Upload], name: str | None = None) -> dict[str, list[Upload]]:
    """Images by class, from names such as CLASS/FILE; `name` is the class of plain files.

    One folder around all classes does not count, folders inside a class count to it.
    """
    parts = {upload.path: _parts(upload.name) for upload in uploads if not _is_junk(upload.name)}
    if not parts:
        raise RefusalError(
            422, "there is no image in the request: send some, as parts named 'image' or a zip"
        )
    around = {own[0] for own in parts.values()}
    top = len(around) == 1 and all(len(own) > 2 for own in parts.values())
    classes: dict[str, list[Upload]] = {}
    for upload in uploads:
        if upload.path not in parts:
            continue
        own = parts[upload.path][top:]
        _check_extension(upload.name)
        if len(own) == 1 and name is None:
            sentence = f"'{shown(upload.name)}' lies in no class folder: call it CLASS/{shown(own[0])}"
            raise RefusalError(422, f"{sentence}, or give the class as field 'name'")
        classes.setdefault(class_name(own[0] if len(own) > 1 else name or ""), []).append(upload)
    return classes


def placed(classes: Mapping[str, Sequence[Upload]], folder: Path) -> dict[str, list[str]]:
    """Move images to folder/CLASS/FILE, both as near to their names as is safe: messages will tell of these paths.

    Returns:
        Class -> paths relative to `folder`.
    """
    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    for number, (name, uploads) in enumerate(classes.items()):
        own = _fresh(_harmless(name) or str(number), taken)
        (folder / own).mkdir(parents=True)
        inside: set[str] = set()
        for upload in uploads:
            stem = _harmless(Path(_parts(upload.name)[-1]).stem) or "image"
            file = _fresh(stem, inside, upload.path.suffix)
            upload.path.rename(folder / own / file)
            found.setdefault(name, []).append(f"{own}/{file}")
    return found


def _harmless(name: str) -> str:
    """Letters, digits and a few signs, no longer than any file system takes."""
    plain = re.sub(r"[^\w .()+-]", "_", name).strip(" .")
    return plain.encode()[:100].decode(errors="ignore")


def _fresh(stem: str, taken: set[str], suffix: str = "") -> str:
    """A name that no other has, not even one in other letters' case."""
    name, number = f"{stem}{suffix}", 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem} ({number}){suffix}"
    taken.add(name.casefold())
    return name


def _parts(name: str) -> list[str]:
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise RefusalError(422, f"'{shown(name)}' is no name for an image: call it CLASS/FILE")
    return parts


def _is_junk(name: str) -> bool:
    """What systems leave in folders unasked."""
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]
    return any(part.startswith(".") or part.lower() in _JUNK for part in parts)


def _check_extension(name: str, needed: bool = False) -> None:
    suffix = Path(name.replace("\\", "/")).suffix.lower()
    if (suffix or needed) and suffix not in EXTENSIONS:  # browsers call a picture of the camera 'blob'
        known = ", ".join(sorted(EXTENSIONS))
        raise RefusalError(422, f"'{shown(name)}' is no image ({known}): leave it out")


def shown(name: str) -> str:
    """A name from outside, fit for a sentence."""
    plain = "".join(c if c.isprintable() else "?" for c in name)
    return plain if len(plain) <= 120 else f"{plain[:117]}..."


# --- images ---------------------------------------------------------------------------------------


def measured(upload: Upload, limits: ImageLimits) -> int:
    """How many pixels an image has, by its header; nothing is decoded, and what is too large is refused."""
    name = shown(upload.name)
    limits.check_bytes(upload.path.stat().st_size, name)
    with open(upload.path, "rb") as file:
        return check_header(file, name, limits)


def check_image(upload: Upload, limits: ImageLimits, whole: bool) -> None:
    """Refuse an image that is too large, and, with `whole`, one that cannot be decoded to its last byte."""
    pixels = measured(upload, limits)
    if whole:
        with _LARGE if pixels > WHOLE_PIXELS else nullcontext():
            check_decodable(upload.path.read_bytes(), shown(upload.name), limits)
