"""The only place where image files are decoded."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ease.documents import reason_of
from ease.errors import EaseError
from ease.streams.images import content_hash, pixel_hash
from ease.streams.intake.formats import HEAD, formats_of
from ease.streams.intake.limits import LIMITS, ImageLimits, TooLargeError, too_large
from ease.streams.intake.stored import StoredImage

ImageContent = Path | bytes | Tensor | StoredImage
"""An image: a file, the bytes of a file, pixels (uint8 RGB [3, H, W]), or a place from which such bytes are read."""

LARGE_IMAGE_PIXELS = 2**24
"""A JPEG with more pixels is decoded at 1/2, 1/4 or 1/8 of its size; large images are checked one at a time."""
_BAND_PIXELS = 2**20
"""Pixels that are converted at a time, so that a large image is not held in memory several times."""
_ORIENTATION = 0x0112
_PHOTOMETRIC = 0x0106
_WHITE_IS_ZERO = "white is zero"


def decode(content: bytes, name: str, limits: ImageLimits = LIMITS) -> Tensor:
    """Decode the bytes of an image file.

    The image is turned upright as its EXIF data says, transparency is blended with white, and of an animation the
    first frame is taken. A JPEG with more than `LARGE_IMAGE_PIXELS` pixels is decoded at a fraction of its size. The
    transparent colour that a PNG of 3 x 16 bits can name is kept as it is: Pillow reads the upper bytes only.

    Args:
        content: The bytes of a file in one of the formats of `ease.streams.intake.formats`.
        name: Name of the image in error messages.
        limits: The largest image that is accepted. The header is checked before any pixel is decoded.

    Returns:
        uint8 RGB [3, H, W].

    Raises:
        TooLargeError: The image exceeds a limit.
        EaseError: The image is damaged or in another format.
    """
    return _read(content, name, limits, 1, _pixels)


def load_content(content: ImageContent, name: str) -> Tensor:
    """Decode an image in any of the forms of `ImageContent`.

    Args:
        content: A file, the bytes of a file, or pixels.
        name: Name of the image in error messages if it is given as bytes; for a file, its path is used.

    Returns:
        uint8 RGB [3, H, W].
    """
    if isinstance(content, Tensor):
        return content
    if isinstance(content, Path):
        return decode(read_image_file(content), str(content))
    return decode(read_bytes_of(content, name), name)


def content_digest(content: ImageContent) -> str:
    """The hash that identifies an image: of the bytes of its file, or of its pixels if there is no file."""
    if isinstance(content, Tensor):
        return pixel_hash(content.permute(1, 2, 0).numpy())
    return content_hash(read_bytes_of(content, ""))


def read_bytes_of(content: Path | bytes | StoredImage, name: str) -> bytes:
    """The bytes of an image file, wherever they are.

    Args:
        content: A file, bytes, or a place from which they are read.
        name: What messages call the image; a file without a name is called by its path.
    """
    if isinstance(content, Path):
        return read_image_file(content, name)
    return content.read(name) if isinstance(content, StoredImage) else content


def decode_pillow(image: Image.Image, name: str) -> Tensor:
    """Convert an image that Pillow has opened, in the same way as `decode`.

    Returns:
        uint8 RGB [3, H, W].
    """
    LIMITS.check_size(image.width, image.height, name)
    try:
        image.load()
        return _pixels(_upright(image))
    except Exception as error:
        raise _unreadable(name, error) from error


class MixedSource:
    """Images as files, bytes of files or pixels, which are decoded when they are needed.

    Args:
        contents: The images.
        names: Names, in error messages, of images that are given as bytes; not needed for files and pixels.
    """

    def __init__(self, contents: Sequence[ImageContent], names: Sequence[str] | None = None) -> None:
        self.contents = tuple(contents)
        self.names = tuple(names) if names is not None else ("",) * len(self.contents)

    def __len__(self) -> int:
        return len(self.contents)

    def load(self, index: int) -> Tensor:
        """Decode one image, uint8 RGB [3, H, W]."""
        return load_content(self.contents[index], self.names[index])

    def digest(self, index: int) -> str:
        """The content hash of one image."""
        return content_digest(self.contents[index])


def check_decodable(content: bytes, name: str, limits: ImageLimits = LIMITS) -> None:
    """Raise the error that `decode` would raise, at less cost: the whole file is read, but few pixels are kept."""
    # A JPEG decoded at an eighth of its size still reads all of the file but computes far less.
    _read(content, name, limits, 8, lambda image: next(_bands(image)))


def check_header(file: BinaryIO, name: str, limits: ImageLimits = LIMITS) -> int:
    """Raise `TooLargeError` if the header of an image announces too large a size; nothing is decoded.

    Returns:
        The number of pixels; 0 if the header cannot be read, in which case `decode` will explain the damage.
    """
    try:
        with _open(file, name, limits) as image:
            return image.width * image.height
    except TooLargeError:
        raise
    except Exception:  # on damaged files Pillow raises almost anything
        return 0


def count_pixels(path: Path, name: str, limits: ImageLimits = LIMITS) -> int:
    """Check the size of a file and of the image that its header announces, see `check_header`.

    Args:
        path: The file.
        name: Name of the image in error messages.
        limits: The largest image that is accepted.

    Returns:
        The number of pixels; 0 if the header cannot be read.
    """
    size = path.stat().st_size
    limits.check_bytes(size, name)
    if not size:  # files of the system that say so may never end
        return 0
    with open(path, "rb") as file:
        return check_header(file, name, limits)


def media_type(content: bytes) -> str | None:
    """The media type of an image file, such as `image/jpeg`, by its header; None if it is in none of `FORMATS`."""
    try:
        with _open(io.BytesIO(content), "image", LIMITS) as image:
            return Image.MIME.get(image.format or "")
    except Exception:  # on damaged files Pillow raises almost anything
        return None


def read_image_file(path: Path, name: str = "") -> bytes:
    """Read an image file of at most `LIMITS.bytes` bytes.

    Args:
        path: The file.
        name: Its name in error messages; its path if left out.
    """
    name = name or str(path)
    try:
        if path.exists() and not path.is_file():  # opening a pipe would block
            raise EaseError(f"image '{name}' is not a file: remove it")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            LIMITS.check_bytes(size, name)
            return file.read(size)  # no more than it says: some files of the system never end
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error


_TIFF = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")


@cache
def _silence_libtiff() -> None:
    """Keep libtiff, which Pillow brings along on Linux, from printing to stderr what it thinks of damaged files."""
    with contextlib.suppress(OSError, AttributeError, StopIteration):
        Image.init()  # loads the library
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "/libtiff" in line)
        library = ctypes.CDLL(path)
        library.TIFFSetErrorHandler(None)
        library.TIFFSetWarningHandler(None)


def _read(
    content: bytes, name: str, limits: ImageLimits, divisor: int, take: Callable[[Image.Image], Any]
) -> Any:
    """Decode and return `take(image)`. Where it is cheap, the sides are divided by `divisor`: 1, 2, 4 or 8."""
    if not content:
        raise EaseError(f"image '{name}' is empty (0 bytes): copy it again or remove it")
    if content[:4] in _TIFF:
        _silence_libtiff()
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
        raise _unreadable(name, error) from error


def _open(file: BinaryIO, name: str, limits: ImageLimits) -> Image.Image:
    formats = formats_of(file.read(HEAD), name)
    file.seek(0)
    try:
        image = Image.open(file, formats=formats)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise too_large(name, f"has more than {limits.pixels:,} pixels") from error
    try:
        limits.check_size(image.width, image.height, name)
    except EaseError:
        image.close()
        raise
    return image


class _Timed(io.BytesIO):
    """Bytes that cannot be read after a deadline. Decoders read a piece at a time."""

    def __init__(self, content: bytes, name: str, seconds: float) -> None:
        super().__init__(content)
        self._name, self._seconds = name, seconds
        self._until = time.monotonic() + seconds

    def read(self, size: int | None = -1) -> bytes:
        """Read as from any file, or raise `TooLargeError` after the deadline."""
        if time.monotonic() > self._until:
            raise too_large(self._name, f"takes more than {self._seconds:g} seconds to decode")
        return super().read(size)


def _reduce(image: Image.Image, divisor: int) -> None:
    """Decode a JPEG at a fraction of its size: by `divisor`, or more to bring it under `LARGE_IMAGE_PIXELS`."""
    while divisor < 8 and image.width * image.height > LARGE_IMAGE_PIXELS * divisor**2:
        divisor *= 2
    if divisor > 1:
        # At least one pixel: Pillow would divide by a side of zero.
        image.draft(None, (max(1, image.width // divisor), max(1, image.height // divisor)))


def _scans(content: bytes) -> int:
    """The number of scans of a JPEG. Data after its end, such as the video of a live photo, is not counted."""
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
"""The start of a segment; not a byte 0xFF within the data (followed by 0) and not a restart (0xD0 to 0xD7)."""


def _upright(image: Image.Image) -> Image.Image:
    """Turn an image as its EXIF data says. Broken EXIF data is ignored."""
    if image.mode.startswith("I;16") and getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0:
        image.info[_WHITE_IS_ZERO] = True  # Pillow inverts 8 bits only, and a turned image has no tags
    try:
        # `exif_transpose` would copy an image that needs no turning.
        turned = image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception:  # Pillow's EXIF reader raises almost anything
        return image


def _pixels(image: Image.Image) -> Tensor:
    """Copy an image into a new tensor, uint8 RGB [3, H, W]."""
    pixels = np.empty((3, image.height, image.width), np.uint8)
    top = 0
    for band in _bands(image):
        pixels[:, top : top + len(band)] = band.transpose(2, 0, 1)
        top += len(band)
    return torch.from_numpy(pixels)


def _bands(image: Image.Image) -> Iterator[npt.NDArray[np.uint8]]:
    """Convert an image from top to bottom, a few rows at a time, to uint8 RGB [h, W, 3]."""
    deep = image.mode.startswith("I") or image.mode == "F"
    to_eight_bits = _to_eight_bits(image) if deep else None
    for band in _rows(image):
        if to_eight_bits is not None:
            values = np.asarray(band)
            grey = to_eight_bits(values)
            if isinstance(clear := image.info.get("transparency"), int):
                grey[values == clear] = 255
            band = Image.fromarray(255 - grey if _WHITE_IS_ZERO in image.info else grey)
        yield np.asarray(_rgb(band), dtype=np.uint8)


def _rows(image: Image.Image) -> Iterator[Image.Image]:
    height = max(1, _BAND_PIXELS // image.width)
    for top in range(0, image.height, height):
        yield image.crop((0, top, image.width, min(top + height, image.height)))


def _rgb(image: Image.Image) -> Image.Image:
    if "A" in image.getbands() or "transparency" in image.info:
        front = image.convert("RGBA")
        background = Image.new("RGBA", front.size, "white")
        return Image.alpha_composite(background, front).convert("RGB")
    return image.convert("RGB")


def _to_eight_bits(image: Image.Image) -> Callable[[npt.NDArray[Any]], npt.NDArray[np.uint8]]:
    """How one channel of more than 8 bits is scaled. Pillow would clip it; it scales colour images correctly."""
    ends = [(values.min(initial=0), values.max(initial=0)) for values in map(np.asarray, _rows(image))]
    low, high = float(np.min(ends)), float(np.max(ends))  # NaN if there is one
    if image.mode == "F" and 0 <= low <= high <= 1:
        return lambda values: np.rint(values * 255).astype(np.uint8)
    if not 0 <= low <= high < 2**16:  # NaN is refused, too
        raise ValueError("its values are neither 8 nor 16 bits: save it with 8")
    if image.mode not in ("I", "F") or high > 255:
        return lambda values: (values.astype(np.int64) >> 8).astype(np.uint8)
    return lambda values: values.astype(np.uint8)


def _unreadable(name: str, error: BaseException) -> EaseError:
    reason = reason_of(error, "its content is damaged")
    if reason.startswith("decoder error"):  # Pillow has numbers for some of them
        reason = "its content is damaged"
    if isinstance(error, Image.UnidentifiedImageError):
        reason = "no image format recognised"
    return EaseError(f"image '{name}' cannot be read ({reason}): repair or remove it")
