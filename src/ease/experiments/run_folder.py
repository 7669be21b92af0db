"""The folder of a run: where its parts lie, and the documents that an interrupted run is continued from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, ValidationError

from ease.config import RunConfig
from ease.documents import Count, Document, Text, fault_of
from ease.errors import EaseError
from ease.experiments.metrics import StageScore
from ease.experiments.record import (
    RECORD,
    STARTED,
    LossPair,
    RunInputs,
)
from ease.filesystem import entries, is_file, shown, what_is
from ease.methods import (
    Costs,
    current_settings,
)
from ease.storage import files as durable
from ease.storage.contents import read_json
from ease.storage.model_directory import ModelDirectory


class RunStart(Document):
    """What `run.json` says: how a run was started. An interrupted run is continued from it.

    Attributes:
        config: the resolved configuration.
        notes: what a reader of the results should know.
        inputs: content hashes of data and weights; None in runs that an earlier version has started.
    """

    config: RunConfig
    notes: list[Text]
    inputs: RunInputs | None = None

    @classmethod
    def read(cls, path: Path) -> RunStart:
        """The start of the run in a file. Settings that only an earlier version had become notes."""
        started = _read(cls, path)
        stored = read_json(path)["config"].get("settings") or {}
        dropped = current_settings(started.config.method, stored)[1]
        notes = [*started.notes, *(note for note in dropped if note not in started.notes)]
        return started.model_copy(update={"notes": notes})


class StageResult(Document):
    """What one stage of an unfinished run has found, and what it has cost.

    Attributes:
        stage: its number, from 1.
        score: accuracies on the test images of all classes seen.
        passes: forward passes by phase.
        repeated: passes of the evaluation that had been made before.
        reused: training passes taken over from another run.
        seconds: by phase.
        waited: seconds in which the model waited for images.
        learning_cpu: CPU seconds of learning the task.
        evaluation_cpu: CPU seconds of scoring the test images.
        losses: mean loss of the first and the last epoch of each training.
        notes: what a reader of the results should know.
        needed: passes that the evaluation rests on, by task and subspace.
        costs: parameters trained in each task so far, and kept beside the backbone.
    """

    model_config = ConfigDict(strict=False)  # dataclasses come from JSON objects

    stage: Count
    score: StageScore
    passes: dict[str, Count]
    repeated: Count
    reused: Count
    seconds: dict[str, float]
    waited: float
    learning_cpu: float = 0.0
    evaluation_cpu: float = 0.0
    losses: list[LossPair]
    notes: list[Text]
    needed: dict[str, Count]
    costs: Costs

    @classmethod
    def read(cls, path: Path) -> StageResult:
        """The result in a file."""
        return _read(cls, path)


AnyDocument = TypeVar("AnyDocument", bound=Document)


def _read(model: type[AnyDocument], path: Path) -> AnyDocument:
    value = read_json(path)
    try:
        return model.model_validate(value)
    except ValidationError as error:
        where, message = fault_of(error)
        raise EaseError(
            f"{shown(path)} is damaged ({where}: {message}): start again in a new folder"
        ) from None


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run lie."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / STARTED

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def features(self) -> Path:
        return self.path / "features"

    @property
    def record(self) -> Path:
        return self.path / RECORD

    @property
    def predictions(self) -> Path:
        return self.path / "predictions.npz"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def stage(self, number: int) -> Path:
        return self.path / "stages" / f"{number:04d}.json"

    def logits(self, number: int) -> Path:
        return self.path / "stages" / f"{number:04d}.npz"

    def check_free(self) -> None:
        """Refuse to start where something lies; what a start that was killed at once has left does not count."""
        what = what_is(self.path)
        if what == "missing":
            return
        mine = {".lock", self.model.name}
        found = entries(self.path) if what == "folder" else [self.path]
        if any(p.name not in mine and not p.name.startswith(".run.json.tmp-") for p in found):
            hint = "continue it with --resume" if is_file(self.config) else "choose another folder"
            raise EaseError(f"{self.path} is not empty: {hint}")
        if ModelDirectory(self.model).exists:
            raise EaseError(f"{self.path} holds a model: choose another folder")

    def tidy(self) -> None:
        """Remove what only an unfinished run needs, and what a crash left."""
        for part in (self.checkpoints, self.features, self.path / "stages"):
            durable.remove_tree(part)
        durable.sweep(self.path)


@dataclass(frozen=True)
class SharedFolder:
    """A folder that several runs share: trainings found there are taken over, new ones are put there.

    Attributes:
        path: the folder.
        features: share test features as well. Their seconds are then those of the run that computed them.
    """

    path: Path
    features: bool = True
