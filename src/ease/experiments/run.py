"""Learner x stream -> record. A run killed at any moment continues where its last finished step was."""

from __future__ import annotations

import io
import platform
import shutil
import sys
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ease
from ease.backbone.zoo import load_backbone
from ease.config import RunConfig, validated
from ease.errors import EaseError
from ease.experiments.metrics import StageScore, score_stage, summary
from ease.experiments.predictor import Predictor
from ease.filesystem import entries, exists, is_file, shown, what_is
from ease.methods import Learner, class_fields, current_settings, find_method, restore_learner, save_model
from ease.progress import Progress, Quiet
from ease.reporting.report import write_report
from ease.storage import files as durable
from ease.storage.model_directory import ModelDirectory
from ease.streams import Stream, Task
from ease.streams.datasets import load_dataset
from ease.streams.protocol import make_stream, order_from_file
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.hardware import check_can_compile, emulates_bf16
from ease.training.loading import Loader
from ease.training.memory import Memory
from ease.training.trainings import Trainings
from ease.training.usage import PHASES, Ledger

RECORD_FORMAT = 1
_LIBRARIES = ("torch", "torchvision", "timm", "lightning-fabric", "numpy", "safetensors")


@dataclass(frozen=True)
class Folder:
    """Where the parts of a run lie."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "run.json"

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
        return self.path / "record.json"

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
            shutil.rmtree(part, ignore_errors=True)
        durable.sweep(self.path)


@dataclass(frozen=True)
class Shelf:
    """A folder shared with other runs: trainings found there are taken over, new ones are put there.

    Attributes:
        path: the folder.
        features: test features too. Their seconds are then those of whoever computed them.
    """

    path: Path
    features: bool = True


def make_fabric(config: RunConfig) -> Any:
    """A launched Fabric for the devices asked for."""
    from lightning_fabric import Fabric

    try:
        fabric = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            strategy="ddp" if config.devices > 1 else "auto",
            precision=config.precision,
        )
        fabric.launch()
    except (RuntimeError, ValueError) as error:
        raise EaseError(f"cannot use {config.devices} x {config.accelerator}: {error}") from error
    return fabric


def make_tasks(config: RunConfig) -> tuple[Stream, list[str]]:
    """The stream a configuration asks for, and what its reader should know."""
    root = None if config.data_root is None else Path(config.data_root)
    data = load_dataset(
        config.dataset, root, config.limit_per_class, config.unreadable, download=config.download
    )
    if config.limit_classes is not None:
        data = data.first_classes(config.limit_classes)
    if config.limit_test is not None:
        note = f"limited to {config.limit_test} test images per class"
        data = replace(data, test=data.test.limit(config.limit_test), notes=(*data.notes, note))
    order = None
    if config.class_order is not None:
        order = order_from_file(Path(config.class_order), data.class_names)
    stream = make_stream(data, config.protocol, config.seed, order)
    for task in stream.tasks:
        if not len(task.test):
            names = ", ".join(task.names)
            raise EaseError(
                f"task {task.index + 1} of '{config.dataset}' ({names}) has no test image: add some"
            )
    return stream, list(data.notes)


def start_run(
    config: RunConfig,
    out: Path,
    notes: list[str],
    progress: Progress | None = None,
    *,
    shelf: Shelf | None = None,
) -> dict[str, Any]:
    """Run from the beginning into a new or empty folder and return the record.

    Args:
        config: what to run.
        out: the folder.
        notes: what the record's reader should know of the configuration.
        progress: where to show it.
        shelf: what it may take over from other runs; nothing when None.
    """
    folder = Folder(out)
    folder.check_free()
    return _Run(config, folder, notes, progress or Quiet(), fresh=True, shelf=shelf).finish()


def resume_run(out: Path, progress: Progress | None = None, *, shelf: Shelf | None = None) -> dict[str, Any]:
    """Continue an interrupted run; a finished one is only read. For `shelf` see `start_run`."""
    folder = Folder(out)
    if not exists(folder.config):
        raise EaseError(f"{shown(out)} holds no run to resume: it has no run.json")
    if exists(folder.record):
        folder.tidy()
        return dict(durable.read_json(folder.record))
    stored = durable.read_json(folder.config)
    if not isinstance(stored, dict) or not isinstance(stored.get("notes"), list):
        raise EaseError(f"{folder.config} is damaged: start again in a new folder")
    config = validated(RunConfig, stored.get("config"), str(folder.config))
    _, dropped = current_settings(config.method, stored["config"].get("settings") or {})
    notes = [*stored["notes"], *(note for note in dropped if note not in stored["notes"])]
    return _Run(config, folder, notes, progress or Quiet(), fresh=False, shelf=shelf).finish()


class _Run:
    """One run from its first stage, or from where it stopped, to its record."""

    def __init__(
        self,
        config: RunConfig,
        folder: Folder,
        notes: list[str],
        progress: Progress,
        fresh: bool,
        shelf: Shelf | None = None,
    ) -> None:
        self.config, self.folder, self.fresh = config, folder, fresh
        # What the user may have got wrong is found before other processes are started.
        backbone = load_backbone(
            config.backbone, weights=config.weights, input_size=config.input_size, normalize=config.normalize
        )
        self.stream, found = make_tasks(config)
        self.notes = [*notes, *found] if fresh else notes
        fabric = make_fabric(config)
        if config.compile:
            check_can_compile(fabric.device)
        if fresh and config.precision == "bf16-mixed" and emulates_bf16(fabric.device):
            self.notes.append(
                "this machine only emulates bf16: 32-true computes more exactly and needs no conversion"
            )
        self.progress: Progress = progress if fabric.global_rank == 0 else Quiet()
        transforms = Transforms(backbone.pixels, self.stream.augmentation)
        self.engine = Engine(
            backbone,
            transforms,
            seed=config.seed,
            fabric=fabric,
            batch_size=config.eval_batch_size,
            checkpoints=folder.checkpoints,
            trainings=None if shelf is None else Trainings(shelf.path / "trainings"),
            progress=self.progress,
            loader=Loader(config.image_memory * 2**20),
            compiles=config.compile,
        )
        self.directory = ModelDirectory(folder.model)
        self.memory = self._make_memory()
        self.learner = self._make_learner()
        features = shelf.path / "features" if shelf is not None and shelf.features else folder.features
        self.predictor = Predictor(
            self.learner, FeatureStore(features, config.feature_memory * 2**20, writes=self.engine.is_main)
        )
        fabric.barrier()  # nobody writes before everybody has read

    def _make_memory(self) -> Memory | None:
        if find_method(self.config.method).kind != "exemplar-based":
            return None
        count = None if self.config.exemplars == "all" else self.config.exemplars
        total = count if self.config.exemplar_budget == "total" else None
        return Memory(count, self.config.selection, self.config.seed, total=total)

    def _make_learner(self) -> Learner:
        if self.directory.exists:
            learner, manifest = restore_learner(self.directory, self.engine, self.memory)
            if manifest["classes"] != class_fields(self.stream, len(learner.task_sizes)):
                raise EaseError(
                    f"the data of {self.folder.path} changed since the run began: its classes or image counts are not "
                    "those of the model; restore the data or start again in a new folder"
                )
            for task in self.stream.tasks[: len(learner.task_sizes)]:
                learner.revisit(task)
            return learner
        method = find_method(self.config.method)
        return method(self.engine, method.Settings.model_validate(self.config.settings))

    def finish(self) -> dict[str, Any]:
        """Do what is left to do. Nobody else can work on the same run meanwhile."""
        title = f"{self.config.method} on {self.config.dataset}"
        with ExitStack() as alone, self.progress.bar(title, len(self.stream)) as advance:
            with self.engine.one_writer() as writer:
                if writer:
                    alone.enter_context(self.directory.writing())
                    self._begin()
            for task in self.stream.tasks:
                if len(self.learner.task_sizes) <= task.index:
                    self._learn(task)
                if not self.folder.stage(task.index + 1).exists():
                    self._evaluate(task)
                advance(1)
            return self._record()

    def _begin(self) -> None:
        if self.fresh:
            self.folder.check_free()  # again: another run may have taken the folder meanwhile
            config = self.config.model_dump(mode="json")
            durable.write_json(self.folder.config, {"config": config, "notes": self.notes})

    def _learn(self, task: Task) -> None:
        self.engine.ledger = Ledger()
        self.learner.learn(task, self.memory)
        with self.engine.one_writer() as writer:
            if writer:
                spent = asdict(self.engine.ledger)
                progress = {
                    "stage": task.index + 1,
                    **{k: spent[k] for k in ("passes", "seconds", "losses", "reused", "waited", "notes")},
                }
                classes = class_fields(self.stream, task.index + 1)
                save_model(self.directory, self.learner, classes, self.memory, progress=progress)
                shutil.rmtree(self.folder.checkpoints, ignore_errors=True)

    def _evaluate(self, task: Task) -> None:
        if len(self.learner.task_sizes) != task.index + 1:
            raise EaseError(f"{self.folder.path} lost stage {task.index + 1}: start again in a new folder")
        number = task.index + 1
        learned = self.directory.manifest()["progress"]
        self.engine.ledger = Ledger()
        before = self.predictor.computed
        seen = self.stream.tasks[:number]
        logits = self.predictor.logits([t.test for t in seen])
        labels = np.concatenate([t.test.labels for t in seen])
        score = score_stage(logits.numpy(), labels, self.learner.task_sizes)
        needed = self._needed(seen)
        planned = sum(needed.values()) - sum(self._needed_before(number).get(key, 0) for key in needed)
        stage = {
            "stage": number,
            "score": asdict(score),
            "passes": {**learned["passes"], "evaluation": planned},
            "repeated": max(0, self.predictor.computed - before - planned),
            "reused": learned.get("reused", 0),
            "seconds": {**learned["seconds"], "evaluation": self.engine.ledger.seconds["evaluation"]},
            "waited": learned.get("waited", 0.0) + self.engine.ledger.waited,
            "losses": learned["losses"],
            "notes": learned.get("notes", []),
            "needed": needed,
            "costs": asdict(self.learner.costs()),
        }
        with self.engine.one_writer() as writer:
            if writer:
                durable.make_folder(self.folder.stage(number).parent)
                self._write_logits(number, logits, labels)
                durable.write_json(self.folder.stage(number), stage)
        self.progress.say(
            f"stage {number}/{len(self.stream)}: {score.accuracy:.2f} % of {score.count} images"
        )

    def _needed(self, seen: tuple[Task, ...]) -> dict[str, int]:
        """Passes that the evaluation of these tasks rests on, by task and subspace; only keepable ones have a hash."""
        if self.learner.per_image:
            passes = self.learner.passes_per_image()
            return {f"{task.index}/stage {len(seen)}": passes * len(task.test) for task in seen}
        return {
            f"{task.index}/{s.hash or f'stage {len(seen)} subspace {i}'}": len(task.test)
            for task in seen
            for i, s in enumerate(self.learner.subspaces())
        }

    def _needed_before(self, number: int) -> dict[str, int]:
        return durable.read_json(self.folder.stage(number - 1))["needed"] if number > 1 else {}

    def _write_logits(self, number: int, logits: Tensor, labels: np.ndarray) -> None:
        ids = [t.test.digest(i) for t in self.stream.tasks[:number] for i in range(len(t.test))]
        buffer = io.BytesIO()
        np.savez(buffer, logits=logits.numpy(), labels=labels, ids=np.array(ids))
        durable.write_atomic(self.folder.logits(number), buffer.getvalue())

    def _record(self) -> dict[str, Any]:
        stages = [durable.read_json(self.folder.stage(t.index + 1)) for t in self.stream.tasks]
        scores = [StageScore(**stage["score"]) for stage in stages]
        passes = {phase: sum(stage["passes"][phase] for stage in stages) for phase in PHASES}
        seconds = {phase: round(sum(stage["seconds"][phase] for stage in stages), 3) for phase in PHASES}
        costs = stages[-1]["costs"]
        self.engine.fabric.barrier()  # nobody tidies before everybody has read
        record: dict[str, Any] = {
            "format": RECORD_FORMAT,
            "method": self.config.method,
            "dataset": self.stream.dataset,
            "protocol": self.stream.protocol,
            "backbone": self.config.backbone,
            "seed": self.config.seed,
            **summary(scores),
            "parameters": {
                "backbone": self.engine.backbone.parameter_count(),
                "trained": costs["trained"],
                "stored": costs["stored"],
            },
            "forward_passes": passes,
            "passes_repeated": sum(stage["repeated"] for stage in stages),
            "passes_reused": sum(stage["reused"] for stage in stages),
            "seconds": {
                **seconds,
                "total": round(sum(seconds.values()), 3),
                "waiting": round(sum(stage.get("waited", 0.0) for stage in stages), 3),
            },
            "peak_memory": peak_memory(),
            "test_images": [score.count for score in scores],
            "task_sizes": [len(t.classes) for t in self.stream.tasks],
            "classes": list(self.stream.class_names),
            "config": self.config.model_dump(mode="json"),
            "versions": versions(),
            "training_loss": [stage["losses"] for stage in stages],
            "notes": [
                *self.notes,
                *(n for stage in stages for n in stage.get("notes", [])),
                *_divergences(stages),
            ],
        }
        with self.engine.one_writer() as writer:
            if writer:
                self._gather_predictions(len(stages))
                write_report([record], self.folder.report)
                durable.write_json(self.folder.record, record)
                self.folder.tidy()
        return record

    def _gather_predictions(self, stages: int) -> None:
        arrays: dict[str, np.ndarray] = {}
        for number in range(1, stages + 1):
            with np.load(self.folder.logits(number), allow_pickle=False) as stage:
                arrays |= {f"stage{number}/{name}": stage[name] for name in stage.files}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        durable.write_atomic(self.folder.predictions, buffer.getvalue())


def _divergences(stages: list[dict[str, Any]]) -> list[str]:
    """A training that ended worse than it began spoils a stage; whoever reads the figures should know."""
    return [
        f"task {stage['stage']} ended its training with a higher loss than it began with "
        f"({last:.3g} > {first:.3g}): try a lower rate"
        for stage in stages
        for first, last in stage["losses"]
        if last > first
    ]


def peak_memory() -> int:
    """Bytes of memory this process has held at most: the GPU's where there is one in use, else the machine's."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource
    except ImportError:  # not on Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def versions() -> dict[str, str]:
    """What the figures were made with."""
    found = {name: version(name) for name in _LIBRARIES}
    return {
        "ease": ease.__version__,
        "python": platform.python_version(),
        **found,
        "threads": str(torch.get_num_threads()),
    }
