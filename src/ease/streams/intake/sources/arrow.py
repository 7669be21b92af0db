"""Datasets of Hugging Face as a source: a folder that `save_to_disk` wrote, Parquet files, or a name on the hub.

Such datasets are Arrow or Parquet files whose schema says which column holds images and what the classes are called.
They are read with pyarrow alone: no program of a dataset is ever run.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from ease.documents import parse_json, reason_of
from ease.errors import EaseError
from ease.filesystem import is_file, is_folder, read_bytes, shown
from ease.streams.intake.limits import LIMITS, MB
from ease.streams.intake.names import display_name
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources.candidates import Candidates, Gathered
from ease.streams.intake.sources.columnar import (
    ROWS_AT_ONCE,
    ArrowStream,
    UnfitError,
    check_text_type,
    image_bytes,
    parquet_batches,
    parquet_groups,
    parquet_images,
    pyarrow,
    values_of,
)
from ease.streams.intake.sources.rows import MAX_ROWS
from ease.streams.intake.sources.table import LABEL_COLUMNS, check_different, label_text
from ease.streams.intake.stored import StoredImage

HUB = "hf:"
"""What the name of a dataset on the hub begins with: `hf:NAME` or `hf:NAME:SPLIT`."""
_PARTS = 100_000
_INFO = "dataset_info.json"
_SPLITS = "dataset_dict.json"


_one_at_a_time = threading.Lock()
"""Threads that need the same part of a file would each unpack it."""


@dataclass(frozen=True)
class ArrowCell(StoredImage):
    """An image in a cell of an Arrow or Parquet file.

    Attributes:
        path: The file.
        batch: Number of the record batch of an Arrow file, or of the row group of a Parquet file.
        row: Position in it.
        column: Name of the column.
    """

    path: Path
    batch: int
    row: int
    column: str

    def read(self, name: str) -> bytes:
        """See `StoredImage`."""
        try:
            with _one_at_a_time:
                cell = _images(self.path, self.batch, self.column)[self.row]
            cell = getattr(cell, "value", cell)  # of one that repeats, the number of its value is stored
            if hasattr(cell, "as_buffer") and cell.is_valid:
                LIMITS.check_bytes(cell.as_buffer().size, name)
            content = cell.as_py() if cell is not None else None
        except EaseError:
            raise
        except Exception as error:
            raise _damaged(self.path, error) from error
        if not isinstance(content, bytes):
            raise EaseError(f"image '{name}' has no bytes in it: save the dataset with its images")
        return content


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk`."""
    return is_file(folder / _INFO) or is_file(folder / _SPLITS)


def from_saved_dataset(
    folder: Path, columns: Sequence[str] | None = None, unreadable: Unreadable = "refuse"
) -> Candidates:
    """List the images of a folder that `datasets.Dataset.save_to_disk` wrote.

    Args:
        folder: The folder. Of a dataset with several splits, the folder of one split.
        columns: The names of the columns of images and of labels; found by their types if None.
        unreadable: What to do with rows that cannot be used.

    Returns:
        The images; classes in the order of their names.
    """
    return from_arrow_files(saved_files(folder), columns, unreadable)


def saved_files(folder: Path) -> list[Path]:
    """The Arrow files of a folder that `save_to_disk` wrote; of a dataset with several splits, the folder of one."""
    if is_file(folder / _SPLITS):
        splits = _json(folder / _SPLITS).get("splits")
        names = [str(name) for name in splits] if isinstance(splits, list) else []
        if len(names) == 1 and is_folder(folder / names[0]) and "/" not in names[0]:
            return saved_files(folder / names[0])
        some = ", ".join(display_name(name) for name in names[:10])
        raise EaseError(f"dataset '{shown(folder)}' holds the splits {some}: give the folder of one of them")
    listed = _json(folder / "state.json").get("_data_files")
    files = [each.get("filename") for each in listed] if isinstance(listed, list) else []
    if not files or not all(isinstance(name, str) and name == Path(name).name for name in files):
        raise EaseError(
            f"'{shown(folder / 'state.json')}' names no data files of its folder: save the dataset again"
        )
    return [folder / name for name in files]


