"""How large an image and an archive of images may be: one set of limits for every source."""

from __future__ import annotations

from dataclasses import dataclass, field

from ease.errors import EaseError

MB = 1_000_000


class TooLargeError(EaseError):
    """An image or an archive exceeds a limit. The server answers with status 413 instead of 422."""


@dataclass(frozen=True)
class ImageLimits:
    """The largest image that is decoded.

    The number of pixels alone does not bound the work: an image of 1 x 50,000,000 pixels has as many rows as a
    normal one has pixels, and every row has a cost of its own.

    Attributes:
        bytes: Size of the file.
        pixels: Width times height. The default is the limit at which Pillow warns of decompression bombs.
        side: Length of the longer side in pixels.
        aspect: The longer side divided by the shorter one.
        scans: Passes over the image in a progressive JPEG. Ten are usual; each costs time, but hardly any bytes.
        seconds: Time for decoding. It is checked whenever the decoder reads more of the file.
    """

    bytes: int = 2**29
    pixels: int = 89_478_485
    side: int = 32_768
    aspect: int = 200
    scans: int = 64
    seconds: float = 60.0

    def check_size(self, width: int, height: int, name: str) -> None:
        """Raise `TooLargeError` if an image of this size exceeds a limit.

        Args:
            width: In pixels.
            height: In pixels.
            name: What the message calls the image.
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
        """Raise `TooLargeError` if a file of this many bytes is too large.

        Args:
            size: In bytes.
            name: What the message calls the image.
        """
        if size > self.bytes:
            raise too_large(name, f"has more than {self.bytes // MB:,} MB")


@dataclass(frozen=True)
class ArchiveLimits:
    """The largest archive of images that is unpacked.

    Attributes:
        images: Number of images in the archive.
        bytes: Size of all images together, unpacked.
        image: Limits of each single image.
    """

    images: int = 10_000
    bytes: int = 2000 * MB
    image: ImageLimits = field(default_factory=ImageLimits)


def too_large(name: str, reason: str) -> TooLargeError:
    """The error for an image that exceeds a limit."""
    return TooLargeError(f"image '{name}' {reason}: make it smaller or remove it")


LIMITS = ImageLimits()
"""The limits that hold where none are given."""
