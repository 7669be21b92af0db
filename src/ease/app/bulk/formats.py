"""Predictions as rows of CSV, JSON lines and Parquet: how a part is encoded, and how parts are joined."""

from __future__ import annotations

import io
import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from ease.app.prediction import Prediction
from ease.errors import unknown
from ease.reporting.tabular import csv_text
from ease.streams.intake.sources.columnar import pyarrow

ROW_GROUP = 50_000
"""Rows of a Parquet file that belong together."""


class RowFormat(ABC):
    """How predictions are written.

    Args:
        generation: Of the model, which every row names.
        most: The largest number of classes that a row names.
    """

    def __init__(self, generation: int, most: int) -> None:
        self.generation, self.most = generation, most

    @abstractmethod
    def part(self, predictions: Sequence[Prediction]) -> bytes:
        """The content of a part, one row for each prediction."""

    def whole(self, predictions: Sequence[Prediction]) -> bytes:
        """The content of a file that has these rows and can be read by itself."""
        return self.part(predictions)

    @abstractmethod
    def join(self, parts: Sequence[Path], out: BinaryIO) -> None:
        """Write the rows of all parts as one file."""


class CsvRows(RowFormat):
    """One line for each image. Text that a spreadsheet would take for a formula has a quote in front of it."""

    @property
    def heads(self) -> list[str]:
        """The names of the columns."""
        more = [f"{what}_{rank}" for rank in range(2, self.most + 1) for what in ("name", "confidence")]
        first = [
            "file",
            "name",
            "confidence",
            "unknown",
            "threshold",
            "is_unknown",
            "calibrated",
            "corrected",
            "generation",
            "error",
        ]
        return [*first, *more]

    def part(self, predictions: Sequence[Prediction]) -> bytes:
        """See `RowFormat`."""
        text = csv_text(self.heads, (self._cells(one) for one in predictions))
        return text.partition("\n")[2].encode()

    def whole(self, predictions: Sequence[Prediction]) -> bytes:
        """See `RowFormat`."""
        return csv_text(self.heads, (self._cells(one) for one in predictions)).encode()

    def join(self, parts: Sequence[Path], out: BinaryIO) -> None:
        """See `RowFormat`."""
        out.write(csv_text(self.heads, []).encode())
        _concatenate(parts, out)

    def _cells(self, one: Prediction) -> list[object]:
        names = [(each.name, csv_number(each.confidence)) for each in one.classes]
        names += [("", "")] * (self.most - len(names))
        best, *others = names
        flags = [csv_flag(flag) for flag in (one.is_unknown, one.calibrated, one.corrected)]
        return [
            one.file,
            *best,
            csv_number(one.unknown),
            csv_number(one.threshold),
            *flags,
            self.generation,
            one.error or "",
            *(cell for pair in others for cell in pair),
        ]


class JsonRows(RowFormat):
    """One JSON object for each image: the fields of `Prediction`, and the generation of the model."""

    def part(self, predictions: Sequence[Prediction]) -> bytes:
        """See `RowFormat`."""
        return b"".join(json.dumps(self.row(one)).encode() + b"\n" for one in predictions)

    def join(self, parts: Sequence[Path], out: BinaryIO) -> None:
        """See `RowFormat`."""
        _concatenate(parts, out)

    def row(self, one: Prediction) -> dict[str, Any]:
        """A prediction as JSON values."""
        return {**one.model_dump(mode="json"), "generation": self.generation}


class ParquetRows(JsonRows):
    """The same fields as in JSON lines; `classes` is a list of structures."""

    def part(self, predictions: Sequence[Prediction]) -> bytes:
        """See `RowFormat`."""
        arrow = pyarrow()
        table = arrow.Table.from_pylist([self.row(one) for one in predictions], schema=_schema())
        buffer = io.BytesIO()
        arrow.parquet.write_table(table, buffer)
        return buffer.getvalue()

    def join(self, parts: Sequence[Path], out: BinaryIO) -> None:
        """See `RowFormat`. No more than a row group is in memory."""
        arrow = pyarrow()
        with arrow.parquet.ParquetWriter(out, _schema()) as writer:
            held: list[Any] = []
            for path in parts:
                held.append(arrow.parquet.read_table(path))
                if sum(len(table) for table in held) >= ROW_GROUP:
                    writer.write_table(arrow.concat_tables(held))
                    held = []
            if held:
                writer.write_table(arrow.concat_tables(held))


FORMATS: dict[str, type[RowFormat]] = {".csv": CsvRows, ".jsonl": JsonRows, ".parquet": ParquetRows}


def row_format(path: Path, generation: int, most: int) -> RowFormat:
    """The format that the ending of a file asks for; a package that it needs is looked for at once."""
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise unknown("ending of --out", path.suffix, FORMATS)
    if kind is ParquetRows:
        pyarrow()
    return kind(generation, most)


def csv_number(value: float | None) -> str:
    """A number in CSV; nothing where there is none."""
    return "" if value is None else f"{value:.4f}"


def csv_flag(value: bool) -> str:
    """Yes or no in CSV, as JSON writes it."""
    return "true" if value else "false"


def _schema() -> Any:
    arrow = pyarrow()
    named = arrow.struct([("name", arrow.string()), ("confidence", arrow.float64())])
    return arrow.schema(
        [
            ("file", arrow.string()),
            ("unknown", arrow.float64()),
            ("threshold", arrow.float64()),
            ("is_unknown", arrow.bool_()),
            ("calibrated", arrow.bool_()),
            ("corrected", arrow.bool_()),
            ("error", arrow.string()),
            ("classes", arrow.list_(named)),
            ("generation", arrow.int64()),
        ]
    )


def _concatenate(parts: Sequence[Path], out: BinaryIO) -> None:
    for path in parts:
        with open(path, "rb") as part:
            shutil.copyfileobj(part, out)
