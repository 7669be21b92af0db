"""Columns of Parquet and Arrow files, piece by piece: what a few packed bytes unpack to is bounded.

Nothing becomes a Python object before its size is known. A cell that repeats is kept once, as Parquet stores it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ease.errors import EaseError
from ease.filesystem import explained
from ease.streams.intake.limits import MB
from ease.streams.intake.names import display_name
from ease.streams.intake.sources.parquet_lengths import BYTES_EACH, check_lengths
from ease.streams.intake.sources.parquet_pages import PageError, column_pages

ROWS_AT_ONCE = 1024
"""Rows of text that are in memory at a time."""
IMAGES_AT_ONCE = 16
"""Images that are unpacked at a time."""
MAX_TEXT = 16_384
"""Bytes of a cell of text. Paths have at most 4,096 characters, and names of classes 100."""
ALWAYS_UNPACKED = 128 * MB
"""A piece of this size is unpacked however few bytes it is packed in."""
PACKED_TIMES = 16
"""Larger ones are unpacked to at most this many times their packed size. Photos hardly get smaller by packing."""
COPIES = 3
"""Times the size of a batch that pyarrow needs to make it from values that are written as changes."""


class UnfitError(Exception):
    """What a file holds is not what it should hold, or too large; whoever reads it adds the name of the file."""


def pyarrow() -> Any:
    """The package `pyarrow` with the modules that are used here, or an error that says how to install it."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise EaseError("Parquet and Arrow need pyarrow: pip install 'ease-cil[data]'") from error
    return pyarrow


# --- Parquet --------------------------------------------------------------------------------------


def parquet_groups(path: Path) -> Iterator[int]:
    """How many rows each row group of a Parquet file has. Groups that share bytes with others are refused."""
    metadata = pyarrow().parquet.read_metadata(path)
    _check_groups(path, metadata)
    for number in range(metadata.num_row_groups):
        yield metadata.row_group(number).num_rows


def _check_groups(path: Path, metadata: Any) -> None:
    """Raise an error if a file is smaller than its row groups: bytes that many of them share are read many times."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size = sum(group.column(i).total_compressed_size for group in groups for i in range(group.num_columns))
    if size > path.stat().st_size:
        raise UnfitError("it is damaged (its row groups are larger than the file): write it again")


def parquet_batches(path: Path, leaves: Sequence[str], rows: int, group: int | None = None) -> Iterator[Any]:
    """Some columns of a Parquet file, a few rows at a time, as record batches.

    Args:
        path: The file.
        leaves: The columns, by their paths within the file, such as `label` or `image.bytes`.
        rows: How many rows a batch has at most.
        group: The number of the only row group to read, of those that `parquet_groups` has listed; all if None.
    """
    parquet = pyarrow().parquet
    metadata = parquet.read_metadata(path)
    if group is None:
        _check_groups(path, metadata)
    columns = [metadata.schema.column(i) for i in range(metadata.num_columns)]
    wanted = [i for i, column in enumerate(columns) if column.path in leaves]
    for leaf in leaves:
        if not any(columns[i].path == leaf and not columns[i].max_repetition_level for i in wanted):
            raise UnfitError(
                f"column '{display_name(leaf)}' has not one value per row: write it as text or bytes"
            )
    groups = range(metadata.num_row_groups) if group is None else (group,)
    # Otherwise text that stands there once would be copied for each row that has it.
    once = [columns[i].path for i in wanted if _kept_once(metadata, groups, i)]
    with parquet.ParquetFile(path, metadata=metadata, read_dictionary=once) as file:
        for number in groups:
            limit, most = _check_pages(path, metadata, number, wanted, once)
            for batch in file.iter_batches(min(rows, most), row_groups=[number], columns=list(leaves)):
                if batch.nbytes > limit:
                    raise _too_much(limit)
                yield batch


def _kept_once(metadata: Any, groups: Iterable[int], column: int) -> bool:
    """Whether pyarrow can keep the repeated values of a column once: for text and bytes, not from all encodings."""
    chunks = [metadata.row_group(number).column(column) for number in groups]
    return metadata.schema.column(column).physical_type == "BYTE_ARRAY" and not any(
        encoding.startswith("DELTA_") for chunk in chunks for encoding in chunk.encodings
    )


def _check_pages(
    path: Path, metadata: Any, number: int, wanted: Sequence[int], once: Container[str]
) -> tuple[int, int]:
    """Raise an error if the pages of columns of a row group get far larger than they are.

    Args:
        path: The file.
        metadata: What its footer says.
        number: Number of the row group.
        wanted: Numbers of the columns.
        once: Those whose repeated values are kept once, by their paths.

    Returns:
        The most bytes that they may have, and how many rows certainly fit into them.
    """
    unpacked = packed = longest = 0
    with_lengths = []
    with explained("read", path), open(path, "rb") as file:
        try:
            for i in wanted:
                chunk, column = metadata.row_group(number).column(i), metadata.schema.column(i)
                if chunk.num_values != metadata.row_group(number).num_rows:
                    raise PageError("a column has not as many values as rows")
                is_bytes = column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
                copied = is_bytes and column.path not in once
                longest = max(longest, column.length)  # of values of one length, missing ones take it, too
                for page in column_pages(file, chunk):
                    unpacked, packed = unpacked + page.unpacked, packed + page.packed
                    if page.as_changes or (copied and page.as_dictionary):
                        longest = max(longest, page.unpacked)
                    if page.has_lengths:
                        unpacked += BYTES_EACH * page.values
                        with_lengths.append((page, chunk.compression, column.max_definition_level > 0))
            limit = check_unpacked(unpacked, min(packed, os.fstat(file.fileno()).st_size))
            for page, packing, with_missing in with_lengths:
                check_lengths(file, page, packing, with_missing, pyarrow())
        except PageError as error:
            raise UnfitError(f"it is damaged ({error}): write it again") from error
    return limit, max(1, limit // max(1, COPIES * longest))


def parquet_images(path: Path, column: str, group: int) -> Any:
    """The bytes of the images of a row group, as an array in chunks."""
    arrow = pyarrow()
    is_struct = arrow.types.is_struct(arrow.parquet.read_schema(path).field(column).type)
    leaf = f"{column}.bytes" if is_struct else column
    pieces, size = [], 0
    limit = max(ALWAYS_UNPACKED, PACKED_TIMES * path.stat().st_size)
    for batch in parquet_batches(path, [leaf], IMAGES_AT_ONCE, group):
        pieces.append(image_bytes(batch.column(0)))
        size += batch.nbytes
        if size > limit:
            raise _too_much(limit)
    return arrow.chunked_array(pieces)


def image_bytes(column: Any) -> Any:
    """The bytes in a column of images, which are a part of each cell in datasets of Hugging Face."""
    arrow = pyarrow()
    return arrow.compute.struct_field(column, "bytes") if arrow.types.is_struct(column.type) else column


def check_unpacked(unpacked: int, packed: int) -> int:
    """Raise an error if a piece of a file says that it gets far larger than it is.

    Returns:
        The most bytes that it may have.
    """
    limit = max(ALWAYS_UNPACKED, PACKED_TIMES * packed)
    if unpacked > limit:
        raise _too_much(limit)
    return limit


def _too_much(limit: int) -> UnfitError:
    return UnfitError(f"a part of it unpacks to more than {limit // MB:,} MB: write it in smaller parts")


# --- Arrow ----------------------------------------------------------------------------------------


class ArrowStream:
    """The record batches of an Arrow file. They stay where the file is mapped into memory until they are asked for.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        ipc = pyarrow().ipc
        with explained("read", path):
            self._file = pyarrow().memory_map(str(path))
        first, *self._messages = ipc.MessageReader.open_stream(self._file)
        self.schema = ipc.read_schema(first)
        if any(message.type != "record batch" for message in self._messages):
            raise UnfitError(
                "it keeps repeated values apart from its rows: save the dataset with plain columns"
            )

    def __len__(self) -> int:
        return len(self._messages)

    def batch(self, number: int) -> Any:
        """One of the batches, unpacked and checked: offsets of a forged file may lead anywhere."""
        message = self._messages[number]
        if sizes := _unpacked_sizes(message):
            check_unpacked(sum(sizes), message.body.size)
        batch = pyarrow().ipc.read_record_batch(message, self.schema)
        batch.validate(full=True)
        return batch


