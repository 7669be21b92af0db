"""What the server accepts: sizes, numbers and times of requests, jobs and connections."""

from __future__ import annotations

from pathlib import Path

from pydantic import ConfigDict, Field

from ease.config import read_yaml, validated
from ease.documents import Adjustable
from ease.streams.intake.limits import ArchiveLimits, ImageLimits

MB = 1_000_000
JSON_BYTES = 64 * 1024
LONGEST = 365 * 24 * 3600
"""Seconds that a limit may be at most: clocks of the system refuse times of some hundred years."""


class Limits(Adjustable):
    """What the server accepts. `ease serve --limits FILE` reads any of these from a YAML or JSON file.

    docs/how-to/serve.md lists them with their defaults. Side length, aspect ratio and scans of an image are limited by
    `ImageLimits`.
    """

    model_config = ConfigDict(use_attribute_docstrings=True)

    predict_bytes: int = Field(20 * MB, ge=1)
    """Bytes of a request for predictions."""
    predict_files: int = Field(64, ge=1)
    """Images in a request for predictions."""
    learn_bytes: int = Field(500 * MB, ge=1)
    """Bytes of a request to learn."""
    learn_files: int = Field(10_000, ge=1)
    """Images in a request to learn, or members of its archive."""
    check_files: int = Field(2000, ge=1)
    """Images in a request to check labels, or members of its archive."""
    check_seconds: float = Field(300.0, gt=0, le=LONGEST)
    """Seconds that checking labels may take once all of the request has arrived."""
    unpacked_bytes: int = Field(2000 * MB, ge=1)
    """Bytes of an archive, unpacked."""
    pixels: int = Field(50_000_000, ge=1, le=ImageLimits().pixels)
    """Pixels of an image."""
    image_bytes: int = Field(100 * MB, ge=1)
    """Bytes of the file of an image, also inside an archive."""
    image_seconds: float = Field(10.0, gt=0, le=LONGEST)
    """Seconds that decoding an image may take."""
    job_seconds: float = Field(3600.0, ge=1, le=LONGEST)
    """Seconds that a job may take."""
    waiting: int = Field(64, ge=1)
    """Requests for predictions that are worked on at a time; further ones are answered with 503."""
    answer_seconds: float = Field(30.0, gt=0, le=LONGEST)
    """Seconds that a request for predictions may take once all of it has arrived."""
    receiving: int = Field(128, ge=1)
    """Requests whose bodies are being received at a time; if one more arrives, the slowest is dropped."""
    idle_seconds: float = Field(30.0, gt=0, le=LONGEST)
    """Seconds without a byte of a request that has begun, or of an answer that is being read."""
    slow_seconds: float = Field(20.0, gt=0, le=LONGEST)
    """Seconds that receiving a body may take, whatever its size."""
    slow_bytes: int = Field(16_000, ge=1)
    """Bytes of a body that add one second to `slow_seconds`."""
    predict_seconds: float = Field(60.0, gt=0, le=LONGEST)
    """Seconds that receiving a request for predictions may take in total."""
    learn_seconds: float = Field(1800.0, gt=0, le=LONGEST)
    """Seconds that receiving a request to learn may take in total."""
    models: int = Field(16, ge=1)
    """Models of a folder that are loaded at a time (`ease serve --models`)."""
    connections: int = Field(1000, ge=1)
    """Connections at a time; if one more arrives, one without a request, or whose request is answered, is closed."""
    head_seconds: float = Field(10.0, gt=0, le=LONGEST)
    """Seconds until the head of a request (the lines before its body) is complete."""
    # Clients keep idle connections for 5 to 60 seconds. The client should be the one to close: if the server does
    # while the next request is under way, the client sees a broken connection.
    keep_alive_seconds: int = Field(75, ge=1, le=LONGEST)
    """Seconds that a connection stays open after an answer."""
    linger_seconds: float = Field(30.0, gt=0, le=LONGEST)
    """Seconds for which the rest of a refused request is read and discarded, so that its sender sees the answer."""

    @property
    def image(self) -> ImageLimits:
        """The limits of one image."""
        return ImageLimits(bytes=self.image_bytes, pixels=self.pixels, seconds=self.image_seconds)

    @property
    def archive(self) -> ArchiveLimits:
        """The limits of an archive of images."""
        return ArchiveLimits(self.learn_files, self.unpacked_bytes, self.image)

    def bytes_of(self, path: str) -> int:
        """Largest size of a request to this path."""
        return {
            "/predict": self.predict_bytes,
            "/feedback": self.predict_bytes,
            "/explain": self.predict_bytes,
            "/learn": self.learn_bytes,
            "/check": self.learn_bytes,
        }.get(path, JSON_BYTES)

    def seconds_of(self, path: str, received: int) -> float:
        """Seconds that a request to this path may take to arrive, given the bytes received so far."""
        most = self.learn_seconds if path in ("/learn", "/check") else self.predict_seconds
        return min(most, self.slow_seconds + received / self.slow_bytes)


def read_limits(path: Path) -> Limits:
    """Limits from a YAML or JSON file of `name: value` pairs; those not named keep their defaults.

    Args:
        path: The file. JSON is read as YAML, which contains it.

    Returns:
        The limits. A name that is not a limit, or a value out of range, is an `EaseError` that names it.
    """
    limits: Limits = validated(Limits, read_yaml(path, "limits file"), f"limits file {path}")
    return limits
