"""FOSTER (Wang et al., ECCV 2022): a second network is added by boosting, then both are compressed into one."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.backbone import Backbone, Tuning
from ease.heads.linear import GrowingLinear
from ease.heads.losses import distillation
from ease.heads.widening import WideningLinear, side_by_side
from ease.methods._base import Files, Kind, Subspace
from ease.methods._registry import register
from ease.methods._sequential import OneTuning, SequentialSettings, WithTeacher
from ease.methods._tuned_head import TunedHead
from ease.streams import ImageSet, Task
from ease.training.memory import Memory, joined
from ease.training.randomness import generator
from ease.tuning import Full


def class_weights(labels: Tensor, classes: int, beta: float) -> Tensor:
    """Weights [C] `(1 - beta) / (1 - beta^n_c)` for classes of n_c images, scaled to a mean of 1."""
    counts = torch.bincount(labels, minlength=classes).clamp(min=1)
    weights = (1 - beta) / (1 - beta**counts)
    return weights * classes / weights.sum()


class FosterSettings(SequentialSettings):
    """Settings of public implementations for a pre-trained ViT; without weight alignment."""

    epochs: int = Field(20, ge=0, description="epochs of the boosting, and again of the compression")
    batch_size: int = Field(32, ge=1)
    later_weight_decay: float = Field(5e-4, ge=0, description="from the second task on")
    temperature: float = Field(2.0, gt=0, description="temperature of both distillations")
    distill: float = Field(1.0, ge=0, description="weight of the distillation while boosting")
    beta1: float = Field(0.96, gt=0, lt=1, description="of the class weights while boosting")
    beta2: float = Field(0.97, gt=0, lt=1, description="of the class weights in the compression")
    report: Literal["student", "teacher"] = Field(
        "student", description="which network predicts: the compressed one, or the two before compression"
    )


class Boosted(nn.Module):
    """The frozen old network and a new one with a common head; the new one also has a head of its own.

    Args:
        backbone: The backbone of both tunings.
        old: The previous stage, which is not part of the state.
        tuning: The new network.
        linear: Head over both features, [C, 2d].
        branch: Head over the new feature only, [C, d].
    """

    def __init__(
        self, backbone: Backbone, old: TunedHead, tuning: Full, linear: WideningLinear, branch: GrowingLinear
    ) -> None:
        super().__init__()
        self.tuning, self.linear, self.branch = tuning, linear, branch
        self._frozen = (backbone, old)  # in a tuple, so that neither is registered as a submodule

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[N, 3, s, s] -> logits [N, C], the new branch's logits [N, C], the old network's logits [N, old]."""
        backbone, old = self._frozen
        before = backbone.features(pixels, [old.tuning])[0]
        after = backbone.forward(pixels, self.tuning)
        return self.linear(torch.cat([before, after], dim=1)), self.branch(after), old.head(before)


@register()
class Foster(OneTuning):
    """Gradient boosting: a new network learns the residual of the old one, then both are distilled into one."""

    name: ClassVar[str] = "foster"
    title: ClassVar[str] = "FOSTER"
    kind: ClassVar[Kind] = "exemplar-based"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "boosts the old backbone with a new one, then compresses both into one"
    Settings = FosterSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.teacher: tuple[Tuning, Tuning, WideningLinear] | None = None

    def adapt(self, task: Task, memory: Memory | None) -> None:
        assert memory is not None
        if task.index == 0:
            super().adapt(task, memory)
        else:
            images = joined(task.train, memory.images)
            self.compress(task, images, self.boost(task, images))
        memory.remember(task.train, self.engine.features(task.train, [self.tuned])[0])

    def boost(self, task: Task, images: ImageSet) -> Boosted:
        """`L = CE(logits / w) + CE(new branch) + KL(old network || old logits)`, w the class weights."""
        old, dim = self.snapshot(), self.backbone.dim
        draw = generator(self.engine.seed, "init", task.index, "boost")
        linear = WideningLinear()
        linear.widen(dim)
        linear.grow(self.classes)
        linear.load_state_dict(old.head.state_dict())
        linear.widen(dim, draw)
        linear.grow(len(task.classes), draw)
        branch = GrowingLinear(dim)
        branch.grow(task.classes.stop, draw)
        module = Boosted(self.backbone, old, self._copy_of(old.tuning), linear, branch)
        first, settings = task.classes.start, self.settings
        weights = self._weights(images, task, settings.beta1)

        def boosting(outputs: tuple[Tensor, Tensor, Tensor], labels: Tensor) -> Tensor:
            logits, of_branch, before = outputs
            balanced = F.cross_entropy(logits / weights, labels) + F.cross_entropy(of_branch, labels)
            return balanced + settings.distill * distillation(logits[:, :first], before, settings.temperature)

        self.fit(module, boosting, images, task, phase="boost")
        module.eval().requires_grad_(False)
        if settings.report == "teacher":
            self.teacher = (old.tuning, module.tuning, linear)
        return module

    def compress(self, task: Task, images: ImageSet, boosted: Boosted) -> None:
        """Distill both networks into the previous one: `KL(w * teacher || student)` (balanced distillation)."""
        self.grow(task)
        weights = self._weights(images, task, self.settings.beta2)
        temperature = self.settings.temperature

        def balanced(outputs: tuple[Tensor, tuple[Tensor, Tensor, Tensor]], labels: Tensor) -> Tensor:
            student, (teacher, _, _) = outputs
            return distillation(student, teacher, temperature, weights)

        self.follow(WithTeacher(self.model(), boosted), balanced, images, task, phase="compress")

    def _weights(self, images: ImageSet, task: Task, beta: float) -> Tensor:
        weights = class_weights(torch.from_numpy(images.labels), task.classes.stop, beta)
        return weights.to(self.backbone.device)

    def _copy_of(self, tuning: Tuning) -> Full:
        copy = Full(self.backbone.vit)
        copy.load_state_dict(tuning.state_dict())
        return copy

    def subspaces(self) -> list[Subspace]:
        if self.teacher is None:
            return super().subspaces()
        return [Subspace(tuning, None) for tuning in self.teacher[:2]]

    def head(self, features: Tensor) -> Tensor:
        if self.teacher is None:
            return super().head(features)
        with torch.no_grad():
            return self.teacher[2].to(features.device)(side_by_side(features))

    def head_tensors(self) -> Files:
        parts = super().head_tensors()
        if self.teacher is not None:
            names = ("teacher-old", "teacher-new", "teacher-linear")
            parts |= {name: part.state_dict() for name, part in zip(names, self.teacher, strict=True)}
        return parts

    def load_head(self, parts: Files) -> None:
        super().load_head(parts)
        if "teacher-old" in parts:
            old, new = Full(self.backbone.vit), Full(self.backbone.vit)
            old.load_state_dict(parts["teacher-old"])
            new.load_state_dict(parts["teacher-new"])
            linear = WideningLinear()
            linear.widen(2 * self.backbone.dim)
            linear.grow(self.classes)
            linear.load_state_dict(parts["teacher-linear"])
            self.teacher = (old.freeze(), new.freeze(), linear)