def arrow_images(files: Sequence[Path], column: str | None = None) -> Iterator[tuple[str, ArrowCell]]:
    """The images of Arrow or Parquet files without their labels, one row after the other.

    Args:
        files: The files.
        column: The name of the column of images; found by its type if None.

    Yields:
        The name of the image, FILE[ROW], and the image.
    """
    count = 0
    for path in files:
        try:
            schema = _schema(path)
            image = column or _image_column(schema, _features(schema))
            if image is None or image not in schema.names:
                raise _no_column(path, schema, "images", "--column IMAGE")
            for batch, rows in _sizes(path):
                for row in range(rows):
                    if count >= MAX_ROWS:
                        raise _too_many_rows(path)
                    yield f"{path.name}[{count}]", ArrowCell(path, batch, row, image)
                    count += 1
        except EaseError:
            raise
        except Exception as error:  # on damaged files pyarrow raises almost anything
            raise _damaged(path, error) from error


def from_arrow_files(
    files: Sequence[Path], columns: Sequence[str] | None = None, unreadable: Unreadable = "refuse"
) -> Candidates:
    """List the images of Arrow or Parquet files that hold the images themselves.

    Args:
        files: The files, which have the same columns.
        columns: The names of the columns of images and of labels; found by their types if None.
        unreadable: What to do with rows that cannot be used.
    """
    gathered, count = Gathered(unreadable), 0
    for path in files:
        try:
            schema = _schema(path)
            image, label, names = _columns(path, schema, columns)
            check_text_type(schema.field(label).type, label)
            for batch, values in _values(path, label):
                for row, value in enumerate(values):
                    count += 1
                    if count > MAX_ROWS:
                        raise _too_many_rows(path)
                    name = f"{path.name}[{count - 1}]"
                    try:
                        own = label_text(_named(value, names))
                        gathered.add(
                            own, name, ArrowCell(path, batch, row, image), f"{path} (row {count - 1})"
                        )
                    except EaseError as error:
                        gathered.leave_out(name, f"'{shown(path)}', row {count - 1}: {error}")
        except EaseError:
            raise
        except Exception as error:  # on damaged files pyarrow raises almost anything
            raise _damaged(path, error) from error
    if not count:
        raise EaseError(f"'{shown(files[0])}' has no row: give a dataset with images")
    return gathered.candidates()


def from_hub(
    name: str, columns: Sequence[str] | None = None, unreadable: Unreadable = "refuse"
) -> Candidates:
    """List the images of a dataset on the hub, from the Parquet files that the hub keeps of every dataset.

    Args:
        name: `hf:NAME` or `hf:NAME:SPLIT`; the split is `train` if left out.
        columns: As for `from_arrow_files`.
        unreadable: As for `from_arrow_files`.
    """
    repository, _, split = name.removeprefix(HUB).partition(":")
    split = split or "train"
    pyarrow()
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                repository,
                repo_type="dataset",
                revision="refs/convert/parquet",
                allow_patterns=[f"*/{split}/*.parquet"],
            )
        )
    except Exception as error:  # no network, no such dataset, not allowed: many kinds of errors
        raise EaseError(
            f"cannot load the dataset '{display_name(repository)}' from the hub "
            f"({reason_of(error, 'no answer that can be used')}): check its name and the network, or give a folder"
        ) from error
    files = sorted(folder.glob(f"*/{split}/*.parquet"))
    configurations = sorted({path.parents[1].name for path in files})
    if len(configurations) != 1:
        found = ", ".join(configurations) or "none"
        raise EaseError(
            f"dataset '{display_name(repository)}' has no single set of files for the split '{display_name(split)}' "
            f"({found}): save the one you want with save_to_disk"
        )
    return from_arrow_files(files, columns, unreadable)


# --- files ----------------------------------------------------------------------------------------


def has_images(path: Path) -> bool:
    """Whether a Parquet file holds images themselves, not paths to them."""
    try:
        return _image_column(_schema(path), _features(_schema(path))) is not None
    except EaseError:
        raise
    except Exception as error:
        raise _damaged(path, error) from error


def _schema(path: Path) -> Any:
    if not is_file(path):
        raise EaseError(f"'{shown(path)}' is not there, or not a file: copy the dataset again")
    arrow = pyarrow()
    if path.suffix == ".parquet":
        return arrow.parquet.read_schema(path)
    return _stream(path).schema


def _sizes(path: Path) -> Iterator[tuple[int, int]]:
    """The number of each record batch or row group, and how many rows it has."""
    if path.suffix == ".parquet":
        yield from islice(enumerate(parquet_groups(path)), _PARTS)
        return
    for number in range(len(_stream(path))):
        yield number, _stream(path).batch(number).num_rows


