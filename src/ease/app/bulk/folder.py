"""A folder of predictions that any number of processes write: every input has exactly one row in the end.

The inputs are listed once, in `.work/inputs.jsonl`, and divided into shares of 1,024. Each share becomes one part,
`part-00000000.parquet` and so on, which is written completely or not at all; after it a small document says that it is
done. A command that is run again does the shares that are not done. It does not matter who does a share, or whether it
is done twice: the part has the same name and the same rows. In the end `summary.json` is written and `.work` goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from pydantic import ValidationError

from ease.app.bulk.formats import FORMATS, RowFormat, row_format
from ease.app.bulk.index import Share, read_share, shares, write_index
from ease.app.bulk.inputs import Input
from ease.app.bulk.output import model_identity
from ease.app.bulk.predicting import batches, predict_batch
from ease.app.classifier import Classifier
from ease.documents import Count, Document, Text
from ease.errors import EaseError, unknown
from ease.filesystem import entries, exists, shown, size_of
from ease.progress import Progress, Quiet
from ease.storage.contents import entry_of, read_json, write_json
from ease.storage.files import check_folder_place, make_folder, remove_tree, sweep, write_atomic
from ease.storage.lock import WriterLock
from ease.training.hardware import AskedPrecision, Precision

FORMAT_NAMES = tuple(ending.removeprefix(".") for ending in FORMATS)


class ShareDone(Document):
    """What a part holds; it is counted once this document is there.

    Attributes:
        number: of the share.
        rows: one for each input.
        errors: how many of them say why the image could not be used.
        size: bytes of the part.
        sha256: of the part.
        node: where it was done; empty on one machine.
    """

    number: Count
    rows: Count
    errors: Count
    size: Count
    sha256: Text
    node: Text = ""


class BulkSummary(Document):
    """What a folder of predictions holds, or will hold.

    Attributes:
        version: of this document.
        asked: what the rows depend on.
        inputs: number of inputs.
        errors: rows that say why an image could not be used; 0 until all are there.
        parts: number of parts; 0 until all are there.
    """

    version: Literal[1] = 1
    asked: dict[Text, Text]
    inputs: Count
    errors: Count = 0
    parts: Count = 0


@dataclass(frozen=True)
class FolderWritten:
    """What was written.

    Attributes:
        path: the folder.
        rows: one for each input.
        errors: how many of them say why the image could not be used.
        continued: how many rows earlier commands had written.
        seconds: how long the predictions of this command took.
    """

    path: Path
    rows: int
    errors: int
    continued: int
    seconds: float

    @property
    def images_per_second(self) -> float:
        """Of this command."""
        return (self.rows - self.continued) / self.seconds if self.seconds else 0.0


@dataclass
class ShareWork:
    """Predicts shares in any process that sees the model and the folder.

    Attributes:
        model: the model directory.
        folder: where the parts go.
        ending: of the parts, such as `.parquet`.
        identity: of the model that was asked for; another one is refused.
        top_k: number of classes to name for each image.
        budget: of passes for each image.
        weights: weights file of the backbone.
        precision: what the backbone computes in, the same in every process.
    """

    model: Path
    folder: Path
    ending: str
    identity: str
    top_k: int = 5
    budget: int | None = None
    weights: Path | None = None
    precision: Precision = "32-true"
    _opened: list[Classifier] = field(default_factory=list, init=False, repr=False)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": []}  # each process opens the model itself

    @property
    def classifier(self) -> Classifier:
        """The model, opened once in each process."""
        if not self._opened:
            opened = Classifier.open(self.model, self.weights, budget=self.budget, precision=self.precision)
            if model_identity(opened) != self.identity:
                raise EaseError(
                    f"the model in {self.model} has changed since the command was started: start it again"
                )
            self._opened.append(opened)
        return self._opened[0]

    @cached_property
    def index(self) -> Path:
        return self.folder / ".work" / "inputs.jsonl"

    def part(self, number: int) -> Path:
        return self.folder / f"part-{number:08d}{self.ending}"

    def marker(self, number: int) -> Path:
        return self.folder / ".work" / "done" / f"{number:08d}.json"

    def done(self, share: Share) -> ShareDone | None:
        """What is known of a share that is done, and whose part is there with its full size."""
        if not exists(self.marker(share.number)):
            return None
        try:
            found = ShareDone.model_validate(read_json(self.marker(share.number)))
            return found if size_of(self.part(share.number)) == found.size else None
        except (EaseError, ValidationError):
            return None

    def do(self, share: Share, node: str = "") -> ShareDone:
        """Predict the images of a share and write its part, unless that is done already."""
        if (found := self.done(share)) is not None:
            return found
        classifier = self.classifier
        rows = _format(self.part(share.number), classifier, self.top_k)
        predictions = [
            row
            for batch in batches(read_share(self.index, share))
            for row in predict_batch(classifier, batch, self.top_k)
        ]
        content = rows.whole(predictions)
        write_atomic(self.part(share.number), content)
        entry = entry_of(content)
        errors = sum(row.error is not None for row in predictions)
        found = ShareDone(
            number=share.number,
            rows=len(predictions),
            errors=errors,
            size=entry.size,
            sha256=entry.sha256,
            node=node,
        )
        write_json(self.marker(share.number), found.as_json())
        return found


class SharesExecutor(Protocol):
    """Does shares somewhere: one after the other in this process, or on a Ray cluster."""

    def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
        """Do all of these shares, and yield each when it is done."""
        ...


class OneByOne:
    """Does shares one after the other."""

    def run(self, work: ShareWork, left: list[Share]) -> Iterator[ShareDone]:
        """See `SharesExecutor`."""
        yield from map(work.do, left)


def predict_to_folder(
    model: Path,
    inputs: Callable[[], Iterable[Input]],
    folder: Path,
    *,
    source: str,
    kind: str = "parquet",
    top_k: int = 5,
    budget: int | None = None,
    weights: Path | None = None,
    precision: AskedPrecision | None = None,
    executor: SharesExecutor | None = None,
    progress: Progress | None = None,
) -> FolderWritten:
    """Predict images and write one row for each into the parts of a folder; a call that was interrupted is continued.

    Args:
        model: The model directory.
        inputs: Gives the images; only called if they have not been listed yet.
        folder: A new folder, or one that such a call has begun.
        source: What the inputs are called; a call that continues must say the same.
        kind: `parquet`, `jsonl` or `csv`.
        top_k: Number of classes to name for each image.
        budget: Passes through the backbone per image; no limit if None.
        weights: Weights file of the backbone.
        precision: What the backbone computes in, as for `Classifier.open`. `auto` is decided here, for all processes.
        executor: Where shares are done; in this process if None.
        progress: Where to show progress.

    Raises:
        EaseError: The folder holds something else, or was begun with other inputs, another model or other options.
    """
    if kind not in FORMAT_NAMES:
        raise unknown("format", kind, FORMAT_NAMES)
    check_folder_place(folder)
    classifier = Classifier.open(model, weights, budget=budget, precision=precision)
    identity = model_identity(classifier)
    _format(Path(f"x.{kind}"), classifier, top_k)  # a package that is missing is found at once
    asked = {
        "model": identity,
        "number of classes": str(top_k),
        "budget": str(budget),
        "precision": classifier.precision,
        "source": source,
        "format": kind,
    }
    work = ShareWork(
        model.absolute(),
        folder.absolute(),
        f".{kind}",
        identity,
        top_k,
        budget,
        _absolute(weights),
        classifier.precision,
    )
    summary = folder / "summary.json"
    if exists(summary):
        found = _read(summary, asked)
        remove_tree(folder / ".work")
        return FolderWritten(folder, found.inputs, found.errors, found.inputs, 0.0)
    _check_ours(folder)
    progress = progress or Quiet()
    with WriterLock(folder / ".work").hold():
        total = _listed(work, asked, inputs)
        make_folder(work.marker(0).parent)
        left = [share for share in shares(work.index) if work.done(share) is None]
        continued = total - sum(share.count for share in left)
        begun = time.monotonic()
        seen: set[int] = set()
        with progress.bar("images", total, done=continued) as advance:
            for done in (executor or OneByOne()).run(work, left) if left else ():
                if done.number not in seen:
                    seen.add(done.number)
                    advance(done.rows)
        seconds = time.monotonic() - begun
        errors = _complete(work, asked, summary, total)
    remove_tree(folder / ".work")
    return FolderWritten(folder, total, errors, continued, seconds)


def _complete(work: ShareWork, asked: dict[str, str], summary: Path, total: int) -> int:
    """Check that every part is there, write the summary, and return the number of errors."""
    found = [(share, work.done(share)) for share in shares(work.index)]
    missing = [share.number for share, done in found if done is None]
    if missing:
        raise EaseError(
            f"{len(missing)} parts are missing in {shown(work.folder)}, the first is {missing[0]}: all nodes must "
            "share that folder; run the command again"
        )
    errors = sum(done.errors for _, done in found if done is not None)
    whole = BulkSummary(asked=asked, inputs=total, errors=errors, parts=len(found))
    sweep(work.folder)
    write_json(summary, whole.as_json())
    return errors


def _listed(work: ShareWork, asked: dict[str, str], inputs: Callable[[], Iterable[Input]]) -> int:
    """The number of inputs, which are listed if that has not been done."""
    state = work.index.with_name("state.json")
    if exists(state):
        return _read(state, asked).inputs
    total = write_index(work.index, inputs())
    write_json(state, BulkSummary(asked=asked, inputs=total).as_json())
    return total


def _read(path: Path, asked: dict[str, str]) -> BulkSummary:
    try:
        found = BulkSummary.model_validate(read_json(path))
    except ValidationError as error:
        raise _other(path.parent, f"{path.name} is damaged") from error
    for key, value in asked.items():
        if found.asked.get(key) != value:
            raise _other(path.parent, f"it was begun with another {key}")
    return found


def _other(folder: Path, problem: str) -> EaseError:
    whole = folder.parent if folder.name == ".work" else folder
    return EaseError(
        f"'{shown(whole)}' cannot be continued ({problem}): remove that folder to begin again, or choose another name"
    )


def _check_ours(folder: Path) -> None:
    if exists(folder) and not exists(folder / ".work") and entries(folder):
        raise EaseError(f"'{shown(folder)}' is not empty: choose another name")


def _format(path: Path, classifier: Classifier, top_k: int) -> RowFormat:
    return row_format(path, classifier.generation, min(top_k, len(classifier.classes)))


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()
