"""A file of predictions that a killed command continues: every input has exactly one row in the end.

Rows are written in parts to the folder `FILE.parts`, each part complete or not at all, and after each part a small
document says how many rows there are and a hash of the names of their inputs. A command that is run again checks that
the first inputs have the same names, leaves them out, and goes on. When all inputs have a row, the parts become FILE
in one step and the folder goes. One mechanism serves CSV, JSON lines and Parquet, and FILE is never half-written.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from ease.app.bulk.formats import RowFormat, row_format
from ease.app.bulk.inputs import Input
from ease.app.bulk.predicting import batches, predict_batch
from ease.app.classifier import Classifier
from ease.app.prediction import Prediction
from ease.documents import Count, Document, Text
from ease.errors import EaseError
from ease.filesystem import content_digest, exists, explained, is_file, shown
from ease.progress import Progress, Quiet
from ease.storage.contents import read_json, write_json
from ease.storage.files import check_place, remove, replacing, write_atomic
from ease.storage.lock import WriterLock
from ease.streams.intake.scan import Unreadable

PART_ROWS = 1024
"""A part is written after this many rows,"""
PART_SECONDS = 15.0
"""or after this time, whichever comes first: no more work than this is lost when a command is killed."""


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        path: The file.
        rows: Number of rows: one for each input.
        errors: How many of them say why the image could not be used.
        continued: How many rows an earlier, interrupted command had written.
        first_error: The first error of this command; empty if there was none.
    """

    path: Path
    rows: int
    errors: int
    continued: int
    first_error: str = ""


class BulkState(Document):
    """How far an interrupted command had come.

    Attributes:
        version: Of this document.
        asked: What the rows depend on: the model, the number of classes, and so on.
        rows: Number of rows in all parts.
        errors: How many of them have an error.
        parts: Number of parts.
        names: A hash of the names of the inputs so far.
        complete: Whether the file is in place, and only the folder is left to be removed.
    """

    version: Literal[1] = 1
    asked: dict[Text, Text]
    rows: Count = 0
    errors: Count = 0
    parts: Count = 0
    names: Text = ""
    complete: bool = False


def predict_to_file(
    classifier: Classifier,
    inputs: Iterable[Input],
    path: Path | str,
    *,
    top_k: int = 5,
    budget: int | None = None,
    unreadable: Unreadable = "skip",
    progress: Progress | None = None,
) -> Written:
    """Predict images and write one row for each to a file; a call that was interrupted is continued.

    Args:
        classifier: The model, which must have been saved.
        inputs: The images. A call that continues must be given the same ones in the same order.
        path: A new file: `.csv`, `.jsonl` or `.parquet`.
        top_k: Number of classes to name for each image.
        budget: The budget that the classifier was opened with, which belongs to what must not change.
        unreadable: `skip` writes a row with an error for an image that cannot be used; `refuse` ends with the error.
        progress: Where to show progress.

    Returns:
        The number of rows and errors.

    Raises:
        EaseError: The file exists, or was begun with other inputs, another model or other options.
    """
    path = Path(path)
    most = min(top_k, len(classifier.classes))
    rows = row_format(path, classifier.generation, most)
    check_place(path)
    asked = {
        "model": model_identity(classifier),
        "number of classes": str(top_k),
        "budget": str(budget),
        "precision": classifier.precision,
    }
    parts = PartsFolder(path, rows, asked)
    with parts.hold(), (progress or Quiet()).bar("images", None) as advance:
        if parts.state.complete:
            parts.clear()
            return Written(path, parts.state.rows, parts.state.errors, parts.state.rows)
        continued = parts.state.rows
        waiting = parts.skip_done(inputs)
        advance(continued)
        first = ""
        for batch in batches(waiting):
            predictions = predict_batch(classifier, batch, top_k, unreadable)
            first = first or next((one.error for one in predictions if one.error), "")
            parts.add(batch, predictions)
            advance(len(batch))
        parts.finish()
        return Written(path, parts.state.rows, parts.state.errors, continued, first)


