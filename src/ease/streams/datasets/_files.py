"""Image files: which files are images, how one is decoded, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
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

PIXELS = 89_478_485
"""Pillow's own limit against decompression bombs; it only warns there, we refuse."""

_CANNOT = (OSError, SyntaxError, ValueError, EOFError, MemoryError, OverflowError)
"""What Pillow raises on damaged files of one kind or another."""


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
    try:
        return content_hash(path.read_bytes())
    except OSError as error:
        raise _refusal(path, error) from error


def _upright(image: Image.Image) -> Image.Image:
    """Turned as its EXIF says. Broken EXIF is no reason to refuse a picture that can be seen."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow's EXIF reader raises almost anything
        return image


def load_image(path: Path) -> Tensor:
    """Decode a file: turned upright as its EXIF says, alpha over white. uint8 RGB [3, H, W]."""
    try:
        with _open(path) as image:
            pixels = np.array(_rgb(_upright(image)), dtype=np.uint8)
    except _CANNOT as error:
        raise _refusal(path, error) from error
    return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))


def faults(paths: Sequence[Path]) -> list[str | None]:
    """Decode every file to its last byte; why it cannot be read, or None, for each."""
    with ThreadPoolExecutor(max_workers=4) as pool:  # decoding releases the interpreter lock
        return list(pool.map(_fault, paths))


def _fault(path: Path) -> str | None:
    try:
        with _open(path) as image:
            # A JPEG at an eighth of its size still reads all of the file but computes far less.
            image.draft("RGB", (image.width // 8, image.height // 8))
            image.load()
    except EaseError as error:
        return str(error)
    except _CANNOT as error:
        return str(_refusal(path, error))
    return None


def _open(path: Path) -> Image.Image:
    try:
        image = Image.open(path, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(path) from error
    if image.width * image.height > PIXELS:
        image.close()
        raise _too_large(path)
    return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):  # 16 bits per pixel: Pillow would clip instead of scaling
        values = np.asarray(image).astype(np.int64)
        deep = image.mode != "I" or values.max(initial=0) > 255
        image = Image.fromarray(np.clip(values >> 8 if deep else values, 0, 255).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        front = image.convert("RGBA")
        paper = Image.new("RGBA", front.size, "white")
        return Image.alpha_composite(paper, front).convert("RGB")
    return image.convert("RGB")


def _too_large(path: Path) -> EaseError:
    return EaseError(f"image '{path}' has more than {PIXELS:,} pixels: make it smaller or remove it")


def _refusal(path: Path, error: BaseException) -> EaseError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, Image.UnidentifiedImageError):
        reason = "no image format recognised"
    return EaseError(
        f"image '{path}' cannot be read ({reason}): repair or remove it, or skip unreadable files"
    )
