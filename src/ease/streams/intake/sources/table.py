"""A table with the paths and labels of images as a source: CSV, TSV, JSON lines or Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ease.errors import EaseError
from ease.filesystem import expanded
from ease.streams.intake.names import class_name, display_name
from ease.streams.intake.scan import Unreadable
from ease.streams.intake.sources.candidates import Candidates, Gathered
from ease.streams.intake.sources.places import AllowUrls, Places
from ease.streams.intake.sources.rows import Row, Table
from ease.streams.intake.sources.web import WebImage

PATH_COLUMNS = (
    "path",
    "file",
    "file_name",
    "filename",
    "filepath",
    "file_path",
    "image",
    "image_path",
    "img",
    "url",
)
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "y")
"""Names by which the columns are found, in any case, the first one that is there."""


def from_table(
    path: Path | str,
    root: Path | str | None = None,
    columns: Sequence[str] | None = None,
    unreadable: Unreadable = "refuse",
    allow_urls: AllowUrls = False,
) -> Candidates:
    """List the images of a table with a column of paths and a column of labels.

    Args:
        path: The table, `.csv`, `.tsv`, `.jsonl` or `.parquet`.
        root: The folder that relative paths begin at; the folder of the table if None. They never lead out of it.
        columns: The names of the two columns; found by `PATH_COLUMNS` and `LABEL_COLUMNS` if None.
        unreadable: What to do with rows that cannot be used.
        allow_urls: Whether http and https addresses are fetched.

    Returns:
        The images, named by their paths and rows; classes in the order of their names.
    """
    table = Table(expanded(path))
    path_column, label_column = chosen_columns(table, columns)
    places = Places(table.path.parent if root is None else expanded(root), allow_urls)
    gathered = Gathered(unreadable)
    for row in table.rows((path_column, label_column)):
        where = f"row {row.number} of {table.path.name}"
        text = row.values.get(path_column)
        name = f"{display_name(str(text or ''))} ({where})"
        try:
            image = places.image(text)
            gathered.add(
                label_text(row.values.get(label_column)), name, image, f"{shown_image(image)} ({where})"
            )
        except EaseError as error:
            gathered.leave_out(name, f"{where}: {error}")
    if not gathered:
        raise table.fault("it has no row: add images, or give another table")
    return gathered.candidates()


def table_images(table: Table, places: Places, column: str | None = None) -> Iterator[tuple[Row, str, Any]]:
    """The images of a table without their labels, one row after the other.

    Args:
        table: The table.
        places: Turns paths into images.
        column: The name of the column of paths; found by `PATH_COLUMNS` if None.

    Yields:
        The row, its path as text, and the image or the error that says why there is none.
    """
    chosen = column or _find(table, table.columns(), PATH_COLUMNS, "paths", "PATH")
    if column is not None and column not in table.columns():
        raise _no_column(table, column)
    for row in table.rows((chosen,)):
        text = row.values.get(chosen)
        try:
            yield row, str(text), places.image(text)
        except EaseError as error:
            yield row, str(text or ""), table.fault(str(error), row.number)


def chosen_columns(table: Table, given: Sequence[str] | None) -> tuple[str, str]:
    """The columns of paths and of labels."""
    there = table.columns()
    if given is None:
        return (
            _find(table, there, PATH_COLUMNS, "paths", "PATH,LABEL"),
            _find(table, there, LABEL_COLUMNS, "labels", "PATH,LABEL"),
        )
    if len(given) != 2:
        raise EaseError(f"{len(given)} columns are named: give two, --columns PATH,LABEL")
    for name in given:
        if name not in there:
            raise _no_column(table, name)
    check_different(given)
    return given[0], given[1]


def check_different(columns: Sequence[str]) -> None:
    """Raise an error if the column of images is also named as that of labels."""
    if columns[0] == columns[1]:
        raise EaseError(
            f"--columns names '{display_name(columns[0])}' twice: give that of images and that of labels"
        )


def label_text(value: object) -> str:
    """A label as the name of a class. Numbers become text; what pandas made of whole numbers is whole again."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None or value == "" or value != value:  # NaN
        raise EaseError("there is no label: fill it in or remove the row")
    return class_name(value)


def shown_image(image: Path | WebImage) -> str:
    """What messages call an image."""
    return image.url if isinstance(image, WebImage) else str(image)


def _find(table: Table, there: Sequence[str], known: Sequence[str], what: str, form: str) -> str:
    by_name = {name.lower().replace(" ", "_"): name for name in reversed(there)}
    found = next((by_name[name] for name in known if name in by_name), None)
    if found is None:
        shown = ", ".join(display_name(name) for name in there[:10]) or "none"
        raise table.fault(
            f"no column of {what} is recognised (there are: {shown}): name it, --columns {form}"
        )
    return found


def _no_column(table: Table, name: str) -> EaseError:
    there = ", ".join(display_name(each) for each in table.columns()[:10])
    return table.fault(f"there is no column '{display_name(name)}': choose one of {there}")
