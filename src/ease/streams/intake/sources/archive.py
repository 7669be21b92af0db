"""A zip archive as a source of images. What it says about itself is not trusted, and links in it are refused."""

from __future__ import annotations

import io
import re
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path

from ease.errors import EaseError
from ease.streams.intake.limits import MB, ArchiveLimits, TooLargeError
from ease.streams.intake.names import display_name
from ease.streams.intake.sources.candidates import Candidates
from ease.streams.intake.sources.uploads import (
    NamedFile,
    check_extension,
    from_uploads,
    has_system_name,
    safe_suffix,
)

CHUNK = 256 * 1024
"""Bytes that are unpacked at a time."""

_ENTRY_BYTES = 300
"""Bytes that the zip's list of members needs for one member, generously."""


def from_archive(
    archive: Path, folder: Path, limits: ArchiveLimits | None = None, default_class: str | None = None
) -> Candidates:
    """Unpack the images of a zip and sort them into classes by their names, see `from_uploads`.

    Args:
        archive: A zip of class folders.
        folder: Where the images are unpacked to.
        limits: The largest archive that is accepted.
        default_class: The class of images that are in no folder.
    """
    return from_uploads(unpack_images(archive, folder, limits), default_class)


def unpack_images(archive: Path, folder: Path, limits: ArchiveLimits | None = None) -> list[NamedFile]:
    """Unpack the images of a zip to numbered files.

    Members are unpacked piece by piece, so that no more than one piece is in memory.

    Args:
        archive: The zip.
        folder: Where the images are unpacked to.
        limits: The largest archive that is accepted.

    Returns:
        The images with the names that they have in the archive.

    Raises:
        TooLargeError: The archive, or an image in it, exceeds a limit.
        EaseError: The archive is damaged, or a member is a link, encrypted, not an image, or leads out of the folder.
    """
    limits = limits or ArchiveLimits()
    try:
        with _BoundedFile(archive, limits.images) as file, zipfile.ZipFile(file) as content:
            return list(_unpack(content, folder, limits))
    except (EaseError, OSError):  # an error of the disk does not mean that the archive is damaged
        raise
    except Exception as error:  # on damaged archives zipfile raises almost anything
        raise EaseError("the archive is damaged or not a zip file: pack it again") from error


class _BoundedFile(io.BufferedReader):
    """A file of which little is read at once, and never outside of it.

    `zipfile` reads the list of members at once and seeks to wherever the archive says.
    """

    def __init__(self, path: Path, members: int) -> None:
        super().__init__(io.FileIO(path))
        self._max_read, self._members = max(MB, _ENTRY_BYTES * members), members
        self._size = path.stat().st_size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Seek as in any file, but not to an offset outside of it."""
        if whence == io.SEEK_SET and not 0 <= offset <= self._size:
            raise zipfile.BadZipFile("an offset lies outside of the archive")
        return super().seek(offset, whence)

    def read(self, size: int | None = -1) -> bytes:
        """Read as from any file, but not more than the list of members may need."""
        most = self._max_read + 1
        piece = super().read(most if size is None or size < 0 else min(size, most))
        if len(piece) == most:
            raise TooLargeError(f"the archive has more than {self._members} members: send fewer at a time")
        return piece


def _unpack(content: zipfile.ZipFile, folder: Path, limits: ArchiveLimits) -> Iterator[NamedFile]:
    members = [
        info for info in content.infolist() if not info.is_dir() and not has_system_name(_checked_name(info))
    ]
    if len(members) > limits.images:
        raise TooLargeError(f"the archive has more than {limits.images} images: send fewer at a time")
    left = limits.bytes
    if sum(info.file_size for info in members) > left:
        raise _too_large(limits)
    for number, info in enumerate(members):
        name = _checked_name(info)
        _check_member(info, name)
        limits.image.check_bytes(info.file_size, display_name(name))
        path, size = folder / f"z{number:06d}{safe_suffix(name)}", 0
        with content.open(info) as packed, open(path, "xb") as unpacked:
            while piece := packed.read(CHUNK):
                size += len(piece)  # the size that the archive declares may be wrong
                limits.image.check_bytes(size, display_name(name))
                if size > left:
                    raise _too_large(limits)
                unpacked.write(piece)
        left -= size
        yield NamedFile(name, path)


def _checked_name(info: zipfile.ZipInfo) -> str:
    name = info.filename.replace("\\", "/")
    if name.startswith("/") or re.match(r"[A-Za-z]:", name) or ".." in name.split("/"):
        raise _bad_member(name, "leads out of it: pack the archive again without it")
    return name


def _check_member(info: zipfile.ZipInfo, name: str) -> None:
    if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG):
        raise _bad_member(name, "is a link or not a file: pack the file itself")
    if info.flag_bits & 0x1:
        raise _bad_member(name, "is encrypted: pack it without a password")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _bad_member(name, "uses an unusual compression: use plain zip")
    check_extension(name, required=True)


def _bad_member(name: str, problem: str) -> EaseError:
    return EaseError(f"the archive's member '{display_name(name)}' {problem}")


def _too_large(limits: ArchiveLimits) -> TooLargeError:
    return TooLargeError(
        f"the archive is larger than {limits.bytes // MB} MB unpacked: send fewer images at a time"
    )
