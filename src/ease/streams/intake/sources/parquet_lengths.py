"""Lengths that a page of a Parquet column holds apart from its texts, in the two encodings that do so.

pyarrow takes memory for as many lengths as the page says, which need no bytes at all if they are equal. So they are
counted before pyarrow reads the page.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from ease.streams.intake.sources.parquet_pages import Page, PageError

BYTES_EACH = 8
"""Memory for the two lengths of a value."""
LONGEST_NUMBER = 5  # bytes of a number of 32 bits
WIDEST = 32  # bits of a length
GROUP = 32  # a part of a block has a multiple of so many values


def check_lengths(file: BinaryIO, page: Page, packing: str, with_missing: bool, arrow: Any) -> None:
    """Raise a `PageError` if a page has more lengths than values.

    Args:
        file: The Parquet file.
        page: A page with `has_lengths`.
        packing: How the column is packed, as its metadata calls it.
        with_missing: Whether values of the column can be missing.
        arrow: The package `pyarrow`.
    """
    try:
        data = _content(file, page, packing, with_missing, arrow)
        at = _after_lengths(data, 0, page.values)
        if page.as_changes:
            _after_lengths(data, at, page.values)
    except (IndexError, OSError, ValueError) as error:
        raise PageError("the lengths in a page make no sense") from error


def _content(file: BinaryIO, page: Page, packing: str, with_missing: bool, arrow: Any) -> bytes:
    """The unpacked values of a page, without the numbers that say which are missing."""
    file.seek(page.content)
    data = file.read(page.packed)
    is_packed = page.is_packed and packing != "UNCOMPRESSED"
    codec = "lz4_raw" if packing == "LZ4" else packing.lower()
    levels = page.levels or 0  # these are not packed
    unpacked = page.unpacked - levels
    content = data[levels:]
    if is_packed and unpacked > 0:
        content = arrow.decompress(content, unpacked, codec, asbytes=True)
    if page.levels is None and with_missing:
        content = content[4 + int.from_bytes(content[:4], "little") :]
    return bytes(content)


def _after_lengths(data: bytes, at: int, values: int) -> int:
    """The place after a list of numbers in blocks, of which each is the sum of the one before and a difference."""
    block, at = _number(data, at)
    parts, at = _number(data, at)
    count, at = _number(data, at)
    _, at = _number(data, at)  # the first one
    if count > values:
        raise ValueError("more lengths than values")
    if not parts or block % parts or not block // parts or block // parts % GROUP:
        raise ValueError("blocks without a size")
    left = count - 1
    while left > 0:
        _, at = _number(data, at)  # the least difference
        widths = data[at : at + parts]
        at += parts
        for part in range(parts):
            if left <= 0:
                break
            if widths[part] > WIDEST:
                raise ValueError("a difference with too many bits")
            at += block // parts * widths[part] // 8
            left -= block // parts
    if at > len(data):
        raise IndexError("the page ends too early")
    return at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A number without its sign, and the place after it."""
    value = 0
    for place in range(LONGEST_NUMBER):
        value |= (data[at + place] & 127) << (7 * place)
        if data[at + place] < 128:
            return value, at + place + 1
    raise ValueError("a number that is too long")
