"""How large an image may be: one set of limits for files, datasets, pictures in memory and uploads."""

from __future__ import annotations

from dataclasses import dataclass

from ease.errors import EaseError


class TooLargeError(EaseError):
    """An image that exceeds a limit. The server answers it with another status than a damaged one."""


@dataclass(frozen=True)
class ImageLimits:
    """What the file of one image and the picture in it may measure.

    The number of pixels alone does not bound the work: a picture of 1 x 50,000,000 pixels has as many rows as a
    normal one has pixels, and every row has a cost of its own.

    Attributes:
        bytes: size of the file.
        pixels: width times height. The default is the limit at which Pillow warns of decompression bombs.
        side: length of the longer side in pixels.
        aspect: the longer side divided by the shorter one.
        scans: passes over the picture in a progressive JPEG. Ten are usual; each costs time, but hardly any bytes.
        seconds: time for decoding. It is looked at whenever the decoder reads more of the file.
    """

    bytes: int = 2**29
    pixels: int = 89_478_485
    side: int = 32_768
    aspect: int = 200
    scans: int = 64
    seconds: float = 60.0

    def check_size(self, width: int, height: int, name: str) -> None:
        """Refuse a picture of this size if it exceeds a limit.

        Args:
            width: in pixels.
            height: in pixels.
            name: what the message calls the image.
        """
        longer, shorter = max(width, height), max(1, min(width, height))
        if width * height > self.pixels:
            raise too_large(name, f"has more than {self.pixels:,} pixels")
        if longer > self.side:
            raise too_large(name, f"has a side of {longer:,} pixels, more than {self.side:,}")
        if longer > self.aspect * shorter:
            raise too_large(
                name, f"is more than {self.aspect} times as long as wide ({width:,} x {height:,})"
            )

    def check_bytes(self, size: int, name: str) -> None:
        """Refuse a file of this size if it is too large."""
        if size > self.bytes:
            raise too_large(name, f"has more than {self.bytes // 1_000_000:,} MB")


def too_large(name: str, what: str) -> TooLargeError:
    """The error for an image that exceeds a limit."""
    return TooLargeError(f"image '{name}' {what}: make it smaller or remove it")


LIMITS = ImageLimits()
"""What holds wherever nothing else is said."""
