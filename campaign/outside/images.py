# ruff: noqa: E501
"""Images: every format that Pillow writes, cut, flipped and renamed; bombs, polyglots, animations and odd shapes."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from PIL import Image

from campaign.outside.case import Case
from campaign.outside.fixtures import Fixtures, picture

FORMATS = {
    "png": "PNG", "jpg": "JPEG", "bmp": "BMP", "webp": "WEBP", "tif": "TIFF", "gif": "GIF", "ppm": "PPM", "tga": "TGA", "ico": "ICO", "icns": "ICNS",
    "pcx": "PCX", "sgi": "SGI", "jp2": "JPEG2000", "dds": "DDS", "eps": "EPS", "pdf": "PDF", "im": "IM", "msp": "MSP", "xbm": "XBM", "mpo": "MPO", "spi": "SPIDER", "avif": "AVIF", "qoi": "QOI", "blp": "BLP",
}  # fmt: skip
MODES = (
    "1",
    "L",
    "LA",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "RGBX",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
    "I;16B",
    "La",
    "RGBa",
)


def encoded(image: Image.Image, format_: str, **options) -> bytes | None:
    """The bytes of an image, or nothing where the format has no such mode."""
    buffer = io.BytesIO()
    try:
        image.save(buffer, format_, **options)
    except Exception:
        return None
    return buffer.getvalue()


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG with a right checksum."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(
    *chunks: bytes,
    width: int = 8,
    height: int = 8,
    depth: int = 8,
    colour: int = 2,
    interlace: int = 0,
    rows: bytes | None = None,
) -> bytes:
    """A PNG with chunks of one's own between head and data."""
    head = struct.pack(">IIBBBBB", width & 0xFFFFFFFF, height & 0xFFFFFFFF, depth, colour, 0, 0, interlace)
    if rows is None:
        rows = b"\x00" + b"\x40" * (8 * 3)
        rows *= 8
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + b"".join(chunks)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def tiff(
    entries: list[tuple[int, int, int, int]],
    following: int = 0,
    data: bytes = b"\x50" * 4096,
    order: str = "<",
) -> bytes:
    """A TIFF with one directory, whose link leads where the caller says."""
    body = struct.pack(order + "H", len(entries))
    for tag, kind, count, value in entries:
        body += struct.pack(order + "HHII", tag, kind, count & 0xFFFFFFFF, value & 0xFFFFFFFF)
    body += struct.pack(order + "I", following & 0xFFFFFFFF)
    return (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8) + body + data


def _plain(width: int = 8, height: int = 8) -> list[tuple[int, int, int, int]]:
    return [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 134), (277, 3, 1, 1), (278, 4, 1, height), (279, 4, 1, 64)]  # fmt: skip


