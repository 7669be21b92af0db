"""The record of a finished run. `record.json` is read and written only here.

Format 2 contains content hashes of a run's inputs; format 1 did not. Records of both formats can be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from ease.config import RecordedConfig
from ease.documents import Count, Document, Text, fault_of, shortened
from ease.errors import EaseError
from ease.filesystem import entries, exists, is_file, is_folder, resolved, shown
from ease.storage.contents import read_json, write_json

FORMAT = 2
RECORD, STARTED = "record.json", "run.json"
DEPTH = 4
"""How many levels of folders below the given one are searched: dataset/method/seed and one more."""
MOST_STAGES = 10_000

Percent = Annotated[float, Field(ge=0, le=100)]
Points = Annotated[float, Field(ge=-100, le=100)]
Duration = Annotated[float, Field(ge=0)]
LossPair = Annotated[list[float], Field(min_length=2, max_length=2)]
Digest = Annotated[str, Field(max_length=128, pattern=r"^[0-9a-f]+$")]


class RecordPart(Document):
    """A part of a record. Unknown keys, as written by later versions, are ignored."""

    model_config = ConfigDict(extra="ignore")


class ParameterCounts(RecordPart):
    """Numbers of parameters.

    Attributes:
        backbone: of the frozen backbone.
        trained: trained in each task.
        stored: stored in addition to the backbone after the last task.
    """

    backbone: Count
    trained: list[Count]
    stored: Count

    @property
    def trained_in_all(self) -> int:
        """Trained over all tasks."""
        return sum(self.trained)

    @property
    def trained_per_task(self) -> float:
        """Trained in a task, on average."""
        return sum(self.trained) / max(1, len(self.trained))


class ForwardPasses(RecordPart):
    """Forward passes through the backbone by phase; one pass is one image in one subspace."""

    train: Count
    prototypes: Count
    evaluation: Count

    @property
    def total(self) -> int:
        """Passes of all phases."""
        return self.train + self.prototypes + self.evaluation


class RunSeconds(RecordPart):
    """Seconds by phase; None for what was not measured.

    Attributes:
        train: training.
        prototypes: computing prototypes and other statistics of the training images.
        evaluation: scoring test images.
        total: the sum of the phases.
        waiting: the part of the total in which the model waited for images.
        learning_cpu: CPU seconds of the process, all its threads together, in learning: training, prototypes and
            whatever else the method computes. Trainings taken over from another run are not included. Unlike the
            durations above it hardly depends on what else the machine is doing.
        evaluation_cpu: the same for scoring test images.
    """

    train: Duration | None = None
    prototypes: Duration | None = None
    evaluation: Duration | None = None
    total: Duration | None = None
    waiting: Duration | None = None
    learning_cpu: Duration | None = None
    evaluation_cpu: Duration | None = None


class RunInputs(RecordPart):
    """Content hashes of the inputs of a run. They do not depend on paths, on the seed or on the class order.

    Attributes:
        train: of the training images with their class names.
        test: of the test images with their class names.
        weights: of the backbone's weights.
        class_order: of the class order file; None if there was none.
    """

    train: Digest
    test: Digest
    weights: Digest
    class_order: Digest | None = None


class RunRecord(RecordPart):
    """The results and the configuration of a finished run. All accuracies are in percent.

    Attributes:
        format: version of the document.
        accuracy: top-1 after each stage, over all classes seen.
        average: mean of `accuracy`.
        last: `accuracy` after the last stage.
        forgetting: see `ease.experiments.metrics.summary`.
        backward_transfer: see there.
        per_task: accuracy on each task seen [stage][task]; None for a task without test images.
        passes_repeated: passes made again because stored features were lost.
        passes_reused: training passes taken over from another run.
        peak_memory: bytes; see `ease.experiments.environment.peak_memory`.
        test_images: number of test images of each stage.
        classes: names in the order of the stream.
        versions: versions of the libraries, and the number of threads.
        training_loss: for each stage and training the mean loss of the first and the last epoch.
        inputs: content hashes of data and weights; None in records of format 1.
        label: name of the run in tables and plots instead of its method; never stored with a run.
    """

    format: int = FORMAT
    method: Text
    dataset: Text
    protocol: Text
    backbone: Text
    seed: Count
    accuracy: list[Percent] = Field(min_length=1, max_length=MOST_STAGES)
    average: Percent
    last: Percent
    forgetting: Points
    backward_transfer: Points
    per_task: list[list[Percent | None]]
    top5: list[Percent]
    task_id_accuracy: list[Percent]
    parameters: ParameterCounts
    forward_passes: ForwardPasses
    passes_repeated: Count | None = None
    passes_reused: Count = 0
    seconds: RunSeconds
    peak_memory: Count | None = None
    test_images: list[Count]
    task_sizes: list[Annotated[Count, Field(ge=1, le=10**6)]]
    classes: list[Text] = Field(default_factory=list)
    config: RecordedConfig | None = None
    versions: dict[Text, Text] = Field(default_factory=dict)
    training_loss: list[list[LossPair]] = Field(default_factory=list)
    inputs: RunInputs | None = None
    notes: list[Text] = Field(default_factory=list)
    label: Text | None = None

    @model_validator(mode="after")
    def _agrees_on_its_stages(self) -> RunRecord:
        names = ("accuracy", "per_task", "top5", "task_id_accuracy", "test_images", "task_sizes")
        counts = {name: len(getattr(self, name)) for name in names}
        if len(set(counts.values())) > 1:
            lengths = ", ".join(f"{name} {count}" for name, count in counts.items())
            raise ValueError(f"it does not agree on its stages: {lengths}")
        if any(len(row) != stage for stage, row in enumerate(self.per_task, start=1)):
            raise ValueError("it does not agree on its stages: per_task must have one task more in each")
        return self

    @classmethod
    def parse(cls, value: object) -> RunRecord:
        """A record from JSON values of any version up to this one, or an `EaseError` that says what is wrong."""
        if not isinstance(value, dict):
            raise EaseError(
                f"a record must be a JSON object, not {'null' if value is None else shortened(value)}"
            )
        version = value.get("format", 1)
        if type(version) is not int or not 1 <= version <= FORMAT:
            raise EaseError(
                f"this record has format {plain(version):.40}, this version reads 1 to {FORMAT}: update ease-cil"
            )
        name = plain(value.get("method", "unnamed"))[:80]
        try:
            return cls.model_validate(value)
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False)
            missing = [str(each["loc"][-1]) for each in faults if each["type"] == "missing"]
            if missing:
                raise EaseError(
                    f"the record of '{name}' lacks {', '.join(missing)}: was the run finished?"
                ) from None
            where, message = fault_of(error)
            place = f"'{plain(where)}': " if where else ""
            raise EaseError(f"the record of '{name}' is damaged: {place}{message}") from None

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """The record in a file."""
        value = read_json(path)
        try:
            return cls.parse(value)
        except EaseError as error:
            raise EaseError(f"{shown(path)}: {error}") from None

    def write(self, path: Path) -> None:
        """Write the record to a file, atomically."""
        write_json(path, self.as_json())

    def as_json(self) -> dict[str, Any]:
        """The record as JSON values; fields that are None are left out."""
        values = super().as_json()
        return {key: value for key, value in values.items() if value is not None}

    def labelled(self, label: str | None) -> RunRecord:
        """The same record under another name; the record itself if the label is None."""
        return self if label is None else self.model_copy(update={"label": label})


def plain(name: object) -> str:
    """A name that is safe to print: control characters, which a record file may contain, are replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(name))


