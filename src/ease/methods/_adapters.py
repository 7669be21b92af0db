"""Common base of methods with an adapter per task and one head that is aligned on class Gaussians: MOS and TUNA."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from ease.backbone import Tuning
from ease.heads.class_gaussians import ClassGaussians
from ease.heads.linear import GrowingCosine, GrowingLinear
from ease.methods._aligned import AlignedSettings, align_with
from ease.methods._base import Files, Subspace
from ease.methods._frozen import FrozenTuning
from ease.methods._sequential import Sequential
from ease.streams import Task
from ease.training.fit import Training
from ease.training.memory import Memory
from ease.training.randomness import generator
from ease.tuning import Adapter
from ease.tuning.merging import State

MEANS = "means"


class AdapterPerTaskSettings(AlignedSettings):
    """Settings of an adapter per task and of the alignment."""

    variant: Literal["text", "released"] = Field(
        "released", description="the method as its paper describes it, or as its released code does it"
    )
    rank: int = Field(16, ge=1, description="bottleneck width r of the adapters")
    scale: float = Field(0.1, description="factor of an adapter's output")
    dropout: float = Field(0.1, ge=0, lt=1, description="dropout inside an adapter while training")


class AdapterPerTask(Sequential):
    """Every task trains an adapter, which is kept, and rows of a head that all adapters share.

    After a training, the Gaussians of the new classes are measured with the task's adapter, and from the second task
    on the whole head is trained on features drawn from the Gaussians of all classes. Gaussians never change. An
    adapter that is made of others, as both methods have them, is not stored: `derive` makes it again.

    Attributes:
        frozen: The adapter of each task, as it was trained.
        linear: The head.
        gaussians: Mean and covariance of each class, under the adapter of its task.
    """

    Settings: ClassVar[type[BaseModel]] = AdapterPerTaskSettings
    tuning: ClassVar[str] = "adapter"
    state_title: ClassVar[str] = "head"

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.frozen: list[FrozenTuning] = []
        self.linear = self.new_head()
        self.gaussians = ClassGaussians.of(self.backbone.dim, settings)

    @abstractmethod
    def new_head(self) -> GrowingLinear | GrowingCosine:
        """A head without rows."""

    @abstractmethod
    def train(self, adapter: Adapter, task: Task) -> None:
        """Train an adapter in place, and add rows for the task's classes to the head."""

    @abstractmethod
    def start(self, task: int) -> Adapter:
        """A new adapter as the training of a task begins with it."""

    @abstractmethod
    def derive(self) -> None:
        """Make what follows from `frozen`; called whenever that has grown."""

    @abstractmethod
    def in_use(self) -> list[Subspace]:
        """The distinct subspaces of a prediction."""

    @abstractmethod
    def own(self, task: int) -> Tuning:
        """The adapter under which the classes of a task are measured."""

    # --- learning ---------------------------------------------------------------------------------

    def new_adapter(self, state: State | None = None, task: int = 0) -> Adapter:
        """An adapter with these weights; an untrained one, drawn for `task`, without them."""
        shape = {name: getattr(self.settings, name) for name in ("rank", "scale", "dropout")}
        draw = generator(self.engine.seed, "init", "adapter", task)
        adapter = Adapter(self.backbone.shape, **shape, generator=draw)
        if state is not None:
            adapter.load_state_dict(state)
        return adapter

    def trained_states(self) -> list[State]:
        """The weights of each task's adapter, as they were trained."""
        return [one.tuning.state_dict() for one in self.frozen]

    def training_of(self, task: Task) -> Training:
        return self.settings

    def adapt(self, task: Task, memory: Memory | None) -> None:
        adapter = self.start(task.index)
        self.train(adapter, task)
        self.frozen.append(FrozenTuning.of(adapter, self.backbone))
        self.derive()
        self.measure(task)
        if task.index > 0:
            sizes = [*self.task_sizes, len(task.classes)]
            align_with(self.engine, self.linear, self.gaussians, self.settings, task, sizes)

    def measure(self, task: Task) -> None:
        """Add the Gaussians of the task's classes."""
        features = self.engine.features(task.train, [self.own(task.index)])
        self.gaussians.add(features[0], torch.from_numpy(task.train.labels), task.classes)

    def subspaces(self) -> list[Subspace]:
        return self.in_use()

    def scores(self, features: Tensor) -> Tensor:
        """What the head makes of the features of all subspaces, [S, N, d] -> [S, N, classes]."""
        with torch.no_grad():
            return self.linear.to(features.device)(features)

    # --- saving -----------------------------------------------------------------------------------

    def files(self) -> tuple[Files, dict[str, Any]]:
        files, meta = super().files()
        return files, {**meta, "subspaces": [one.spec() for one in self.frozen]}

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        specs = enumerate(meta["subspaces"])
        self.frozen = [
            FrozenTuning.load(files[f"subspaces/{t:04d}"], spec, self.backbone) for t, spec in specs
        ]
        if len(self.frozen) != len(self.task_sizes):
            raise ValueError(f"{len(self.frozen)} adapters do not fit {len(self.task_sizes)} tasks")
        super().load_files(files, meta)
        self.derive()

    def tensors(self) -> Files:
        """Only the head changes with later tasks, and it alone is written again."""
        files = {f"subspaces/{t:04d}": dict(one.packed.tensors) for t, one in enumerate(self.frozen)}
        for t, classes in enumerate(self.positions()):
            files[f"prototypes/{t:04d}"] = self.measured(classes)
        return {**files, f"learner/{len(self.task_sizes) - 1:04d}": self.linear.state_dict()}

    def measured(self, classes: range) -> dict[str, Tensor]:
        """What is stored of some classes."""
        means = self.gaussians.means[classes.start : classes.stop]
        return {MEANS: means, **self.gaussians.spreads(classes)}

    def load_tensors(self, files: Files) -> None:
        self.linear.grow_to(self.classes)
        self.linear.load_state_dict(files[f"learner/{len(self.task_sizes) - 1:04d}"])
        self.load_measured([dict(files[f"prototypes/{t:04d}"]) for t in range(len(self.task_sizes))])

    def load_measured(self, parts: list[dict[str, Tensor]]) -> None:
        """Restore, task by task, what `measured` returned."""
        self.gaussians.load(torch.cat([part.pop(MEANS) for part in parts]), parts)
