"""Whole runs: ours and the naive one learn the same stream, stage by stage in turns."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.cases import World, as_ours
from benchmarks.clock import timed
from ease.backbone import Tuning
from ease.experiments.predictor import Predictor
from ease.methods import class_fields, save_model
from ease.methods._tuned_head import TunedHead
from ease.methods.ease import Ease
from ease.progress import Progress
from ease.storage.model_directory import ModelDirectory
from ease.streams import Task
from ease.training.features import FeatureStore
from ease.training.usage import Ledger

NARROW = 1e-5
"""Where the two best logits are nearer than this, rounding may decide."""


@dataclass(frozen=True)
class Stage:
    """One stage of one run: seconds by phase and the logits of all test images seen."""

    seconds: dict[str, float]
    logits: Tensor

    @property
    def whole(self) -> float:
        return sum(self.seconds.values())


class Taught(Ease):
    """EASE that is given its trained subspaces."""

    given: Sequence[Tuning] = ()

    def train_subspace(self, task: Task, start: TunedHead | None = None, order: object = None) -> Tuning:
        """Nothing is trained."""
        return self.given[task.index]


class OurRun:
    """What `ease run` does at each stage, with its files: a checkpoint per epoch, stored features, the model.

    Args:
        world: what to learn.
        folder: an empty one, for these files.
        feature_memory: MB of test features held in memory.
        given: trained subspaces, to learn nothing but prototypes.
    """

    def __init__(
        self, world: World, folder: Path, feature_memory: int = 256, given: Sequence[Tuning] | None = None
    ) -> None:
        self.tasks, self.folder, self.stream = world.stream.tasks, folder, world.stream
        self.engine = world.engine(folder / "checkpoints")
        self.learner = (Ease if given is None else Taught)(self.engine, world.settings)
        if isinstance(self.learner, Taught):
            self.learner.given = given or ()
        self.predictor = Predictor(self.learner, FeatureStore(folder / "features", feature_memory * 2**20))
        self.model = ModelDirectory(folder / "model")

    def stage(self, task: Task, evaluate: bool = True) -> Stage:
        """Learn a task, save, evaluate."""
        self.engine.ledger = Ledger()
        _, learning = timed(lambda: self.learn(task))
        _, files = timed(lambda: self._save(task))
        train = self.engine.ledger.seconds["train"]
        logits, evaluation = timed(lambda: self.evaluate(task) if evaluate else torch.empty(0, 0))
        spent = {"train": train, "prototypes": learning - train, "evaluation": evaluation, "files": files}
        return Stage(spent, logits)

    def learn(self, task: Task) -> None:
        """Subspace, prototypes and what follows from them."""
        self.learner.learn(task)
        self.learner.classifier()  # made when first asked for; the naive run does it here

    def _save(self, task: Task) -> None:
        save_model(self.model, self.learner, class_fields(self.stream, task.index + 1))
        shutil.rmtree(self.folder / "checkpoints", ignore_errors=True)

    def evaluate(self, task: Task) -> Tensor:
        """Logits of all test images of this task and those before."""
        return self.predictor.logits([t.test for t in self.tasks[: task.index + 1]])


class NaiveRun:
    """The released schedule; it keeps no files."""

    def __init__(self, world: World, alone: bool = False) -> None:
        self.learner = world.naive(alone=alone)

    def stage(self, task: Task, evaluate: bool = True) -> Stage:
        """Learn a task, evaluate everything again."""
        learner = self.learner
        _, train = timed(learner.train)
        _, prototypes = timed(self._prototypes)
        logits, evaluation = timed(lambda: learner.evaluate() if evaluate else torch.empty(0, 0))
        return Stage({"train": train, "prototypes": prototypes, "evaluation": evaluation}, logits)

    def _prototypes(self) -> None:
        self.learner.add_prototypes()
        self.learner.complement()


@dataclass
class Agreement:
    """How predictions compare over all stages, given the same trained adapters.

    Attributes:
        compared: predictions.
        narrow: of these, where the naive margin is under `NARROW`.
        different: where the predicted classes differ.
        unexplained: where they differ though the margin is wide: none, if both compute the same.
        largest: difference between two logits.
    """

    compared: int = 0
    narrow: int = 0
    different: int = 0
    unexplained: int = 0
    largest: float = 0.0

    def add(self, naive: Tensor, ours: Tensor) -> None:
        """Logits [N, C] of one stage."""
        best = naive.topk(2, dim=1).values
        narrow = best[:, 0] - best[:, 1] < NARROW
        differ = naive.argmax(dim=1) != ours.argmax(dim=1)
        self.compared += len(naive)
        self.narrow += int(narrow.sum())
        self.different += int(differ.sum())
        self.unexplained += int((differ & ~narrow).sum())
        self.largest = max(self.largest, float((naive - ours).abs().max()))


@dataclass
class Race:
    """Both runs of one stream, stage by stage."""

    naive: list[Stage] = field(default_factory=list)
    ours: list[Stage] = field(default_factory=list)
    agreement: Agreement = field(default_factory=Agreement)
    averages: tuple[float, float] = (0.0, 0.0)
    """Mean accuracy over stages in percent, each with the adapters it trained itself: naive, ours."""

    def seconds(self, phase: str) -> tuple[float, float]:
        """Of all stages: naive, ours."""
        naive, ours = ([s.seconds.get(phase, 0.0) for s in stages] for stages in (self.naive, self.ours))
        return sum(naive), sum(ours)

    @property
    def whole(self) -> tuple[float, float]:
        """Everything, files included: naive, ours."""
        return sum(s.whole for s in self.naive), sum(s.whole for s in self.ours)


def race(world: World, folder: Path, progress: Progress) -> Race:
    """Learn the stream with both, a stage of one after a stage of the other; then compare predictions.

    For the comparison our code gets the adapters that the naive run has trained.
    """
    result, tasks = Race(), world.stream.tasks
    ours, naive = OurRun(world, folder / "ours"), NaiveRun(world)
    with progress.bar(f"{world.case.backbone}: whole run", 2 * len(tasks)) as advance:
        for task in tasks:
            turns = [(ours, result.ours), (naive, result.naive)]
            for run, stages in turns if task.index % 2 == 0 else turns[::-1]:
                stages.append(run.stage(task))  # type: ignore[attr-defined]
                advance(1)
    truth = torch.cat([torch.from_numpy(task.test.labels) for task in tasks])
    result.averages = (_average(result.naive, truth), _average(result.ours, truth))
    given = [as_ours(subspace, world) for subspace in naive.learner.subspaces]
    again = OurRun(world, folder / "again", given=given)
    with progress.bar(f"{world.case.backbone}: the same adapters in both", len(tasks)) as advance:
        for task, stage in zip(tasks, result.naive, strict=True):
            result.agreement.add(stage.logits, again.stage(task).logits)
            advance(1)
    return result


def _average(stages: list[Stage], truth: Tensor) -> float:
    right = [(stage.logits.argmax(dim=1) == truth[: len(stage.logits)]).float().mean() for stage in stages]
    return 100 * float(torch.stack(right).mean())