class PartsFolder:
    """The parts of a file that is being written.

    Args:
        path: The file.
        rows: How rows are encoded.
        asked: What the rows depend on.
    """

    def __init__(self, path: Path, rows: RowFormat, asked: dict[str, str]) -> None:
        self.path, self._format = path, rows
        self.folder = path.with_name(f"{path.name}.parts")
        self.state = BulkState(asked=asked)
        self._names = _Names()
        self._held: list[Prediction] = []
        self._begun = time.monotonic()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Be the only writer inside the `with`, and go on from what is there."""
        if exists(self.path) and not exists(self._state_path):
            raise EaseError(f"'{shown(self.path)}' exists already: remove it, or choose another name")
        with WriterLock(self.folder).hold():
            self._read_state()
            yield

    def skip_done(self, inputs: Iterable[Input]) -> Iterator[Input]:
        """The inputs that have no row yet. The earlier ones must be those that were there before."""
        waiting = iter(inputs)
        for _ in range(self.state.rows):
            each = next(waiting, None)
            if each is None:
                break
            self._names.add(each.name)
        same = self._names.count == self.state.rows and self._names.digest() == self.state.names
        if self.state.rows and not same:
            raise self._other("its first images are not the ones that are given now")
        return waiting

    def add(self, inputs: Iterable[Input], predictions: list[Prediction]) -> None:
        """Add rows. They are safe once their part has been written."""
        for each in inputs:
            self._names.add(each.name)
        self._held += predictions
        if len(self._held) >= PART_ROWS or time.monotonic() - self._begun > PART_SECONDS:
            self._write_part()

    def finish(self) -> None:
        """Make the file of all parts, and remove the folder."""
        self._write_part()
        parts = [self._part(number) for number in range(self.state.parts)]
        with replacing(self.path) as file:
            self._format.join(parts, file)
        self._write_state(complete=True)
        self.clear()

    def clear(self) -> None:
        """Remove the folder, the document last: a command that is killed here has nothing to do any more."""
        for number in range(self.state.parts):
            remove(self._part(number))
        for path in sorted(self.folder.glob(".*.tmp-*")):
            remove(path)
        remove(self._state_path)
        with contextlib.suppress(OSError):
            remove(self.folder / ".lock")
            self.folder.rmdir()

    def _write_part(self) -> None:
        if self._held:
            # A part of this number that is there already was not counted before a crash: it is replaced.
            write_atomic(self._part(self.state.parts), self._format.part(self._held))
            self._write_state(
                rows=self.state.rows + len(self._held),
                errors=self.state.errors + sum(one.error is not None for one in self._held),
                parts=self.state.parts + 1,
                names=self._names.digest(),
            )
        self._held, self._begun = [], time.monotonic()

    @property
    def _state_path(self) -> Path:
        return self.folder / "state.json"

    def _part(self, number: int) -> Path:
        return self.folder / f"part-{number:06d}{self.path.suffix.lower()}"

    def _write_state(self, **changes: Any) -> None:
        self.state = self.state.model_copy(update=changes)
        write_json(self._state_path, self.state.as_json())

    def _read_state(self) -> None:
        if not is_file(self._state_path):
            return
        try:
            found = BulkState.model_validate(read_json(self._state_path))
        except ValidationError as error:
            raise self._other("its state.json is damaged") from error
        before = {"precision": "32-true", **found.asked}  # earlier versions did not say it
        for key, value in self.state.asked.items():
            if before.get(key) != value:
                raise self._other(f"it was begun with another {key}")
        if found.complete and not exists(self.path):
            raise self._other("its file is gone")
        with explained("look at", self.folder):
            missing = [n for n in range(found.parts) if not found.complete and not self._part(n).is_file()]
        if missing:
            raise self._other(f"part {missing[0]} is missing")
        self.state = found

    def _other(self, problem: str) -> EaseError:
        return EaseError(
            f"'{shown(self.folder)}' cannot be continued ({problem}): remove that folder to begin again, "
            "or choose another name"
        )


class _Names:
    """A hash of names in their order, which can be compared at any point."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.count = 0

    def add(self, name: str) -> None:
        content = name.encode(errors="surrogatepass")
        self._hash.update(len(content).to_bytes(8, "little") + content)
        self.count += 1

    def digest(self) -> str:
        return self._hash.hexdigest()


def model_identity(classifier: Classifier) -> str:
    """What tells a saved model from any other."""
    manifest = classifier.path / "manifest.json"
    if not is_file(manifest):
        raise EaseError(f"the model in {classifier.path} has not been saved: teach it a class first")
    return f"generation {classifier.generation}, {content_digest(manifest)}"