def _unpacked_sizes(message: Any) -> list[int]:
    """What the buffers of a packed record batch say they unpack to; pyarrow asks for this memory before it unpacks.

    The head is a flatbuffer: a table begins with the distance back to a list of the places of its fields.
    """
    head, body = memoryview(message.metadata), memoryview(message.body)

    def number(form: str, at: int) -> int:
        return int(struct.unpack_from(form, head, at)[0])

    def field(table: int, index: int) -> int:
        places = table - number("<i", table)
        at = 4 + 2 * index
        own = number("<H", places + at) if at < number("<H", places) else 0
        return table + own if own else 0

    root = number("<I", 0)
    content = field(root, 2)
    table = content + number("<I", content)
    buffers, packing = field(table, 2), field(table, 3)
    if not packing or not buffers:
        return []
    vector = buffers + number("<I", buffers)
    sizes = []
    for index in range(number("<I", vector)):
        offset, length = struct.unpack_from("<qq", head, vector + 4 + 16 * index)
        if length:
            (unpacked,) = struct.unpack_from("<q", body, offset)
            sizes.append(length if unpacked == -1 else unpacked)
    return sizes


# --- cells ----------------------------------------------------------------------------------------


def check_text_type(kind: Any, column: str) -> None:
    """Raise an error for a column that holds neither text nor plain numbers, before any of it is read."""
    types = pyarrow().types
    plain = kind.value_type if types.is_dictionary(kind) else kind
    tests = (types.is_integer, types.is_floating, types.is_boolean, types.is_null, _is_text)
    if not any(test(plain) for test in tests):
        raise UnfitError(
            f"column '{display_name(column)}' holds {display_name(str(kind))}: write it as text or whole numbers"
        )


def _is_text(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def values_of(column: Any, name: str) -> Iterator[Any]:
    """The cells of a column of text or numbers as Python objects, after a look at their lengths.

    Args:
        column: An array.
        name: What messages call it.
    """
    arrow = pyarrow()
    texts = column.dictionary if arrow.types.is_dictionary(column.type) else column
    if _is_text(texts.type) or arrow.types.is_binary(texts.type):
        longest = arrow.compute.max(arrow.compute.binary_length(texts)).as_py() or 0
        if longest > MAX_TEXT:
            raise UnfitError(
                f"column '{display_name(name)}' has a cell of {longest:,} bytes: paths and names are shorter"
            )
    for start in range(0, len(column), ROWS_AT_ONCE):
        yield from column.slice(start, ROWS_AT_ONCE).to_pylist()
