"""Image files: which files are images, how one is decoded, and which of them cannot be."""

from __future__ import annotations

import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import content_hash

EXTENSIONS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff", ".gif"})
FORMATS = ("JPEG", "PNG", "BMP", "WEBP", "TIFF", "GIF")
"""The decoders a file may reach. Pillow knows dozens more: nobody needs PostScript among photos."""

FOREIGN = frozenset({".heic", ".heif", ".hif", ".avif"})
"""Photos that we cannot decode everywhere. Leaving them out as if they were no images would lose them unseen."""
_FOREIGN_BRANDS = frozenset(
    (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1", b"avif", b"avis")
)

PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs; it only warns there, we refuse."""
BYTES = 2**29
"""The largest file that is read; with so many pixels, even 16 bits per channel without compression are about this."""


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


def decode(content: bytes, name: str) -> Tensor:
    """Decode the bytes of an image file: upright as its EXIF says, alpha over white, the first frame of several.

    Args:
        content: from anywhere; what is not one of `FORMATS`, damaged or too large is an `EaseError`.
        name: what messages call it.

    Returns:
        uint8 RGB [3, H, W].
    """
    return channels_first(_decoded(content, name))


def rgb_of(image: Image.Image, name: str) -> Tensor:
    """The pixels of a picture that Pillow has open, as `decode` gives them. uint8 RGB [3, H, W]."""
    if image.width * image.height > PIXELS:
        raise _too_large(name)
    try:
        image.load()
        return channels_first(_rgb(_upright(image)))
    except Exception as error:
        raise _refusal(name, error) from error


def channels_first(image: Image.Image) -> Tensor:
    """An RGB picture as a tensor of its own memory, uint8 [3, H, W]."""
    pixels = np.array(image, dtype=np.uint8)
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


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


def check_content(content: bytes, name: str) -> Checked:
    """Whether these bytes can be decoded; cheaper than decoding a JPEG in full."""
    try:
        _decoded(content, name, small=True)
    except EaseError as error:
        return Checked(content_hash(content), str(error))
    return Checked(content_hash(content), None)


def _content(path: Path) -> bytes:
    try:
        if path.exists() and not path.is_file():  # to open a pipe would be to wait for ever
            raise EaseError(f"image '{path}' is not a file: remove it")
        if path.stat().st_size > BYTES:
            raise EaseError(f"image '{path}' has more than {BYTES >> 20} MB: make it smaller or remove it")
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise _refusal(str(path), error) from error


def _decoded(content: bytes, name: str, *, small: bool = False) -> Image.Image:
    try:
        with _open(content, name) as image:
            if small:
                # A JPEG at an eighth of its size still reads all of the file but computes far less.
                image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
            return _rgb(_upright(image))
    except EaseError:
        raise
    except Exception as error:  # on damaged files Pillow raises almost anything
        raise _refusal(name, error) from error


def _open(content: bytes, name: str) -> Image.Image:
    if not content:
        raise EaseError(f"image '{name}' is empty (0 bytes): copy it again or remove it")
    if _is_foreign(content):
        raise foreign(name)
    try:
        image = Image.open(io.BytesIO(content), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(name) from error
    if image.width * image.height > PIXELS:
        image.close()
        raise _too_large(name)
    return image


def _is_foreign(content: bytes) -> bool:
    """HEIC and AVIF begin with a box that lists what they are compatible with."""
    size = min(int.from_bytes(content[:4], "big"), 256)
    brands = {content[at : at + 4] for at in (8, *range(16, size, 4))}
    return content[4:8] == b"ftyp" and not brands.isdisjoint(_FOREIGN_BRANDS)


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says. Broken EXIF is no reason to refuse a picture that can be seen."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow's EXIF reader raises almost anything
        return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        image = _eight_bits(image)
    if "A" in image.getbands() or "transparency" in image.info:
        front = image.convert("RGBA")
        paper = Image.new("RGBA", front.size, "white")
        return Image.alpha_composite(paper, front).convert("RGB")
    return image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """One deep channel -> grey. Pillow would clip instead of scaling; colours it scales by itself."""
    values = np.asarray(image)
    low, high = float(values.min(initial=0)), float(values.max(initial=0))
    if image.mode == "F" and 0 <= low <= high <= 1:
        values = np.rint(values * 255)
    elif not 0 <= low <= high < 2**16:  # NaN is refused, too
        raise ValueError("its values are neither 8 nor 16 bits: save it with 8")
    elif image.mode not in ("I", "F") or high > 255:
        values = values.astype(np.int64) >> 8
    return Image.fromarray(values.astype(np.uint8))


def foreign(name: str) -> EaseError:
    """The error for a photo in a format that is not decoded here."""
    return EaseError(f"image '{name}' is HEIC or AVIF, which is not read here: convert it to JPEG or PNG")


def _too_large(name: str) -> EaseError:
    return EaseError(f"image '{name}' has more than {PIXELS:,} pixels: make it smaller or remove it")


def _refusal(name: str, error: BaseException) -> EaseError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Image.UnidentifiedImageError):
        reason = "no image format recognised"
    return EaseError(f"image '{name}' cannot be read ({reason}): repair or remove it")
