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
LARGEST_COUNT = 2**31 - 1
LARGEST_FIELD = 2**15 - 1

# Numbers of fields and values in the Parquet specification.
TYPE, UNPACKED, PACKED = 1, 2, 3
DICTIONARY = 2
DATA, DATA_V2 = 0, 3
OWN_HEAD = {DATA: 5, DATA_V2: 8}
VALUES = 1
ENCODING = {DATA: 2, DATA_V2: 4}
LEVELS_V2 = (5, 6)
IS_PACKED_V2 = 7
DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY = 6, 7
TRUE, FALSE, NUMBER = 1, 2, 5  # kinds of fields; a number has 32 bits
OTHER_NUMBERS = (4, 6)
LENGTHS = {3: 1, 7: 8}
"""Bytes of fields that are a byte and a floating-point number."""


class PageError(ValueError):
    """The head of a page is not what the specification says."""


@dataclass(frozen=True)
class Page:
    """What the head of a page says, and where its content begins.

    Attributes:
        unpacked: Bytes of the page when it is unpacked.
        packed: Bytes of the page in the file.
        values: How many values of the column it holds.
        as_dictionary: Whether it holds values that pages after it refer to: one may stand for many rows.
        encoding: How its values are written; None if it holds none.
        levels: Bytes before the values that say which are missing; None if the page itself says how many.
        is_packed: Whether the values are packed.
        content: Place in the file.
    """

    unpacked: int
    packed: int
    values: int
    as_dictionary: bool
    encoding: int | None
    levels: int | None
    is_packed: bool
    content: int

    @property
    def as_changes(self) -> bool:
        """Whether each value is written as a change of the one before: all may be as long as the page."""
        return self.encoding == DELTA_BYTE_ARRAY

    @property
    def has_lengths(self) -> bool:
        """Whether the lengths of its values are written apart from them."""
        return self.encoding in (DELTA_LENGTH_BYTE_ARRAY, DELTA_BYTE_ARRAY)


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
    while left > 0:
        page = _page_at(file, at)
        at = page.content + page.packed
        if at > end:  # pyarrow would find other pages than those that were looked at
            raise PageError("a page goes beyond its column")
        empty += page.values == 0
        if empty > MOST_EMPTY:
            raise PageError("it has too many pages without a value")
        yield page
        left -= page.values


def _page_at(file: BinaryIO, at: int) -> Page:
    size = FIRST_PIECE
    while True:
        file.seek(at)
        piece = file.read(size)
        reader = _Reader(piece)
        try:
            head = reader.structure()
            return _page(head, at + reader.at)
        except IndexError:
            if len(piece) < size or size >= LONGEST_HEAD:
                raise PageError("a page ends too early") from None
            size *= 16


def _page(head: dict[int, Any], content: int) -> Page:
    kind = head.get(TYPE)
    own = head.get(OWN_HEAD[kind]) if kind in OWN_HEAD else {VALUES: 0}
    if not isinstance(own, dict):
        raise PageError("a page does not say how many values it has")
    is_v2 = kind == DATA_V2
    return Page(
        unpacked=_count(head, UNPACKED),
        packed=_count(head, PACKED),
        values=_count(own, VALUES),
        as_dictionary=kind == DICTIONARY,
        encoding=_count(own, ENCODING[kind]) if kind in OWN_HEAD else None,
        levels=sum(_count(own, number) for number in LEVELS_V2) if is_v2 else None,
        is_packed=own.get(IS_PACKED_V2) is not False if is_v2 else True,
        content=content,
    )


def _count(fields: dict[int, Any], number: int) -> int:
    value = fields.get(number)
    if type(value) is not int or not 0 <= value <= LARGEST_COUNT:
        raise PageError("a page does not say how large it is")
    return value


class _Reader:
    """Thrift's compact form, as writers use it. An `IndexError` means that the data ends too early.

    Readers differ in what they make of a field that is there twice, or has another kind or a higher number than it
    should. Here it is an error, or such a field counts as missing: what is found must be what pyarrow finds.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        """Number of a field -> its value, for truth values, numbers of 32 bits and structures; else None."""
        if depth > DEEPEST:
            raise PageError("the head of a page is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            before, number = number, number + (head >> 4) if head >> 4 else self._signed()
            if not before < number <= LARGEST_FIELD:
                raise PageError("the fields in the head of a page are not in order")
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == NUMBER:
            return self._signed()
        if kind == 12:
            return self.structure(depth + 1)
        if kind in OTHER_NUMBERS:
            self._number()
        elif kind in LENGTHS:
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
