"""MEMO (Zhou et al., ICLR 2023): all tasks share the shallow blocks; each task has a last block of its own."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field
from torch import nn

from ease.backbone import Backbone, Tuning, tensors_hash
from ease.methods._base import Kind, Subspace
from ease.methods._expanding import Expanding, ExpandingSettings
from ease.methods._registry import register
from ease.streams import Task
from ease.training.fit import Training
from ease.tuning import Full


class MemoSettings(ExpandingSettings):
    """Settings of public implementations for a pre-trained ViT."""

    epochs: int = Field(10, ge=0, description="epochs at task 1, where the whole network is trained")
    later_epochs: int = Field(20, ge=0, description="epochs at later tasks, where one block is trained")


class Branch(Tuning):
    """A last block and a norm on top of a shared network."""

    kind: ClassVar[str] = "memo-branch"

    def __init__(self, shared: Full, own: Full) -> None:
        super().__init__()
        self.own = own
        self._shared = (shared,)  # in a tuple, so that it is not registered as a submodule

    def vit(self) -> nn.Module | None:
        return self._shared[0].copy

    def block(self, layer: int) -> nn.Module | None:
        return self.own.block(layer)

    def norm(self) -> nn.Module | None:
        return self.own.norm()


@register()
class Memo(Expanding):
    """`f_b = branch_b(shared(x))`: the shared blocks are trained on task 1 and then frozen; branches as in DER."""

    name: ClassVar[str] = "memo"
    title: ClassVar[str] = "MEMO"
    kind: ClassVar[Kind] = "exemplar-based"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "shared shallow blocks, a new last block per task, one head over all"
    Settings = MemoSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.branches: list[Full] = []
        self._shared: Backbone | None = None

    @property
    def base(self) -> Backbone:
        """The pre-trained model for task 1, then the network of task 1, so that shared blocks are computed once."""
        return self._shared or self.backbone

    def plugged(self) -> list[Tuning]:
        return list(self.branches)

    def new_tuning(self) -> Full:
        """A copy of the whole model for task 1, then of the last block and norm of the previous task."""
        if self._shared is None:
            return Full(self.backbone.vit)
        last = self._shared.shape.depth - 1
        tuning = Full(self._shared.vit, blocks=[last])
        tuning.load_state_dict(self.branches[-1].state_dict())
        return tuning

    def keep(self, tuning: Full) -> None:
        """Add a branch. The network of task 1 is shared by all tasks; its last block and norm are the first branch."""
        if not self.tunings:
            self.branches = []
            shape, name = self.backbone.shape, f"{self.backbone.name} after task 1"
            self._shared = Backbone(tuning.copy, name, tuning.fingerprint(), self.backbone.pixels)
            branch = Full(tuning.copy, blocks=[shape.depth - 1])
            branch.freeze()
        else:
            branch = tuning
        assert self._shared is not None
        self.tunings.append(tuning)
        self.branches.append(branch)
        parts = {"shared": self._shared.weights_hash, "branch": branch.fingerprint()}
        self.hashes.append(tensors_hash({}, parts))

    def subspaces(self) -> list[Subspace]:
        pairs = zip(self.branches, self.hashes, strict=True)
        return [Subspace(Branch(self.tunings[0], branch), name) for branch, name in pairs]

    def training_of(self, task: Task) -> Training:
        """Later tasks, which train one block, have their own number of epochs."""
        training = super().training_of(task)
        if task.index == 0:
            return training
        return training.model_copy(update={"epochs": self.settings.later_epochs})
