"""Image files: which files are images, how one is decoded, and which of them cannot be."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import content_hash
from ease.streams.intake.limits import LIMITS, ImageLimits, TooLargeError, too_large

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
"""The decoders a file may reach. Pillow has dozens more, PostScript among them, which no photo needs."""

FOREIGN = frozenset({".heic", ".heif", ".hif", ".avif"})
"""Photos that we cannot decode everywhere. Leaving them out as if they were no images would lose them unseen."""
_FOREIGN_BRANDS = frozenset(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis")
)

WHOLE_PIXELS = 2**24
"""A JPEG with more pixels is decoded at a half, a quarter or an eighth of its size, which its format does cheaply."""
_BAND_PIXELS = 2**20
"""Pixels that are converted at a time: a large picture must not be held several times over."""
_ORIENTATION = 0x0112


class FileSource:
    """Images on disk, decoded when asked for. `digest` is the hash of the file's bytes."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(Path(path) for path in paths)

    def __len__(self) -> int:
        return len(self.paths)

    def load(self, index: int) -> Tensor:
        """uint8 RGB [3, H, W]."""
        return load_image(self.paths[index])

    def digest(self, index: int) -> str:
        """Names the content of one file."""
        return file_digest(self.paths[index])


def file_digest(path: Path) -> str:
    """The content hash of a file's bytes."""
    return content_hash(_content(path))


def load_image(path: Path) -> Tensor:
    """Decode a file, see `decode`. uint8 RGB [3, H, W]."""
    return decode(_content(path), str(path))


def decode(content: bytes, name: str, limits: ImageLimits = LIMITS) -> Tensor:
    """Decode the bytes of an image file: upright as its EXIF says, alpha over white, the first frame of several.

    A JPEG of more than `WHOLE_PIXELS` pixels comes out smaller than it is, see there.

    Args:
        content: from anywhere; what is not one of `FORMATS` or damaged is an `EaseError`, what is too large a
            `TooLargeError`, which the header decides before any pixel is decoded.
        name: what messages call it.
        limits: what counts as too large.

    Returns:
        uint8 RGB [3, H, W].
    """
    return _read(content, name, limits, 1, _pixels)


def rgb_of(image: Image.Image, name: str) -> Tensor:
    """The pixels of a picture that Pillow has open, as `decode` gives them. uint8 RGB [3, H, W]."""
    LIMITS.check_size(image.width, image.height, name)
    try:
        image.load()
        return _pixels(_upright(image))
    except Exception as error:
        raise _refusal(name, error) from error


def check_header(file: BinaryIO, name: str, limits: ImageLimits) -> int:
    """Refuse a picture that is too large, from what its header says; nothing is decoded.

    Returns:
        How many pixels it has; 0 if the header cannot be read. What is wrong with it, the decoder says.
    """
    try:
        with _open(file, name, limits) as image:
            return image.width * image.height
    except TooLargeError:
        raise
    except Exception:  # on damaged files Pillow raises almost anything
        return 0


@dataclass(frozen=True)
class Checked:
    """What a look at a file found: the hash of its content ("" where it cannot be opened), and why it is no use."""

    digest: str
    fault: str | None


def check_files(paths: Sequence[Path]) -> list[Checked]:
    """Read and decode every file to its last byte."""
    with ThreadPoolExecutor(max_workers=4) as pool:  # decoding releases the interpreter lock
        return list(pool.map(check_file, paths))


def check_file(path: Path) -> Checked:
    """Whether a file can be decoded."""
    try:
        content = _content(path)
    except EaseError as error:
        return Checked("", str(error))
    return check_content(content, str(path))


def check_content(content: bytes, name: str, limits: ImageLimits = LIMITS) -> Checked:
    """Whether these bytes can be decoded."""
    try:
        check_decodable(content, name, limits)
    except EaseError as error:
        return Checked(content_hash(content), str(error))
    return Checked(content_hash(content), None)


def check_decodable(content: bytes, name: str, limits: ImageLimits = LIMITS) -> None:
    """Refuse bytes that `decode` would refuse."""
    # A JPEG at an eighth of its size still reads all of the file but computes far less.
    _read(content, name, limits, 8, lambda image: next(_bands(image)))


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # to open a pipe would be to wait for ever
            raise EaseError(f"image '{path}' is not a file: remove it")
        LIMITS.check_bytes(path.stat().st_size, str(path))
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise _refusal(str(path), error) from error


def _read(
    content: bytes, name: str, limits: ImageLimits, divisor: int, take: Callable[[Image.Image], Any]
) -> Any:
    """What `take` makes of the decoded picture, whose sides may be divided by 1, 2, 4 or 8 where that is cheap."""
    if not content:
        raise EaseError(f"image '{name}' is empty (0 bytes): copy it again or remove it")
    if _is_foreign(content):
        raise foreign(name)
    try:
        with _open(_Timed(content, name, limits.seconds), name, limits) as image:
            if image.info.get("progressive") and _scans(content) > limits.scans:
                raise too_large(name, f"is a progressive JPEG of more than {limits.scans} scans")
            _reduce(image, divisor)
            image.load()
            return take(_upright(image))
    except EaseError:
        raise
    except Exception as error:  # on damaged files Pillow raises almost anything
        raise _refusal(name, error) from error


