"""The heads of the pages in a column of a Parquet file: what each page unpacks to, before any of it is unpacked.

pyarrow takes the memory that a page's head asks for, and the footer of the file may say something else. The heads are
Thrift structures in its compact form, which pyarrow does not show.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

FIRST_PIECE = 4096
LONGEST_HEAD = 16 * 2**20  # pyarrow's own limit
DEEPEST = 16
LONGEST_NUMBER = 10  # bytes of a number of 64 bits
MOST_EMPTY = 1000
"""Pages of a column in a row group without a value. A dictionary is one; millions of them would take minutes."""

# Numbers of fields and values in the Parquet specification.
TYPE, UNPACKED, PACKED = 1, 2, 3
DICTIONARY = 2
DATA = {0: 5, 3: 8}  # type of the page -> its own head, for the two versions of pages with data
VALUES = 1
ENCODING = {0: 2, 3: 4}
DELTA_BYTE_ARRAY = 7
LENGTHS = {1: 0, 2: 0, 3: 1, 7: 8}
"""Bytes of fields that are true, false, a byte and a floating-point number."""


class PageError(ValueError):
    """The head of a page is not what the specification says."""


@dataclass(frozen=True)
class Page:
    """What the head of a page says."""

    unpacked: int
    packed: int
    values: int
    """How many values of the column it holds."""
    as_dictionary: bool
    """Whether it holds values that pages after it refer to: one may stand for many rows."""
    as_changes: bool
    """Whether each value is written as a change of the one before: all may be as long as the page."""


def column_pages(file: BinaryIO, chunk: Any) -> Iterator[Page]:
    """The pages that pyarrow will read of a column in a row group.

    Args:
        file: The Parquet file.
        chunk: The column's metadata, from `RowGroupMetaData.column`.
    """
    at = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < at:
        at = chunk.dictionary_page_offset
    end, left, empty = at + chunk.total_compressed_size, chunk.num_values, 0
    while at < end and left > 0:
        page, length = _page_at(file, at)
        empty += page.values == 0
        if empty > MOST_EMPTY:
            raise PageError("it has too many pages without a value")
        yield page
        left -= page.values
        at += length + page.packed


def _page_at(file: BinaryIO, at: int) -> tuple[Page, int]:
    """A page and the length of its head."""
    size = FIRST_PIECE
    while True:
        file.seek(at)
        piece = file.read(size)
        reader = _Reader(piece)
        try:
            return _page(reader.structure()), reader.at
        except IndexError:
            if len(piece) < size or size >= LONGEST_HEAD:
                raise PageError("a page ends too early") from None
            size *= 16


def _page(head: dict[int, Any]) -> Page:
    kind = head.get(TYPE)
    own = head.get(DATA[kind]) if kind in DATA else {VALUES: 0}
    counts = [
        fields.get(number) for fields, number in ((head, UNPACKED), (head, PACKED), (own or {}, VALUES))
    ]
    unpacked, packed, values = (count if isinstance(count, int) else -1 for count in counts)
    if min(unpacked, packed, values) < 0:
        raise PageError("a page does not say how large it is")
    as_changes = kind in DATA and own is not None and own.get(ENCODING[kind]) == DELTA_BYTE_ARRAY
    return Page(unpacked, packed, values, kind == DICTIONARY, as_changes)


class _Reader:
    """Thrift's compact form. An `IndexError` means that the data ends too early."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Number of a field -> its value, for numbers and structures; others are passed over."""
        if depth > DEEPEST:
            raise PageError("the head of a page is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._signed()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (4, 5, 6):  # whole numbers of 16, 32 and 64 bits
            return self._signed()
        if kind == 12:
            return self.structure(depth + 1)
        if kind in LENGTHS:
            self._skip(LENGTHS[kind])
        elif kind == 8:  # bytes
            self._skip(self._number())
        elif kind in (9, 10):
            self._list(depth)
        else:
            raise PageError("the head of a page has a field of an unknown kind")
        return None

    def _list(self, depth: int) -> None:
        if depth > DEEPEST:
            raise PageError("the head of a page is nested too deeply")
        head = self._byte()
        count = head >> 4 if head >> 4 < 15 else self._number()
        kind = head & 15
        for _ in range(count):
            self._skip(1) if kind in (1, 2) else self._value(kind, depth + 1)

    def _byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def _skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self.data):
            raise IndexError

    def _number(self) -> int:
        value = 0
        for place in range(LONGEST_NUMBER):
            byte = self._byte()
            value |= (byte & 127) << (7 * place)
            if byte < 128:
                return value
        raise PageError("the head of a page has a number that is too long")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)
