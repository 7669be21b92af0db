"""How much one request, one job, one connection, and all of them may take."""

from __future__ import annotations

from dataclasses import dataclass

from ease.streams.intake.limits import ArchiveLimits, ImageLimits

MB = 1_000_000
JSON_BYTES = 64 * 1024


@dataclass(frozen=True)
class Limits:
    """What the server accepts. docs/serving.md has a table of them.

    Attributes:
        predict_bytes: of a request for predictions,
        predict_files: and images in it.
        learn_bytes: of a request to learn,
        learn_files: and images in it, or members of its archive.
        unpacked_bytes: of an archive.
        pixels: of an image. Side length, aspect and scans are those of `ImageLimits`.
        image_bytes: of the file of an image, in an archive too.
        image_seconds: that decoding an image may take.
        job_seconds: that learning may take.
        waiting: requests for predictions that are worked on at a time; further ones are told to come again.
        answer_seconds: that a request for predictions may take once all of it has arrived.
        receiving: requests whose bodies are on their way in at a time; the slowest of them makes room for another.
        idle_seconds: without a byte of a request that has begun, or of an answer that is being read.
        slow_seconds: that a body may take in any case,
        slow_bytes: and a second more for each so many bytes of it,
        predict_seconds: up to so many for predictions,
        learn_seconds: and so many for learning.
        connections: at a time; one that waits without a request makes room for another.
        head_seconds: until the first lines of a request, its head, are complete.
        keep_alive_seconds: that a connection stays open after an answer. Clients that hold connections for further
            requests give them up after 5 to 60 seconds. It must be the client who closes: if the server does while
            the next request is on its way, the client sees a broken connection.
        linger_seconds: that the rest of a refused request is read and dropped, so that its sender sees the answer.
    """

    predict_bytes: int = 20 * MB
    predict_files: int = 64
    learn_bytes: int = 500 * MB
    learn_files: int = 10_000
    unpacked_bytes: int = 2000 * MB
    pixels: int = 50_000_000
    image_bytes: int = 100 * MB
    image_seconds: float = 10.0
    job_seconds: float = 3600.0
    waiting: int = 64
    answer_seconds: float = 30.0
    receiving: int = 128
    idle_seconds: float = 30.0
    slow_seconds: float = 20.0
    slow_bytes: int = 16_000
    predict_seconds: float = 60.0
    learn_seconds: float = 1800.0
    connections: int = 1000
    head_seconds: float = 10.0
    keep_alive_seconds: int = 75
    linger_seconds: float = 30.0

    @property
    def image(self) -> ImageLimits:
        """Those of one image."""
        return ImageLimits(bytes=self.image_bytes, pixels=self.pixels, seconds=self.image_seconds)

    @property
    def archive(self) -> ArchiveLimits:
        """The limits of an archive of images."""
        return ArchiveLimits(self.learn_files, self.unpacked_bytes, self.image)

    def bytes_of(self, path: str) -> int:
        """How large a request to this path may be."""
        return {"/predict": self.predict_bytes, "/learn": self.learn_bytes}.get(path, JSON_BYTES)

    def seconds_of(self, path: str, received: int) -> float:
        """How long it may take to arrive, of which so many bytes are here."""
        most = self.learn_seconds if path == "/learn" else self.predict_seconds
        return min(most, self.slow_seconds + received / self.slow_bytes)