def _open(file: BinaryIO, name: str, limits: ImageLimits) -> Image.Image:
    try:
        image = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, f"has more than {limits.pixels:,} pixels") from error
    try:
        limits.check_size(image.width, image.height, name)
    except EaseError:
        image.close()
        raise
    return image


class _Timed(io.BytesIO):
    """Bytes that cannot be read any more once the time is up. Decoders read a piece at a time."""

    def __init__(self, content: bytes, name: str, seconds: float) -> None:
        super().__init__(content)
        self._name, self._seconds = name, seconds
        self._until = time.monotonic() + seconds

    def read(self, size: int | None = -1) -> bytes:
        """As of any file, while there is time."""
        if time.monotonic() > self._until:
            raise too_large(self._name, f"takes more than {self._seconds:g} seconds to decode")
        return super().read(size)


def _reduce(image: Image.Image, divisor: int) -> None:
    """Let a JPEG be decoded at a fraction of its size: the divisor given, or what brings it under `WHOLE_PIXELS`."""
    while divisor < 8 and image.width * image.height > WHOLE_PIXELS * divisor**2:
        divisor *= 2
    if divisor > 1:
        # Never less than a pixel: a side of zero would be divided by.
        image.draft(None, (max(1, image.width // divisor), max(1, image.height // divisor)))


def _scans(content: bytes) -> int:
    """How many scans the picture of a JPEG has. What follows its end, such as the film of a live photo, is left out."""
    if (most := content.count(b"\xff\xda")) <= 1:
        return most
    at, scans = 2, 0
    while marker := _MARKER.search(content, at):
        kind, at = marker[0][1], marker.end()
        if kind == 0xD9:
            break
        scans += kind == 0xDA
        at += int.from_bytes(content[at : at + 2], "big")
    return scans


_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]")
"""Where the next segment begins: not a byte 0xFF among the data (followed by 0) and not a restart (0xD0 to 0xD7)."""


def _is_foreign(content: bytes) -> bool:
    """HEIC and AVIF begin with a box that lists what they are compatible with."""
    size = min(int.from_bytes(content[:4], "big"), 256)
    brands = {content[at : at + 4] for at in (8, *range(16, size, 4))}
    return content[4:8] == b"ftyp" and not brands.isdisjoint(_FOREIGN_BRANDS)


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says. Broken EXIF is no reason to refuse a picture that can be seen."""
    try:
        # `exif_transpose` copies a picture that needs no turning.
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # Pillow's EXIF reader raises almost anything
        return image


def _pixels(image: Image.Image) -> Tensor:
    """A picture as a tensor of its own memory, uint8 RGB [3, H, W]."""
    pixels = np.empty((3, image.height, image.width), np.uint8)
    top = 0
    for band in _bands(image):
        pixels[:, top : top + len(band)] = band.transpose(2, 0, 1)
        top += len(band)
    return torch.from_numpy(pixels)


def _bands(image: Image.Image) -> Iterator[npt.NDArray[np.uint8]]:
    """A picture from top to bottom, a few rows at a time, uint8 RGB [h, W, 3]."""
    deep = image.mode.startswith("I") or image.mode == "F"
    to_eight_bits = _to_eight_bits(image) if deep else None
    for band in _rows(image):
        if to_eight_bits is not None:
            band = Image.fromarray(to_eight_bits(np.asarray(band)))
        yield np.asarray(_rgb(band), dtype=np.uint8)


def _rows(image: Image.Image) -> Iterator[Image.Image]:
    height = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, height):
        yield image.crop((0, top, image.width, min(top + height, image.height)))


def _rgb(image: Image.Image) -> Image.Image:
    if "A" in image.getbands() or "transparency" in image.info:
        front = image.convert("RGBA")
        paper = Image.new("RGBA", front.size, "white")
        return Image.alpha_composite(paper, front).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """How one deep channel becomes grey. Pillow would clip instead of scaling; colours it scales by itself."""
    ends = [(values.min(initial=0), values.max(initial=0)) for values in map(np.asarray, _rows(image))]
    low, high = float(np.min(ends)), float(np.max(ends))  # NaN if there is one
    if image.mode == "F" and 0 <= low <= high <= 1:
        return lambda values: np.rint(values * 255).astype(np.uint8)
    if not 0 <= low <= high < 2**16:  # NaN is refused, too
        raise ValueError("its values are neither 8 nor 16 bits: save it with 8")
    if image.mode not in ("I", "F") or high > 255:
        return lambda values: (values.astype(np.int64) >> 8).astype(np.uint8)
    return lambda values: values.astype(np.uint8)


def foreign(name: str) -> EaseError:
    """The error for a photo in a format that is not decoded here."""
    return EaseError(f"image '{name}' is HEIC or AVIF, which is not read here: convert it to JPEG or PNG")


def _refusal(name: str, error: BaseException) -> EaseError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Image.UnidentifiedImageError):
        reason = "no image format recognised"
    return EaseError(f"image '{name}' cannot be read ({reason}): repair or remove it")
