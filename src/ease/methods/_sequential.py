"""Common base of methods that continue to train the same weights from task to task."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import BaseModel, Field
from torch import Tensor, nn

from ease.backbone import Tuning
from ease.errors import EaseError
from ease.heads.linear import GrowingLinear
from ease.heads.losses import cross_entropy_of_new
from ease.methods._base import Costs, Files, Kind, Learner, Subspace
from ease.methods._tuned_head import TunedHead
from ease.streams import ImageSet, Task
from ease.training.fit import Training
from ease.training.memory import Memory, joined
from ease.training.randomness import generator
from ease.tuning import Full


class SequentialSettings(Training):
    """Settings of public implementations for a pre-trained ViT."""

    lr: float = Field(1e-3, gt=0)
    batch_size: int = Field(128, ge=1)
    later_weight_decay: float = Field(2e-4, ge=0, description="from the second task on")


class Sequential(Learner):
    """Counts the parameters that each task really trains."""

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.trained: list[int] = []

    def fit(
        self,
        module: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        images: ImageSet,
        task: Task,
        phase: str = "train",
        training: Training | None = None,
        **how: Any,
    ) -> None:
        """Train the parameters of `module` that require a gradient; see `Engine.fit`, which is given `how`.

        The settings are those of the task if `training` is None.
        """
        weights = sum(p.numel() for p in module.parameters() if p.requires_grad)
        self.trained += [0] * (task.index + 1 - len(self.trained))
        self.trained[task.index] += weights
        training = self.training_of(task) if training is None else training
        self.engine.fit(module, loss, images, training, task=task.index, phase=phase, **how)

    def training_of(self, task: Task) -> Training:
        """The training settings of a task."""
        if task.index == 0:
            return self.settings
        return self.settings.model_copy(update={"weight_decay": self.settings.later_weight_decay})

    def files(self) -> tuple[Files, dict[str, Any]]:
        return self.tensors(), {"trained": self.trained}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        self.trained = list(meta["trained"])
        self.load_tensors(files)

    @abstractmethod
    def tensors(self) -> Files:
        """What was learned, as tensors by file."""

    @abstractmethod
    def load_tensors(self, files: Files) -> None:
        """Restore what `tensors` returned. The sizes of the tasks are known already."""

    def costs(self) -> Costs:
        kept = [value for part in self.tensors().values() for value in part.values()]
        return Costs(list(self.trained), sum(v.numel() for v in kept if v.is_floating_point()))


class OneTuning(Sequential):
    """One tuning and one growing linear head, trained on every task."""

    Settings: ClassVar[type[BaseModel]] = SequentialSettings
    state_title: ClassVar[str] = "tuning and linear head"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.tuned = self.new_tuning().to(self.backbone.device).freeze()
        self.linear = GrowingLinear(self.backbone.dim)

    def new_tuning(self) -> Tuning:
        """The untrained tuning, which does not change the pre-trained model."""
        return Full(self.backbone.vit)

    def adapt(self, task: Task, memory: Memory | None) -> None:
        """Fine-tune on the task's images: cross-entropy over all logits at task 1, over the new ones later."""
        self.grow(task)
        loss = partial(cross_entropy_of_new, first=task.classes.start)
        self.follow(self.model(), loss, task.train, task)

    def grow(self, task: Task) -> None:
        """Add rows for the task's classes to the head."""
        self.linear.grow(len(task.classes), generator(self.engine.seed, "init", task.index))

    def model(self) -> TunedHead:
        """The current network as a module to train."""
        return TunedHead(self.backbone, self.tuned, self.linear)

    def snapshot(self) -> TunedHead:
        """A frozen copy of the current network, as the teacher of the next stage."""
        twin = TunedHead(self.backbone, copy.deepcopy(self.tuned), copy.deepcopy(self.linear))
        return twin.to(self.backbone.device).eval().requires_grad_(False)

    def follow(
        self,
        module: nn.Module,
        loss: Callable[[Any, Tensor], Tensor],
        images: ImageSet,
        task: Task,
        phase: str = "train",
        **how: Any,
    ) -> None:
        """Train a module that contains the tuning, and freeze the tuning afterwards."""
        self.tuned.requires_grad_(True)
        self.fit(module, loss, images, task, phase, **how)
        self.tuned.freeze()

    def subspaces(self) -> list[Subspace]:
        return [Subspace(self.tuned, None)]

    def head(self, features: Tensor) -> Tensor:
        with torch.no_grad():
            return self.linear.to(features.device)(features[0])

    def tensors(self) -> Files:
        parts = {"tuned": self.tuned.state_dict(), **self.head_tensors()}
        return {self._file(): {f"{part}/{n}": v for part, state in parts.items() for n, v in state.items()}}

    def load_tensors(self, files: Files) -> None:
        parts: Files = {}
        for name, value in files[self._file()].items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = value
        self.tuned.load_state_dict(parts["tuned"])
        self.load_head(parts)

    def _file(self) -> str:
        return f"learner/{len(self.task_sizes) - 1:04d}"

    def head_tensors(self) -> Files:
        """The tensors of the head, by part."""
        return {"linear": self.linear.state_dict()}

    def load_head(self, parts: Files) -> None:
        """Restore what `head_tensors` returned."""
        self.linear.grow_to(self.classes)
        self.linear.load_state_dict(parts["linear"])


class Ceiling(Learner):
    """An upper bound: it may use the training images of all tasks seen so far.

    Images are never saved in a model directory. Before a loaded ceiling can learn the next task, it must be given the
    old tasks again with `revisit`.
    """

    kind: ClassVar[Kind] = "ceiling"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.seen: list[ImageSet] = []

    def revisit(self, task: Task) -> None:
        """Receive a task again that was learned before this learner was loaded."""
        if task.index != len(self.seen) or task.index >= len(self.task_sizes):
            raise EaseError(
                f"task {task.index + 1} cannot be revisited now: {len(self.task_sizes)} tasks were learned and "
                f"{len(self.seen)} of them shown; show each once, in order"
            )
        self.seen.append(task.train)

    def all_images(self, task: Task) -> ImageSet:
        """The training images of all tasks up to this new one."""
        if len(self.seen) != task.index:
            raise EaseError(
                f"{self.name} learns from all tasks but was loaded without the first {task.index}: "
                "show them again with revisit(task)"
            )
        self.seen.append(task.train)
        return joined(*self.seen)


class WithTeacher(nn.Module):
    """A student and a frozen teacher on the same images. The teacher is not part of the state and is never trained.

    Args:
        student: Maps images [N, 3, s, s] to its outputs.
        teacher: Maps images to its outputs; in eval mode, without gradients.
    """

    def __init__(self, student: nn.Module, teacher: nn.Module) -> None:
        super().__init__()
        self.student = student
        self._teacher = (teacher,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, pixels: Tensor) -> tuple[Any, Any]:
        """[N, 3, s, s] -> (student's outputs, teacher's outputs)."""
        with torch.no_grad():
            taught = self._teacher[0](pixels)
        return self.student(pixels), taught
