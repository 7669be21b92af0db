"""Images that would cost too much are refused from their header; small and large ones are read as they are."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from ease.errors import EaseError
from ease.streams.intake import as_image_set, collect_images
from ease.streams.intake import decode as decoder
from ease.streams.intake.checks import check_image
from ease.streams.intake.decode import LARGE_IMAGE_PIXELS, check_header, decode
from ease.streams.intake.limits import LIMITS, ImageLimits, TooLargeError


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def grey_png(width: int, height: int) -> bytes:
    """A whole PNG of zeros, which takes few bytes."""
    packer, rows = zlib.compressobj(1), height
    data = []
    while rows > 0:
        data.append(packer.compress(bytes(min(rows, 1_000_000) * (1 + width))))
        rows -= 1_000_000
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    body = b"".join([*data, packer.flush()])
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.fixture
def decoded_never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decodes a pixel fails."""

    def load(*_: object) -> None:
        raise AssertionError("pixels were decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", load)


class Counted(io.BytesIO):
    """A file that knows how much of it was read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        piece = super().read(size)
        self.count += len(piece)
        return piece


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.usefixtures("decoded_never")
@pytest.mark.parametrize(
    ("width", "height", "word"),
    [(1, 49_900_000, "side"), (33_000, 300, "side"), (6, 1201, "times as long"), (10_000, 9_000, "pixels")],
)
def test_a_picture_of_no_sensible_size_is_refused_before_a_pixel_is_decoded(
    width: int, height: int, word: str
) -> None:
    content = grey_png(width, height)
    with pytest.raises(TooLargeError, match=f"'strip.png'.*{word}"):
        decode(content, "strip.png")
    fault = check_image(content, "strip.png").fault
    assert fault is not None
    assert word in fault
    file = Counted(content)
    with pytest.raises(TooLargeError):
        check_header(file, "strip.png", LIMITS)
    assert file.count < 1000 < len(content) or len(content) < 1000


def test_pictures_in_memory_have_the_same_limits() -> None:
    strip = np.zeros((1, 300, 3), np.uint8)
    for image in (strip, Image.fromarray(strip)):
        with pytest.raises(TooLargeError, match="times as long"):
            as_image_set([image])


def test_long_pictures_within_the_limits_are_read() -> None:
    assert decode(grey_png(5, 1000), "x").shape == (3, 1000, 5)
    assert decode(grey_png(1, 1), "x").shape == (3, 1, 1)


def test_limits_can_be_lower() -> None:
    content = encoded(Image.new("RGB", (50, 40)), "PNG")
    with pytest.raises(TooLargeError, match="more than 1,999 pixels"):
        decode(content, "x", ImageLimits(pixels=1999))
    assert decode(content, "x", ImageLimits(pixels=2000)).shape == (3, 40, 50)


@pytest.mark.parametrize(("width", "height"), [(1, 1), (7, 7), (5, 300), (300, 3), (8, 8)])
def test_tiny_jpegs_are_learned_as_they_are_predicted(tmp_path: Path, width: int, height: int) -> None:
    pixels = np.random.RandomState(0).randint(0, 255, (height, width, 3), dtype=np.uint8)
    (tmp_path / "cat").mkdir()
    Image.fromarray(pixels).save(tmp_path / "cat" / "a.jpg")
    photos = collect_images(tmp_path)
    assert photos.images.image(0).shape == (3, height, width)
    assert not any("left out" in note for note in photos.notes)


@pytest.mark.parametrize("divisor", [1, 2, 4, 8])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(
    divisor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = Image.fromarray(np.random.RandomState(0).randint(0, 255, (30, 40, 3), dtype=np.uint8))
    wide = wide.resize((640, 480), Image.Resampling.BICUBIC)
    monkeypatch.setattr(decoder, "LARGE_IMAGE_PIXELS", 640 * 480 // divisor**2)
    small = decode(encoded(wide, "JPEG", quality=95), "x")
    assert small.shape == (3, 480 // divisor, 640 // divisor)
    expected = np.asarray(wide.reduce(divisor) if divisor > 1 else wide).transpose(2, 0, 1)
    assert np.abs(small.numpy().astype(int) - expected).mean() < 3
    # What cannot be reduced cheaply is not.
    assert decode(encoded(wide, "PNG"), "x").shape == (3, 480, 640)


def test_usual_photos_are_decoded_whole() -> None:
    assert LARGE_IMAGE_PIXELS > 4032 * 3024  # of a phone


def progressive(scans: int) -> bytes:
    """A progressive JPEG with at least so many scans: its last one again and again, which changes nothing."""
    content = encoded(Image.new("RGB", (64, 64), (3, 4, 5)), "JPEG", progressive=True)
    table = content.rindex(b"\xff\xc4")
    return content[:-2] + content[table:-2] * scans + b"\xff\xd9"


def test_a_progressive_jpeg_of_too_many_scans_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = progressive(0)
    film = b"\xff\xda" * (LIMITS.scans + 1)
    assert decode(usual + film, "live.jpg").shape == (3, 64, 64)  # what follows a picture is none of it
    assert decode(progressive(50), "x").shape == (3, 64, 64)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: 1 / 0)  # nothing is decoded
    with pytest.raises(TooLargeError, match="scans"):
        decode(progressive(100), "x")
    assert "scans" in str(check_image(progressive(100), "x").fault)


def test_decoding_ends_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(decoder.time, "monotonic", lambda: float(next(clock)))  # a second for each look at it
    pixels = np.random.RandomState(0).randint(0, 255, (800, 800, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(pixels), "PNG")
    with pytest.raises(TooLargeError, match="more than 20 seconds"):
        decode(content, "slow.png", ImageLimits(seconds=20))
    assert next(clock) < 30
    assert decode(content, "slow.png", ImageLimits(seconds=10**5)).shape == (3, 800, 800)


def test_a_file_of_too_many_bytes_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    with open(tmp_path / "cat" / "a.png", "wb") as file:
        file.truncate(LIMITS.bytes + 1)  # holes: nothing is on the disk
    with pytest.raises(EaseError, match="536 MB"):
        collect_images(tmp_path)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16", "F"])
def test_a_picture_is_the_same_whatever_is_converted_at_a_time(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.RandomState(0).randint(0, 255, (33, 40, 4), dtype=np.uint8)
    image = Image.fromarray(values)
    if mode == "I;16":
        image = Image.fromarray(values[..., 0].astype(np.uint16) * 257)
    elif mode == "F":
        image = Image.fromarray(values[..., 0].astype(np.float32) / 255)
    else:
        image = image.convert(mode)
    content = encoded(image, "TIFF" if mode == "F" else "PNG")
    whole = decode(content, "x")
    monkeypatch.setattr(decoder, "_BAND_PIXELS", 90)
    assert (decode(content, "x") == whole).all()
