"""What every method is: a learner that meets one task after the other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from ease.backbone import Backbone, Reading, Tuning
from ease.errors import EaseError
from ease.streams import ImageSet, Task
from ease.training.engine import Engine
from ease.training.memory import Memory

Kind = Literal["exemplar-free", "exemplar-based", "ceiling"]
Files = dict[str, dict[str, Tensor]]
"""Logical file name in the model directory, such as `subspaces/0003` -> tensors."""


class Settings(BaseModel):
    """Settings of a method without any."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Subspace:
    """Backbone + one tuning (None: the PTM itself). A frozen one carries a content hash, so its features keep."""

    tuning: Tuning | None
    hash: str | None


@dataclass(frozen=True)
class Costs:
    """Weights: trained by each task, and kept in the end beside the backbone."""

    trained: list[int]
    stored: int


@dataclass(frozen=True)
class Forgetting:
    """What forgetting a class did to a learner.

    Attributes:
        moved: largest change of another class's direction, as 1 - cosine; 0 if none moved.
        kept: what still carries some of the class, in words; empty if nothing does.
    """

    moved: float
    kept: str


class Learner(ABC):
    """A method. `learn` meets tasks in order; `logits` scores all classes seen so far.

    Subclasses implement `adapt`, `subspaces`, `head`, `files`, `load_files` and `costs`.
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = "exemplar-free"
    tuning: ClassVar[str] = "none"
    """Which tuning it trains, for listings."""
    idea: ClassVar[str]
    remark: ClassVar[tuple[str, ...]] = ()
    """Sentences that stand below every table with this method; the first also in its pictures."""
    state_title: ClassVar[str] = "other state"
    """What its files under `learner/` contain, as shown by `ease info`."""
    Settings: ClassVar[type[BaseModel]] = Settings
    reading: Reading = "pooled"
    """What its head reads of the backbone's output."""
    closer: ClassVar[dict[str, Any]] = {}
    """Settings that take more time over the first task, where its images say that it pays; empty if there are none."""
    adds_exactly: ClassVar[bool] = False
    """Whether images that come through `extend` count as if they had been among the first ones."""
    per_image: ClassVar[bool] = False
    """Its tuning depends on the image (prompt pools): it implements `logits` itself and nothing of it can be kept."""

    def __init__(self, engine: Engine, settings: Any) -> None:
        self.engine = engine
        self.settings = settings
        self.task_sizes: list[int] = []
        self.left_out: Tensor | None = None
        """Logits [N, classes] of the images of the last `learn`, each as a learner that has not seen that one image
        would give them; NaN in the row of an image that nothing can be said of. None where a method cannot tell."""

    @property
    def backbone(self) -> Backbone:
        """The frozen ViT."""
        return self.engine.backbone

    @property
    def classes(self) -> int:
        """Classes seen so far."""
        return sum(self.task_sizes)

    def positions(self) -> list[range]:
        """Where the classes of each task are among all classes."""
        ends = list(accumulate(self.task_sizes))
        return [range(end - size, end) for size, end in zip(self.task_sizes, ends, strict=True)]

    def task_of(self, position: int) -> int:
        """The task that the class at this position came with."""
        return next(task for task, classes in enumerate(self.positions()) if position in classes)

    def learn(self, task: Task, memory: Memory | None = None) -> None:
        """Meet the next task. Only `task.train` and, for exemplar-based methods, `memory` may be looked at."""
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
            self.engine.loader.forget()  # the next task must not meet this one's images, not even in memory
        self.task_sizes.append(len(task.classes))

    def revisit(self, task: Task) -> None:  # noqa: B027 (most methods never look back)
        """Shown, in order, each task learned before this learner was loaded. For ceilings, which need old images."""

    def extend(self, images: ImageSet) -> None:
        """See more images of classes learned before; labels are their positions among all classes."""
        raise EaseError(
            f"{self.name} cannot see more images of a class it knows: learn it again from the start"
        )

    def forget(self, position: int) -> Forgetting:
        """Drop the class at this position; later ones move up."""
        raise EaseError(f"{self.name} cannot forget a class: learn the others again from the start")

    @abstractmethod
    def adapt(self, task: Task, memory: Memory | None) -> None:
        """Learn the task's classes."""

    @abstractmethod
    def subspaces(self) -> list[Subspace]:
        """The subspaces whose features `head` wants, in its order."""

    @abstractmethod
    def head(self, features: Tensor) -> Tensor:
        """[S, N, d] -> logits [N, classes]."""

    def passes_per_image(self) -> int:
        """Passes through the backbone that one prediction takes."""
        return len(self.subspaces())

    def within(self, budget: int | None) -> None:
        """From now on spend at most this many passes on an image; None spends what its settings say."""
        passes = self.passes_per_image()
        if budget is not None and budget < passes:
            raise EaseError(
                f"{self.name} takes {passes} passes per image, not {budget}: leave the budget out"
            )

    @torch.no_grad()
    def logits(self, pixels: Tensor) -> Tensor:
        """Preprocessed images [N, 3, s, s] -> [N, classes]."""
        tunings = [s.tuning for s in self.subspaces()]
        return self.head(self.engine.features_of_pixels(pixels, tunings, self.reading).cpu())

    def state(self) -> tuple[Files, dict[str, Any]]:
        """Everything it has learned: tensors by file, and JSON. Before the first task that is nothing."""
        files, meta = self.files() if self.task_sizes else ({}, {})
        return files, {"task_sizes": self.task_sizes, **meta}

    def load_state(self, files: Files, meta: dict[str, Any]) -> None:
        """Become the learner that gave this state."""
        self.task_sizes = list(meta["task_sizes"])
        if self.task_sizes:
            self.load_files(files, meta)

    @abstractmethod
    def files(self) -> tuple[Files, dict[str, Any]]:
        """Tensors by file, and JSON, beyond what every learner has."""

    @abstractmethod
    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        """The inverse of `files`."""

    @abstractmethod
    def costs(self) -> Costs:
        """Parameters trained and stored so far."""
