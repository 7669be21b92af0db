"""Rows of tables: CSV, TSV, JSON lines and Parquet. A table is read piece by piece, whatever its size."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ease.documents import parse_json, reason_of
from ease.errors import EaseError
from ease.filesystem import explained, is_file, shown
from ease.streams.intake.names import display_name
from ease.streams.intake.sources.columnar import (
    ROWS_AT_ONCE,
    UnfitError,
    check_text_type,
    parquet_batches,
    pyarrow,
    values_of,
)

TEXT_TABLES = {".csv": ",", ".tsv": "\t"}
LINE_TABLES = frozenset({".jsonl", ".ndjson"})
TABLES = frozenset({*TEXT_TABLES, *LINE_TABLES, ".parquet"})
"""Endings of the tables that are read."""

MAX_ROWS = 50_000_000
MAX_LINE = 2**20
"""Bytes of a line of text."""
MAX_COLUMNS = 10_000
_PIECE = 2**16


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        number: As people count: lines of a text file including its heading, rows of a Parquet table from 1.
        values: Column -> value. A column that the row does not have is not there.
    """

    number: int
    values: dict[str, Any]


class Table:
    r"""A table whose rows are read one after the other.

    Args:
        path: The file; its ending says what it is.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        ...     _ = file.write(b"path,label\na.png,cat\n")
        ...     file.flush()
        ...     table = Table(file.name)
        ...     columns, rows = table.columns(), list(table.rows())
        >>> columns, rows[0].values
        (('path', 'label'), {'path': 'a.png', 'label': 'cat'})
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.kind = self.path.suffix.lower()
        if self.kind not in TABLES:
            known = ", ".join(sorted(TABLES))
            raise EaseError(f"table '{shown(path)}' has an ending that is not known: give one of {known}")
        if not is_file(path):
            raise EaseError(f"table '{shown(path)}' is not there, or not a file: check the path")

    def columns(self) -> tuple[str, ...]:
        """The names of the columns; of JSON lines, those of the first line."""
        if self.kind == ".parquet":
            with self._parquet() as file:
                return tuple(file.schema_arrow.names)
        if self.kind in LINE_TABLES:
            return tuple(next((row.values for row in self.rows()), {}))
        with self._lines() as lines:
            return self._heads(csv.reader(lines, delimiter=TEXT_TABLES[self.kind], strict=True))

    def rows(self, wanted: tuple[str, ...] | None = None) -> Iterator[Row]:
        """The rows, in their order.

        Args:
            wanted: The columns to read; all of them if None.

        Raises:
            EaseError: The table is damaged or too large; the message names the row.
        """
        reader = {".parquet": self._parquet_rows, ".csv": self._text_rows, ".tsv": self._text_rows}
        for count, row in enumerate(reader.get(self.kind, self._json_rows)(wanted)):
            if count >= MAX_ROWS:
                raise self.fault(f"it has more than {MAX_ROWS:,} rows: divide it")
            yield row

    def fault(self, problem: str, row: int | None = None) -> EaseError:
        """An error that names the table and the row."""
        return EaseError(f"table '{shown(self.path)}'{f', row {row}' if row else ''}: {problem}")

    # --- text -------------------------------------------------------------------------------------

    @contextmanager
    def _lines(self) -> Iterator[Iterator[str]]:
        with explained("read", self.path), open(self.path, "rb") as file:
            # Files of the system that say that they are empty may never end.
            yield self._decoded(file) if os.fstat(file.fileno()).st_size else iter(())

    def _decoded(self, file: BinaryIO) -> Iterator[str]:
        for number, line in enumerate(self._split(file), start=1):
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise self.fault("it is not UTF-8 text: save it as such", number) from error

    def _split(self, file: BinaryIO) -> Iterator[bytes]:
        """Lines with their ends, which may be those of Windows or of old Macs."""
        number, rest = 0, b""
        while piece := file.read(_PIECE):
            # The last one may not be whole, and of a line end of two bytes the second may be missing.
            *whole, rest = (rest + piece).splitlines(keepends=True)
            for line in whole:
                number += 1
                self._check_length(line, number)
                yield line
            self._check_length(rest, number + 1)
        if rest:
            yield rest

    def _check_length(self, line: bytes, number: int) -> None:
        if len(line) >= MAX_LINE:
            raise self.fault(f"the line has more than {MAX_LINE:,} bytes: is it the right file?", number)

    def _once(self, names: Sequence[str], wanted: tuple[str, ...] | None) -> None:
        """Refuse a column that is there twice: nobody knows which of them is meant."""
        for name in names if wanted is None else wanted:
            if name and names.count(name) > 1:
                raise self.fault(f"the column '{display_name(name)}' is there twice: remove or rename one")

    def _heads(self, reader: Any) -> tuple[str, ...]:
        try:
            heads = tuple(name.strip() for name in next(reader, ()))
        except csv.Error as error:
            raise self.fault(f"{error}: repair it", 1) from error
        if not any(heads) or len(heads) > MAX_COLUMNS:
            raise self.fault("it has no names of columns in its first line: add them, such as path,label")
        return heads

    def _text_rows(self, wanted: tuple[str, ...] | None) -> Iterator[Row]:
        with self._lines() as lines:
            reader = csv.reader(lines, delimiter=TEXT_TABLES[self.kind], strict=True)
            heads = self._heads(reader)
            self._once(heads, wanted)
            while True:
                try:
                    cells = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    raise self.fault(f"{error}: repair it", reader.line_num) from error
                if len(cells) > len(heads):
                    raise self.fault(
                        f"it has {len(cells)} cells but there are {len(heads)} columns: quote cells with "
                        f"{'tabs' if self.kind == '.tsv' else 'commas'} in them",
                        reader.line_num,
                    )
                if any(cells):
                    pairs = zip(heads, cells, strict=False)
                    yield Row(reader.line_num, {k: v for k, v in pairs if wanted is None or k in wanted})

    def _json_rows(self, wanted: tuple[str, ...] | None) -> Iterator[Row]:
        with self._lines() as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                values = parse_json(line, f"table '{shown(self.path)}', row {number}", "repair it", once=True)
                if not isinstance(values, dict):
                    raise self.fault("it is not an object: write one {...} per line", number)
                yield Row(number, {k: v for k, v in values.items() if wanted is None or k in wanted})

    # --- Parquet ----------------------------------------------------------------------------------

    @contextmanager
    def _parquet(self) -> Iterator[Any]:
        with self._explained(), pyarrow().parquet.ParquetFile(self.path) as file:
            if len(file.schema_arrow.names) > MAX_COLUMNS or file.metadata.num_rows > MAX_ROWS:
                raise UnfitError(f"it has more than {MAX_ROWS:,} rows or {MAX_COLUMNS:,} columns: divide it")
            yield file

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turns what goes wrong inside into an error that names the table."""
        try:
            yield
        except EaseError:
            raise
        except UnfitError as error:
            raise self.fault(str(error)) from error
        except MemoryError as error:
            raise self.fault("it needs more memory than there is: write it in smaller parts") from error
        except Exception as error:  # on damaged files pyarrow raises almost anything
            raise self.fault(
                f"it is damaged or not Parquet ({reason_of(error, 'its content is damaged')}): write it again"
            ) from error

    def _parquet_rows(self, wanted: tuple[str, ...] | None) -> Iterator[Row]:
        with self._parquet() as file:
            fields = [each for each in file.schema_arrow if wanted is None or each.name in wanted]
            self._once(file.schema_arrow.names, wanted)
        with self._explained():
            for field in fields:
                check_text_type(field.type, field.name)
            number = 0
            names = [field.name for field in fields]
            for batch in parquet_batches(self.path, names, ROWS_AT_ONCE):
                there = batch.schema.names
                columns = [values_of(batch.column(name), name) for name in there]
                for cells in zip(*columns, strict=True):
                    number += 1
                    yield Row(number, dict(zip(there, cells, strict=True)))
