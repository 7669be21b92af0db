"""The base class of all methods: a learner that learns one task after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel
from torch import Tensor

from ease.backbone import Backbone, Reading, Tuning
from ease.documents import Adjustable
from ease.errors import EaseError
from ease.streams import Task
from ease.training.engine import Engine
from ease.training.memory import Memory

Kind = Literal["exemplar-free", "exemplar-based", "ceiling"]
Files = dict[str, dict[str, Tensor]]
"""Tensors by the name of a logical file in the model directory, such as `subspaces/0003`."""


class Settings(Adjustable):
    """Base class of settings; also the settings of a method that has none."""


@dataclass(frozen=True)
class Subspace:
    """The backbone with one tuning.

    Attributes:
        tuning: The tuning; None for the pre-trained model itself.
        hash: Content hash of a frozen tuning, under which its features can be stored. None if the tuning still
            changes.
    """

    tuning: Tuning | None
    hash: str | None


@dataclass(frozen=True)
class Costs:
    """Parameter counts of a learner.

    Attributes:
        trained: Parameters that each task trained.
        stored: Parameters that are stored besides the backbone.
    """

    trained: list[int]
    stored: int


@dataclass(frozen=True)
class Forgetting:
    """The effect of forgetting a class.

    Attributes:
        moved: Largest change in direction of another class, as 1 - cosine; 0 if no other class changed.
        kept: What still carries information about the class, in words; empty if nothing does.
    """

    moved: float
    kept: str


class Learner(ABC):
    """Base class of all methods. `learn` is called with each task in order; `logits` scores all classes seen so far.

    A subclass implements `adapt`, `subspaces`, `head`, `files`, `load_files` and `costs`. What else it can do, such as
    forgetting a class, is described by the protocols in `ease.methods`: `Extendable`, `Forgettable`, `Budgeted`,
    `Compactable`, `SharesTrainings`, `ComparesImages`, `PrototypesPerSubspace` and `JudgesLabels`.

    Args:
        engine: Backbone, input pipeline, devices and randomness.
        settings: An instance of the method's `Settings`.
    """

    name: ClassVar[str]
    """The name on the command line."""
    title: ClassVar[str]
    """The name in tables and figures; `name` if a method does not define it."""
    kind: ClassVar[Kind] = "exemplar-free"
    """Which images the method may use: those of the current task, also exemplars of old tasks, or all."""
    tuning: ClassVar[str] = "none"
    """The kind of tuning that it trains, for listings."""
    idea: ClassVar[str]
    """One line for listings."""
    remark: ClassVar[tuple[str, ...]] = ()
    """Sentences that are printed below every table with this method; the first one also in figures."""
    state_title: ClassVar[str] = "other state"
    """What its files under `learner/` contain, as shown by `ease info`."""
    Settings: ClassVar[type[BaseModel]] = Settings
    reading: Reading = "pooled"
    """Which part of the backbone's output `head` reads."""
    thorough_settings: ClassVar[dict[str, Any]] = {}
    """Settings that spend more time on the first task, if held-out images show a benefit; empty if there are none."""
    extends_exactly: ClassVar[bool] = False
    """Whether images learned through `extend` count exactly as if they had been among the first ones."""
    per_image: ClassVar[bool] = False
    """Whether the tuning depends on the image (prompt pools). Such a method implements `logits` itself, and its
    features cannot be stored."""

    def __init__(self, engine: Engine, settings: Any) -> None:
        self.engine = engine
        self.settings = settings
        self.task_sizes: list[int] = []
        self.left_out: Tensor | None = None
        """Logits [N, classes] of the images of the last `learn`, each as a learner without that image would compute
        them; NaN in rows for which this is not defined. None if the method cannot compute them."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__ and "title" not in cls.__dict__:
            cls.title = cls.name

    @property
    def backbone(self) -> Backbone:
        """The frozen ViT."""
        return self.engine.backbone

    @property
    def classes(self) -> int:
        """Number of classes seen so far."""
        return sum(self.task_sizes)

    def positions(self) -> list[range]:
        """The positions of each task's classes among all classes."""
        ends = list(accumulate(self.task_sizes))
        return [range(end - size, end) for size, end in zip(self.task_sizes, ends, strict=True)]

    def task_of(self, position: int) -> int:
        """The task of the class at this position."""
        return next(task for task, classes in enumerate(self.positions()) if position in classes)

    def learn(self, task: Task, memory: Memory | None = None) -> None:
        """Learn the next task.

        Args:
            task: The task. Only its training images are used.
            memory: Exemplars of old tasks; required by exemplar-based methods and refused by all others.
        """
        if task.index != len(self.task_sizes) or task.classes.start != self.classes:
            raise EaseError(
                f"task {task.index + 1} does not follow: {len(self.task_sizes)} tasks were learned so far"
            )
        if memory is not None and self.kind == "exemplar-free":
            raise EaseError(
                f"{self.name} is exemplar-free: it is never given old images; run it without a memory"
            )
        if memory is None and self.kind == "exemplar-based":
            raise EaseError(f"{self.name} is exemplar-based: it needs a memory of old images")
        self.left_out = None
        try:
            self.adapt(task, memory)
        finally:
            self.engine.loader.drop_training_images()  # the next task must not find them, not even in memory
        self.task_sizes.append(len(task.classes))

    def revisit(self, task: Task) -> None:  # noqa: B027 (only ceilings use it)
        """Receive, in order, each task that was learned before this learner was loaded. Only ceilings need this."""

    @abstractmethod
    def adapt(self, task: Task, memory: Memory | None) -> None:
        """Learn the classes of a task."""

    @abstractmethod
    def subspaces(self) -> list[Subspace]:
        """The subspaces whose features `head` takes, in this order."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """Features [S, N, d] -> logits [N, classes]."""

    def passes_per_image(self) -> int:
        """Number of passes through the backbone per prediction."""
        return len(self.subspaces())

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """Preprocessed images [N, 3, s, s] -> logits [N, classes]."""
        tunings = [s.tuning for s in self.subspaces()]
        return self.head(self.engine.features_of_pixels(pixels, tunings, self.reading).cpu())

    def state(self) -> tuple[Files, dict[str, Any]]:
        """Everything that was learned: tensors by file, and JSON. Before the first task there are no files."""
        files, meta = self.files() if self.task_sizes else ({}, {})
        return files, {"task_sizes": self.task_sizes, **meta}

    def load_state(self, files: Files, meta: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self.task_sizes = list(meta["task_sizes"])
        if self.task_sizes:
            self.load_files(files, meta)

    @abstractmethod
    def files(self) -> tuple[Files, dict[str, Any]]:
        """Tensors by file, and JSON, in addition to what every learner stores."""

    @abstractmethod
    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        """Restore what `files` returned."""

    @abstractmethod
    def costs(self) -> Costs:
        """Parameters trained and stored so far."""
