"""Images inside something larger, which are read when they are needed: a piece of a file, a cell, an address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from ease.errors import EaseError
from ease.streams.intake.limits import LIMITS


class StoredImage(ABC):
    """The bytes of an image file that are kept somewhere else than in a file of their own."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The bytes of the image file.

        Args:
            name: What messages call the image.

        Raises:
            EaseError: They cannot be read, or there are too many of them.
        """


@dataclass(frozen=True)
class FilePiece(StoredImage):
    """Some bytes of a file, such as a member of a tar file that is not compressed.

    Attributes:
        path: The file.
        start: Position of the first byte.
        size: Number of bytes.
    """

    path: Path
    start: int
    size: int

    def read(self, name: str) -> bytes:
        """See `StoredImage`."""
        LIMITS.check_bytes(self.size, name)
        try:
            with open(self.path, "rb") as file:
                file.seek(self.start)
                content = file.read(self.size)
        except OSError as error:
            raise EaseError(f"image '{name}' cannot be read ({error.strerror}): check {self.path}") from error
        if len(content) != self.size:
            raise EaseError(
                f"image '{name}' is cut off: '{self.path}' is shorter than it says, copy it again"
            )
        return content