# --- finding --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RecordFile:
    """A record and the file it was read from."""

    path: Path
    record: RunRecord


@dataclass
class RecordSearch:
    """The finished and unfinished runs below some paths."""

    runs: list[RecordFile] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    """Folders of runs that were started and have no record yet."""

    @property
    def records(self) -> list[RunRecord]:
        """The records without their files."""
        return [run.record for run in self.runs]


def find_records(paths: Iterable[Path]) -> RecordSearch:
    """Find the records of finished runs.

    Args:
        paths: record files, run folders, or folders with such folders below them.

    Returns:
        Each record once, in the order of the paths and by name below them.
    """
    found, seen = RecordSearch(), set()
    for path in paths:
        files, unfinished = _under(path)
        if not files:
            raise _nothing(path, unfinished)
        for file in files:
            if resolved(file) not in seen:
                seen.add(resolved(file))
                found.runs.append(RecordFile(file, RunRecord.read(file)))
        found.unfinished += [folder for folder in unfinished if folder not in found.unfinished]
    return found


def _under(path: Path) -> tuple[list[Path], list[Path]]:
    """Record files and unfinished runs at or below a path."""
    if not is_folder(path):
        return ([path] if exists(path) else []), []
    files, unfinished = _search(path, DEPTH)
    # A folder of kept records has no run folders: its files are named after the methods.
    return files or _kept(path), unfinished


def _search(folder: Path, depth: int) -> tuple[list[Path], list[Path]]:
    if is_file(folder / RECORD):
        return [folder / RECORD], []
    if is_file(folder / STARTED):
        return [], [folder]
    files: list[Path] = []
    unfinished: list[Path] = []
    if depth:
        # Links are not followed: one that points upwards would be searched for ever.
        below = [p for p in entries(folder) if not p.is_symlink() and p.name[0] != "." and is_folder(p)]
        for inner in below:
            more, begun = _search(inner, depth - 1)
            files += more
            unfinished += begun
    return files, unfinished


def _kept(folder: Path) -> list[Path]:
    """JSON files directly in a folder that are records; others may lie beside them."""
    candidates = [path for path in entries(folder) if path.suffix == ".json" and is_file(path)]
    return [path for path in candidates if _looks_like_record(read_json(path))]


def _looks_like_record(value: object) -> bool:
    return isinstance(value, dict) and {"method", "protocol", "accuracy", "per_task"} <= set(value)


def _nothing(path: Path, unfinished: list[Path]) -> EaseError:
    if not exists(path):
        return EaseError(f"{shown(path)} does not exist: check the path")
    if unfinished:
        return EaseError(
            f"{path} holds no finished run: continue one with 'ease run --resume {unfinished[0]}'"
        )
    return EaseError(f"{path} holds no finished run: it has no {RECORD}, and no folder below it has one")
