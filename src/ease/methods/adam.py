"""ADAM, also called APER (Zhou et al., 2023).

Task 1 adapts a copy of the pre-trained model (PTM). Prototypes are means of the concatenated features of both models.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from ease.heads import PrototypeBank, class_means
from ease.heads.prototypes import PTM
from ease.methods._base import Costs, Files
from ease.methods._first_session import AdapterSettings, FirstSession, FirstSessionSettings
from ease.methods._registry import register
from ease.streams import Task

TUNED = 1
"""The number of the adapted copy among the subspaces."""


class Adam(FirstSession):
    """`logit_c = cos(p_c, [phi(x), phi*(x)])`: phi the PTM, phi* its copy tuned on task 1.

    p_c is the mean of the concatenation over the images of class c. The concatenated vector is normalised as a whole,
    so the subspace with the longer features has more influence, as in the paper.
    """

    with_ptm = True

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.bank = PrototypeBank()

    def collect(self, task: Task, features: Tensor, labels: Tensor) -> None:
        means, counts = class_means(features, labels, task.classes)
        self.bank.add_task(means, counts, subspaces=[PTM, TUNED], own=TUNED)

    def head(self, features: Tensor) -> Tensor:
        tasks = list(range(self.bank.tasks))
        prototypes = [self.bank.gather(tasks, subspace).to(features) for subspace in (PTM, TUNED)]
        return F.normalize(_merged(*features), dim=-1) @ F.normalize(_merged(*prototypes), dim=-1).mT

    def files(self) -> tuple[Files, dict[str, Any]]:
        files, meta = super().files()
        return files | {f"prototypes/{t:04d}": state for t, state in enumerate(self.bank.states())}, meta

    def load_files(self, files: Files, meta: dict[str, Any]) -> None:
        super().load_files(files, meta)
        self.bank = PrototypeBank.of_states([files[n] for n in sorted(files) if n.startswith("prototypes/")])

    def costs(self) -> Costs:
        return Costs(self.trained(), self.tuned_weights() + 2 * self.classes * self.backbone.dim)


def _merged(ptm: Tensor, tuned: Tensor) -> Tensor:
    """[N, d] and [N, d] -> [N, 2d]."""
    return torch.cat([ptm, tuned], dim=-1)


class FullSettings(FirstSessionSettings):
    """Settings for fine-tuning all weights: few epochs and a strong weight decay."""

    epochs: int = Field(6, ge=0, description="epochs on the images of task 1")
    batch_size: int = Field(128, ge=1)
    weight_decay: float = Field(0.05, ge=0)


class VptSettings(FirstSessionSettings):
    """Settings for visual prompts, which are initialised with zeros."""

    length: int = Field(5, ge=1, description="prompt tokens (public ImageNet-R configs: 30)")


@register("aper-finetune")
class AdamFinetune(Adam):
    """ADAM whose copy is fully fine-tuned."""

    name: ClassVar[str] = "adam-finetune"
    title: ClassVar[str] = "ADAM-finetune"
    tuning: ClassVar[str] = "full"
    idea: ClassVar[str] = "PTM beside a copy fine-tuned on task 1; prototypes on both, one cosine"
    Settings = FullSettings


@register("aper-vpt-shallow")
class AdamVptShallow(Adam):
    """ADAM with prompts in the first block."""

    name: ClassVar[str] = "adam-vpt-shallow"
    title: ClassVar[str] = "ADAM-vpt-shallow"
    tuning: ClassVar[str] = "vpt-shallow"
    idea: ClassVar[str] = "PTM beside prompts tuned on task 1; prototypes on both, one cosine"
    Settings = VptSettings
    shaped_by = ("length",)


@register("aper-vpt-deep")
class AdamVptDeep(Adam):
    """ADAM with new prompts in every block; the outputs of the prompts are discarded."""

    name: ClassVar[str] = "adam-vpt-deep"
    title: ClassVar[str] = "ADAM-vpt-deep"
    tuning: ClassVar[str] = "vpt-deep"
    idea: ClassVar[str] = "PTM beside prompts in every block, tuned on task 1; prototypes on both, one cosine"
    Settings = VptSettings
    shaped_by = ("length",)


@register("aper-ssf")
class AdamSsf(Adam):
    """ADAM with a scale and a shift after every frozen layer."""

    name: ClassVar[str] = "adam-ssf"
    title: ClassVar[str] = "ADAM-ssf"
    tuning: ClassVar[str] = "ssf"
    idea: ClassVar[str] = "PTM beside scales and shifts tuned on task 1; prototypes on both, one cosine"


@register("aper-adapter")
class AdamAdapter(Adam):
    """ADAM with an adapter parallel to the MLP of every block."""

    name: ClassVar[str] = "adam-adapter"
    title: ClassVar[str] = "ADAM-adapter"
    tuning: ClassVar[str] = "adapter"
    idea: ClassVar[str] = "PTM beside an adapter tuned on task 1; prototypes on both, one cosine"
    Settings = AdapterSettings
    shaped_by = ("rank", "scale", "dropout")