def bombs() -> Iterator[tuple[str, str, bytes]]:
    """Images that ask for much, or for nonsense: label, extension, bytes."""
    yield "text 80 MB", "png", png(chunk(b"zTXt", b"a\0\0" + zlib.compress(b"x" * 80_000_000, 9)))
    yield (
        "text many",
        "png",
        png(*[chunk(b"zTXt", b"k%d\0\0" % i + zlib.compress(b"y" * 1_000_000, 9)) for i in range(300)]),
    )
    yield "itxt", "png", png(chunk(b"iTXt", b"k\0\1\0\0\0" + zlib.compress(b"z" * 200_000_000, 9)))
    yield "iccp", "png", png(chunk(b"iCCP", b"p\0\0" + zlib.compress(b"z" * 300_000_000, 9)))
    yield "iccp noise", "png", png(chunk(b"iCCP", b"p\0\0" + b"noise"))
    yield "iccp method", "png", png(chunk(b"iCCP", b"p\0\7" + zlib.compress(b"acsp")))
    yield "exif", "png", png(chunk(b"eXIf", b"MM\0*\0\0\0\x08" + b"\xff\xff" + b"\xff" * 200))
    yield "exif big", "png", png(chunk(b"eXIf", b"II*\0" + b"\0" * 20_000_000))
    for depth in (0, 1, 2, 3, 4, 16, 32, 255):
        for colour in (0, 1, 2, 3, 4, 6, 7):
            yield f"depth {depth} colour {colour}", "png", png(depth=depth, colour=colour)
    for width, height in ((0, 0), (0, 8), (8, 0), (2**31, 1), (2**32 - 1, 2**32 - 1), (65535, 65535), (30000, 30000), (32769, 1), (1, 32769), (1, 200), (1, 201), (200, 1), (5000, 1), (1, 100000), (9460, 9460)):  # fmt: skip
        yield f"size {width}x{height}", "png", png(width=width, height=height)
        yield (
            f"real size {width}x{height}",
            "png",
            png(
                width=width,
                height=height,
                rows=(b"\0" + b"\x33" * 3 * min(width, 40000)) * min(height, 10000)
                if width * height < 5e7
                else b"\0",
            ),
        )
        yield (
            f"bmp {width}x{height}",
            "bmp",
            b"BM"
            + struct.pack(
                "<IHHIIiiHHIIiiII",
                200,
                0,
                0,
                54,
                40,
                min(width, 2**31 - 1),
                min(height, 2**31 - 1),
                1,
                24,
                0,
                0,
                1,
                1,
                0,
                0,
            )
            + b"\0" * 146,
        )
        yield (
            f"gif {width}x{height}",
            "gif",
            b"GIF89a"
            + struct.pack("<HH", width & 65535, height & 65535)
            + b"\x80\0\0\0\0\0\xff\xff\xff,\0\0\0\0"
            + struct.pack("<HH", width & 65535, height & 65535)
            + b"\0\x02\x02D\x01\0;",
        )
        yield f"tiff {width}x{height}", "tif", tiff(_plain(width, height))
    yield "interlace 9", "png", png(interlace=9)
    yield "palette none", "png", png(colour=3, rows=(b"\0" + b"\x05" * 8) * 8)
    yield (
        "palette long",
        "png",
        png(chunk(b"PLTE", b"\x01" * 3 * 5000), colour=3, rows=(b"\0" + b"\xff" * 8) * 8),
    )
    yield (
        "palette trns",
        "png",
        png(
            chunk(b"PLTE", b"\x01\x90\x30" * 4),
            chunk(b"tRNS", b"\0\x80" * 300),
            colour=3,
            rows=(b"\0" + b"\xff" * 8) * 8,
        ),
    )
    yield "idat bomb", "png", png(rows=b"\0" * 300_000_000)
    yield "two ihdr", "png", png(chunk(b"IHDR", struct.pack(">IIBBBBB", 50000, 50000, 8, 2, 0, 0, 0)))
    yield "apng", "png", png(chunk(b"acTL", struct.pack(">II", 2**31, 0)))
    yield "apng zero", "png", png(chunk(b"acTL", b"\0" * 8), chunk(b"fcTL", b"\xff" * 26))
    yield "length", "png", png()[:33] + b"\xff\xff\xff\xff" + png()[37:]
    for following in (8, 0, 4, 1, 2**32 - 1, 130, 2**31):
        for order in "<>":
            yield f"tiff next {following}{order}", "tif", tiff(_plain(), following, order=order)
    for tag, kind, count, value in ((273, 4, 2**32 - 1, 0), (256, 12, 1, 8), (258, 3, 2**30, 8), (259, 3, 1, 7), (259, 3, 1, 5), (259, 3, 1, 34712), (259, 3, 1, 50000), (259, 3, 1, 65535), (262, 3, 1, 6), (262, 3, 1, 99),
                                    (277, 3, 1, 65535), (278, 4, 1, 0), (279, 4, 1, 2**32 - 1), (339, 3, 1, 3), (34665, 4, 1, 8), (330, 4, 1, 8), (320, 3, 2**31, 0), (322, 4, 1, 0), (324, 4, 2**28, 8), (274, 3, 1, 99), (34675, 7, 2**31, 10), (700, 1, 2**31, 8), (37510, 2, 2**32 - 1, 0)):  # fmt: skip
        entries = [entry for entry in _plain() if entry[0] != tag] + [(tag, kind, count, value)]
        yield f"tiff tag {tag} {kind} {count} {value}", "tif", tiff(sorted(entries))
    yield "tiff many tags", "tif", tiff([(40000 + i, 7, 1000, 8) for i in range(20000)] + _plain())
    yield "bigtiff", "tif", b"II+\0\x08\0\0\0" + struct.pack("<QQ", 16, 2**63) + b"\xff" * 64
    frames = [Image.new("P", (4, 4), i % 250) for i in range(10000)]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:], duration=1)
    yield "gif 10000 frames", "gif", buffer.getvalue()
    yield "gif no end", "gif", buffer.getvalue()[:5000]
    yield (
        "gif loops",
        "gif",
        b"GIF89a\x08\0\x08\0\x80\0\0\0\0\0\xff\xff\xff" + b"!\xf9\x04\0\0\0\0\0" * 100000 + b";",
    )
    yield (
        "gif comment",
        "gif",
        b"GIF89a\x08\0\x08\0\x80\0\0\0\0\0\xff\xff\xff!\xfe" + (b"\xff" + b"c" * 255) * 60000 + b"\0;",
    )
    good = encoded(picture("red", 5), "JPEG")
    for marker in (
        0xE0,
        0xE1,
        0xE2,
        0xED,
        0xEE,
        0xFE,
        0xDD,
        0xC4,
        0xDB,
        0xC0,
        0xC2,
        0xCC,
        0xDA,
        0xD8,
        0xD9,
        0x01,
    ):
        for data in (b"", b"\0\0", b"\0\2", b"\xff\xff" + b"\xff" * 100, b"\0\x10Exif\0\0MM\0*\0\0\0\x08", b"\0\x20http://ns.adobe.com/xap/1.0/\0"):  # fmt: skip
            yield (
                f"jpeg marker {marker:x} {data[:12]!r}",
                "jpg",
                good[:2] + b"\xff" + bytes([marker]) + data + good[2:],
            )
    yield (
        "jpeg exif bomb",
        "jpg",
        good[:2]
        + (
            b"\xff\xe1\xff\xfeExif\0\0II*\0\x08\0\0\0\xff\xff"
            + b"\x0e\x01\x02\0\xff\xff\xff\x7f\0\0\0\0" * 5459
        )[:65538]
        + good[2:],
    )
    yield (
        "jpeg many icc",
        "jpg",
        good[:2]
        + b"".join(
            b"\xff\xe2\xff\xfeICC_PROFILE\0" + bytes([i % 256, 255]) + b"i" * 65518 for i in range(255)
        )
        + good[2:],
    )
    yield "jpeg comments", "jpg", good[:2] + b"\xff\xfe\0\x03x" * 300000 + good[2:]
    yield "jpeg fill", "jpg", good[:2] + b"\xff" * 5_000_000 + good[2:]
    wide = bytearray(good)
    at = wide.find(b"\xff\xc0")
    for height, width in ((0, 0), (0, 24), (65535, 65535), (24, 65535), (65535, 24), (8000, 8000)):
        wide[at + 5 : at + 9] = struct.pack(">HH", height, width)
        yield f"jpeg {width}x{height}", "jpg", bytes(wide)
    for orientation in (0, 1, 5, 8, 9, 255, 65535):
        exif = Image.Exif()
        exif[274] = orientation
        yield f"orientation {orientation}", "jpg", encoded(picture("red", 6), "JPEG", exif=exif)
    for text in (b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>", b"<!doctype html><script>x</script>", b"%PDF-1.7\n%EOF", b"%!PS-Adobe-3.0 EPSF\n%%BoundingBox: 0 0 9 9\n(x) run", b"PK\x03\x04" + b"\0" * 50,
                 b"\x1f\x8b\x08" + b"\0" * 40, b"MZ" + b"\0" * 60, b"#!/bin/sh\nid\n", b"\x7fELF" + b"\0" * 50, b"RIFF\xff\xff\xff\xffWEBPVP8 \xff\xff\xff\xff", b"RIFF\0\0\0\0WEBPVP8L\0\0\0\0", b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0\xff\xff\xff\xff\xff\xff", b"", b"\0", b"\xff\xd8\xff", b"P6 99999 99999 255\n", b"\0\0\0\x1cftypheic\0\0\0\0", b"\0\0\0 ftypavif", b"8BPS\0\1" + b"\0" * 30, b"\x00\x00\x01\x00\xff\xff" + b"\xff" * 60):  # fmt: skip
        for extension in ("jpg", "png", "gif", "webp", "tif"):
            yield f"text {text[:14]!r}", extension, text
    yield "polyglot zip", "png", encoded(picture("red", 7), "PNG") + b"PK\x05\x06" + b"\0" * 18
    yield "polyglot html", "gif", encoded(picture("red", 7), "GIF") + b"<script>1</script>"
    yield "twice", "jpg", good + good
    yield "tail 60 MB", "jpg", good + b"\0" * 60_000_000
    yield "sparse", "jpg", b"SPARSE"


def cases(seed: int, fixtures: Fixtures) -> list[Case]:
    """All inputs of the family; most are given to `predict`, several at a time where each is reported alone."""
    rng = random.Random(f"{seed}-images")
    found: list[Case] = []

    def add(label: str, extension: str, make: Callable[[], bytes | None], **more) -> None:
        how = (
            more.pop("how", None)
            or rng.choices(("predict", "skip", "learn", "eval", "check"), (5, 2, 2, 1, 1))[0]
        )
        name = f"x.{extension}"
        argv = {
            "predict": ["predict", name, "--model", "m", "--json"], "learn": ["learn", "d", "--model", "m", "--thumbnails"],
            "skip": ["learn", "d", "--model", "m", "--thumbnails", "--unreadable", "skip", "--json"], "eval": ["eval", "d", "--model", "m", "--json"],
            "check": ["datasets", "check", "folder", "--data-root", "d", "--json"],
        }[how]  # fmt: skip

        def files(folder: Path) -> None:
            content = make()
            fixtures.model("strata" if "--thumbnails" in argv else "small", folder / "m")
            target = folder / name
            if how != "predict":
                cls = "red" if how == "eval" else "new"
                (folder / "d" / cls).mkdir(parents=True)
                picture("new", 1).save(folder / "d" / cls / "good.png")
                target = folder / "d" / cls / name
            if content == b"SPARSE":
                with target.open("wb") as file:
                    file.write(b"\xff\xd8\xff\xe0")
                    file.truncate(40 << 30)
            else:
                target.write_bytes(content or b"")

        found.append(Case("images", f"{label} ({how})", argv, files, **more))

    for extension, format_ in FORMATS.items():
        for mode in MODES:
            try:
                image = picture("red", 3).convert(mode)
            except ValueError:
                image = picture("red", 3).convert("L").convert("I" if mode.startswith("I") else "L")
            content = encoded(image, format_)
            if content and rng.random() < 0.6:
                add(f"{format_} {mode}", extension, lambda content=content: content)
    bases = {
        extension: encoded(picture("green", 4, (40, 30)), format_) for extension, format_ in FORMATS.items()
    }
    bases["progressive.jpg"] = encoded(picture("green", 4, (40, 30)), "JPEG", progressive=True)
    bases["lossless.webp"] = encoded(picture("green", 4, (40, 30)), "WEBP", lossless=True)
    for compression in ("tiff_lzw", "jpeg", "packbits", "tiff_deflate", "zstd", "webp", "lzma"):
        bases[f"{compression}.tif"] = encoded(picture("green", 4, (40, 30)), "TIFF", compression=compression)
    for extension, content in bases.items():
        if not content:
            continue
        kept = extension.rsplit(".", 1)[-1] in ("png", "jpg", "bmp", "webp", "tif", "gif")
        for _ in range(16 if kept else 4):
            at = rng.choice(
                (
                    rng.randrange(len(content)),
                    rng.randrange(min(64, len(content))),
                    len(content) - rng.randrange(1, 12),
                )
            )
            add(
                f"{extension} cut at {at} of {len(content)}",
                extension,
                lambda content=content, at=at: content[:at],
            )
        for _ in range(22 if kept else 4):
            flips = [
                (
                    rng.randrange(len(content) if rng.random() < 0.5 else min(200, len(content))),
                    rng.randrange(1, 256),
                )
                for _ in range(rng.choice((1, 1, 3, 20)))
            ]

            def flipped(content: bytes = content, flips: list = flips) -> bytes:
                changed = bytearray(content)
                for spot, bits in flips:
                    changed[spot] ^= bits
                return bytes(changed)

            add(f"{extension} flipped {flips[:3]}", extension, flipped)
        other = rng.choice(list(FORMATS))
        add(f"{extension} named {other}", other, lambda content=content: content)
    for label, extension, content in bombs():
        add(label, extension, lambda content=content: content)
    return found