def _values(path: Path, column: str) -> Iterator[tuple[int, Iterator[Any]]]:
    """The cells of a column of labels of each record batch or row group, with its number."""
    for number, _ in _sizes(path):
        if path.suffix == ".parquet":
            batches = parquet_batches(path, [column], ROWS_AT_ONCE, number)
            yield number, chain.from_iterable(values_of(batch.column(0), column) for batch in batches)
        else:
            yield number, values_of(_stream(path).batch(number).column(column), column)


@lru_cache(maxsize=2)
def _images(path: Path, number: int, column: str) -> Any:
    """The bytes of the images of a record batch or row group."""
    if path.suffix == ".parquet":
        return parquet_images(path, column, number)
    return image_bytes(_stream(path).batch(number).column(column))


@lru_cache(maxsize=64)
def _stream(path: Path) -> ArrowStream:
    return ArrowStream(path)


def _too_many_rows(path: Path) -> EaseError:
    return EaseError(f"'{shown(path)}' has more than {MAX_ROWS:,} rows: divide it")


# --- columns --------------------------------------------------------------------------------------


def _features(schema: Any) -> dict[str, Any]:
    """What Hugging Face says of the columns; empty if nothing is said."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    try:
        features = json.loads(text)["info"]["features"] if len(text) < 16 * MB else {}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return features if isinstance(features, dict) else {}


def _columns(path: Path, schema: Any, given: Sequence[str] | None) -> tuple[str, str, list[str]]:
    """The columns of images and of labels, and the names of the classes if labels are numbers."""
    features = _features(schema)
    if given is not None and len(given) != 2:
        raise EaseError(f"{len(given)} columns are named: give two, --columns IMAGE,LABEL")
    image, label = given or (_image_column(schema, features), _label_column(schema, features))
    for name, what in ((image, "images"), (label, "labels")):
        if name not in schema.names:
            raise _no_column(path, schema, what, "--columns IMAGE,LABEL")
        if schema.names.count(name) > 1:
            raise EaseError(
                f"'{shown(path)}': the column '{display_name(str(name))}' is there twice: rename one"
            )
    check_different((str(image), str(label)))
    feature = features.get(str(label))
    names = feature.get("names") if isinstance(feature, dict) else None
    return str(image), str(label), [str(name) for name in names] if isinstance(names, list) else []


def _no_column(path: Path, schema: Any, what: str, option: str) -> EaseError:
    there = ", ".join(display_name(each) for each in schema.names[:10])
    return EaseError(
        f"'{shown(path)}' has no column of {what} that is recognised (there are: {there}): name them, {option}"
    )


def _image_column(schema: Any, features: dict[str, Any]) -> str | None:
    types = pyarrow().types
    for each in schema:
        is_file_struct = types.is_struct(each.type) and each.type.get_field_index("bytes") >= 0
        if is_file_struct or (_kind(features, each.name) == "Image" and types.is_binary(each.type)):
            return str(each.name)
    return None


def _label_column(schema: Any, features: dict[str, Any]) -> str | None:
    marked = (name for name in schema.names if _kind(features, name) == "ClassLabel")
    return next(marked, next((name for name in LABEL_COLUMNS if name in schema.names), None))


def _kind(features: dict[str, Any], name: str) -> object:
    feature = features.get(name)
    return feature.get("_type") if isinstance(feature, dict) else None


def _named(value: object, names: Sequence[str]) -> object:
    if not names or not isinstance(value, int):
        return value
    if not 0 <= value < len(names):
        raise EaseError(
            f"there is no class {value}, the dataset has {len(names)}: it is unlabelled or damaged"
        )
    return names[value]


def _json(path: Path) -> dict[str, Any]:
    value = parse_json(read_bytes(path, 64 * MB), f"'{shown(path)}'", "save the dataset again")
    return value if isinstance(value, dict) else {}


def _damaged(path: Path, error: Exception) -> EaseError:
    if isinstance(error, UnfitError):
        return EaseError(f"'{shown(path)}': {error}")
    if isinstance(error, MemoryError):
        return EaseError(
            f"'{shown(path)}' needs more memory than there is: save the dataset in smaller parts"
        )
    return EaseError(
        f"'{shown(path)}' is damaged ({reason_of(error, 'its content makes no sense')}): save the dataset again"
    )
