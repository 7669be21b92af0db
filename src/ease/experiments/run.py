"""Learner x stream -> record. A run killed at any moment continues where its last finished step was."""

from __future__ import annotations

import io
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

import numpy as np
from torch import Tensor

from ease.backbone.zoo import load_backbone
from ease.config import RecordedConfig, RunConfig
from ease.errors import EaseError
from ease.experiments.environment import make_fabric, peak_memory, versions
from ease.experiments.inputs import images_digest, make_tasks
from ease.experiments.metrics import score_stage, summary
from ease.experiments.predictor import Predictor
from ease.experiments.record import (
    ForwardPasses,
    ParameterCounts,
    RunInputs,
    RunRecord,
    RunSeconds,
)
from ease.experiments.run_folder import RunFolder, RunStart, SharedFolder, StageResult
from ease.filesystem import content_digest, exists, shown
from ease.methods import (
    Learner,
    class_fields,
    find_method,
    restore_learner,
    save_model,
)
from ease.progress import Progress, Quiet
from ease.reporting.report import write_report
from ease.storage import files as durable
from ease.storage.contents import write_json
from ease.storage.manifest import StageProgress
from ease.storage.model_directory import ModelDirectory
from ease.streams import Task
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.hardware import check_can_compile, emulates_bf16
from ease.training.loading import Loader
from ease.training.memory import Memory
from ease.training.trainings import Trainings
from ease.training.usage import PHASES, Ledger


def start_run(
    config: RunConfig,
    out: Path,
    notes: list[str],
    progress: Progress | None = None,
    *,
    shared: SharedFolder | None = None,
) -> RunRecord:
    """Run from the beginning into a new or empty folder and return the record.

    Args:
        config: what to run.
        out: the folder.
        notes: what the record's reader should know of the configuration.
        progress: where to show it.
        shared: what it may take over from other runs; nothing when None.
    """
    folder = RunFolder(out)
    folder.check_free()
    return _Run(config, folder, notes, progress or Quiet(), fresh=True, shared=shared).finish()


def resume_run(
    out: Path,
    progress: Progress | None = None,
    *,
    shared: SharedFolder | None = None,
    moved: RunConfig | None = None,
) -> RunRecord:
    """Continue an interrupted run; a finished one is only read.

    Args:
        out: the run's folder.
        progress: where to show it.
        shared: see `start_run`.
        moved: a configuration that says where the same inputs lie now; where they were if None.
    """
    folder = RunFolder(out)
    if not exists(folder.config):
        raise EaseError(f"{shown(out)} holds no run to resume: it has no run.json")
    if exists(folder.record):
        folder.tidy()
        return RunRecord.read(folder.record)
    started = RunStart.read(folder.config)
    config = started.config
    if moved is not None:
        config = config.model_copy(update=moved.of_role("location"))
    run = _Run(config, folder, started.notes, progress or Quiet(), fresh=False, shared=shared)
    if started.inputs is not None and started.inputs != run.inputs:
        raise _changed(out)
    return run.finish()


def _changed(out: Path) -> EaseError:
    return EaseError(
        f"the data of {out} changed since the run began: its classes, images or weights are not those of the model; "
        "restore the data or start again in a new folder"
    )


class _Run:
    """One run from its first stage, or from where it stopped, to its record."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        notes: list[str],
        progress: Progress,
        fresh: bool,
        shared: SharedFolder | None = None,
    ) -> None:
        self.config, self.folder, self.fresh = config, folder, fresh
        # What the user may have got wrong is found before other processes are started.
        backbone = load_backbone(
            config.backbone, weights=config.weights, input_size=config.input_size, normalize=config.normalize
        )
        self.stream, found = make_tasks(config)
        names, tasks = self.stream.class_names, self.stream.tasks
        self.inputs = RunInputs(
            train=images_digest(names, (task.train for task in tasks)),
            test=images_digest(names, (task.test for task in tasks)),
            weights=backbone.weights_hash,
            class_order=None if config.class_order is None else content_digest(config.class_order),
        )
        self.notes = [*notes, *found] if fresh else list(notes)
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
            trainings=None if shared is None else Trainings(shared.path / "trainings"),
            progress=self.progress,
            loader=Loader(config.image_memory * 2**20),
            compiles=config.compile,
        )
        self.directory = ModelDirectory(folder.model)
        self.memory = self._make_memory()
        self.learner = self._make_learner()
        features = shared.path / "features" if shared is not None and shared.features else folder.features
        self.predictor = Predictor(
            self.learner, FeatureStore(features, config.feature_memory * 2**20, writes=self.engine.is_main)
        )
        fabric.barrier()  # all processes have read before one of them writes

    def _make_memory(self) -> Memory | None:
        if find_method(self.config.method).kind != "exemplar-based":
            return None
        count = None if self.config.exemplars == "all" else self.config.exemplars
        total = count if self.config.exemplar_budget == "total" else None
        return Memory(count, self.config.selection, self.config.seed, total=total)

    def _make_learner(self) -> Learner:
        if self.directory.exists:
            learner, manifest = restore_learner(self.directory, self.engine, self.memory, diverged=True)
            if manifest.classes != class_fields(self.stream, len(learner.task_sizes)):
                raise _changed(self.folder.path)
            for task in self.stream.tasks[: len(learner.task_sizes)]:
                learner.revisit(task)
            return learner
        method = find_method(self.config.method)
        return method(self.engine, method.Settings.model_validate(self.config.settings))

    def finish(self) -> RunRecord:
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
            started = RunStart(config=self.config, notes=self.notes, inputs=self.inputs)
            write_json(self.folder.config, started.as_json())

    def _learn(self, task: Task) -> None:
        self.engine.ledger = Ledger()
        begun = time.process_time()
        self.learner.learn(task, self.memory)
        spent = time.process_time() - begun
        with self.engine.one_writer() as writer:
            if writer:
                ledger = self.engine.ledger
                progress = StageProgress(
                    stage=task.index + 1,
                    passes=dict[str, int](ledger.passes.items()),
                    seconds=dict[str, float](ledger.seconds.items()),
                    losses=[list(pair) for pair in ledger.losses],
                    reused=ledger.reused,
                    waited=ledger.waited,
                    cpu=spent,
                    notes=ledger.notes,
                )
                classes = class_fields(self.stream, task.index + 1)
                save_model(
                    self.directory,
                    self.learner,
                    classes,
                    self.memory,
                    weights=self.config.weights,
                    progress=progress,
                )
                durable.remove_tree(self.folder.checkpoints)

    def _evaluate(self, task: Task) -> None:
        if len(self.learner.task_sizes) != task.index + 1:
            raise EaseError(f"{self.folder.path} lost stage {task.index + 1}: start again in a new folder")
        number = task.index + 1
        learned = self.directory.manifest().progress
        if learned is None:
            raise EaseError(f"{self.folder.path} holds a model of no run: start again in a new folder")
        self.engine.ledger = Ledger()
        before, begun = self.predictor.computed, time.process_time()
        seen = self.stream.tasks[:number]
        logits = self.predictor.logits([t.test for t in seen])
        spent = time.process_time() - begun
        labels = np.concatenate([t.test.labels for t in seen])
        score = score_stage(logits.numpy(), labels, self.learner.task_sizes)
        needed = self._needed(seen)
        planned = sum(needed.values()) - sum(self._needed_before(number).get(key, 0) for key in needed)
        stage = StageResult(
            stage=number,
            score=score,
            passes={**learned.passes, "evaluation": planned},
            repeated=max(0, self.predictor.computed - before - planned),
            reused=learned.reused,
            seconds={**learned.seconds, "evaluation": self.engine.ledger.seconds["evaluation"]},
            waited=learned.waited + self.engine.ledger.waited,
            learning_cpu=learned.cpu,
            evaluation_cpu=spent,
            losses=learned.losses,
            notes=learned.notes,
            needed=needed,
            costs=self.learner.costs(),
        )
        with self.engine.one_writer() as writer:
            if writer:
                durable.make_folder(self.folder.stage(number).parent)
                self._write_logits(number, logits, labels)
                write_json(self.folder.stage(number), stage.as_json())
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
        return StageResult.read(self.folder.stage(number - 1)).needed if number > 1 else {}

    def _write_logits(self, number: int, logits: Tensor, labels: np.ndarray) -> None:
        ids = [t.test.digest(i) for t in self.stream.tasks[:number] for i in range(len(t.test))]
        buffer = io.BytesIO()
        np.savez(buffer, logits=logits.numpy(), labels=labels, ids=np.array(ids))
        durable.write_atomic(self.folder.logits(number), buffer.getvalue())

    def _record(self) -> RunRecord:
        stages = [StageResult.read(self.folder.stage(t.index + 1)) for t in self.stream.tasks]
        self.engine.fabric.barrier()  # all processes have read before one of them removes files
        record = self._summarised(stages)
        with self.engine.one_writer() as writer:
            if writer:
                self._gather_predictions(len(stages))
                write_report([record], self.folder.report)
                record.write(self.folder.record)
                self.folder.tidy()
        return record

    def _summarised(self, stages: list[StageResult]) -> RunRecord:
        passes = {phase: sum(stage.passes[phase] for stage in stages) for phase in PHASES}
        seconds = {phase: round(sum(stage.seconds[phase] for stage in stages), 3) for phase in PHASES}
        return RunRecord(
            method=self.config.method,
            dataset=self.stream.dataset,
            protocol=self.stream.protocol,
            backbone=self.config.backbone,
            seed=self.config.seed,
            **asdict(summary([stage.score for stage in stages])),
            parameters=ParameterCounts(
                backbone=self.engine.backbone.parameter_count(),
                trained=stages[-1].costs.trained,
                stored=stages[-1].costs.stored,
            ),
            forward_passes=ForwardPasses(**passes),
            passes_repeated=sum(stage.repeated for stage in stages),
            passes_reused=sum(stage.reused for stage in stages),
            seconds=RunSeconds(
                **seconds,
                total=round(sum(seconds.values()), 3),
                waiting=round(sum(stage.waited for stage in stages), 3),
                learning_cpu=round(sum(stage.learning_cpu for stage in stages), 3),
                evaluation_cpu=round(sum(stage.evaluation_cpu for stage in stages), 3),
            ),
            peak_memory=peak_memory(),
            test_images=[stage.score.count for stage in stages],
            task_sizes=[len(t.classes) for t in self.stream.tasks],
            classes=list(self.stream.class_names),
            config=RecordedConfig(**self.config.as_json()),
            versions=versions(),
            training_loss=[stage.losses for stage in stages],
            inputs=self.inputs,
            notes=[*self.notes, *(note for stage in stages for note in stage.notes), *_divergences(stages)],
        )

    def _gather_predictions(self, stages: int) -> None:
        arrays: dict[str, np.ndarray] = {}
        for number in range(1, stages + 1):
            with np.load(self.folder.logits(number), allow_pickle=False) as stage:
                arrays |= {f"stage{number}/{name}": stage[name] for name in stage.files}
        buffer = io.BytesIO()
        np.savez(buffer, allow_pickle=False, **arrays)
        durable.write_atomic(self.folder.predictions, buffer.getvalue())


def _divergences(stages: list[StageResult]) -> list[str]:
    """A training that ended worse than it began spoils a stage; a reader of the figures should know."""
    return [
        f"task {stage.stage} ended its training with a higher loss than it began with "
        f"({last:.3g} > {first:.3g}): try a lower rate"
        for stage in stages
        for first, last in stage.losses
        if last > first
    ]
