"""TUNA (Wang et al., ICCV 2025): the most certain adapter per image, and one adapter that is fused from all."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor

from ease.backbone import Tuning
from ease.heads.linear import GrowingCosine
from ease.heads.losses import cosine_margin
from ease.methods._adapters import AdapterPerTask, AdapterPerTaskSettings
from ease.methods._base import Subspace
from ease.methods._registry import register
from ease.methods._tuned_head import TunedHead
from ease.streams import Task
from ease.training.randomness import generator
from ease.tuning import Adapter
from ease.tuning.merging import sign_and_largest


class TunaSettings(AdapterPerTaskSettings):
    """Settings of the released code for CIFAR-100."""

    epochs: int = Field(15, ge=0)
    batch_size: int = Field(16, ge=1)
    cosine_scale: float = Field(20.0, gt=0, description="factor of the cosines in the logits")
    margin: float = Field(
        0.0, ge=0, lt=1, description="subtracted from the cosine of the right class in training"
    )
    orthogonality: float = Field(
        1e-3, ge=0, description="weight of the term that keeps adapters apart, times e^-(t+1) at task t"
    )
    align_epochs: int = Field(30, ge=0)
    align_lr: float = Field(0.005, gt=0)
    align_period: int | None = Field(5, ge=1, description="as for others; unset if `variant` is `text`")
    align_draws: int = Field(80, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _the_text_has_one_period(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("variant") == "text":
            return {"align_period": None, **values}
        return values


@register()
class Tuna(AdapterPerTask):
    """`p(f_i) + p(f_u)`, p the softmax of `s cos(f, w)`: adapter i has the least entropy, u is the universal one.

    In the text every task has a new adapter, whose up-projections are kept orthogonal to those of the earlier ones,
    and the universal adapter is fused from all. In the released code an adapter goes on from the one before, the term
    that keeps adapters apart is practically zero, and the universal adapter is the last one: the fused one is made and
    never used.

    Attributes:
        fused: The universal adapter of the text, if there is more than one task.
    """

    name: ClassVar[str] = "tuna"
    title: ClassVar[str] = "TUNA"
    idea: ClassVar[str] = "an adapter per task; the most certain one's answer plus a universal adapter's"
    Settings = TunaSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.fused: Tuning | None = None

    def new_head(self) -> GrowingCosine:
        return GrowingCosine(self.backbone.dim, self.settings.cosine_scale)

    # --- learning ---------------------------------------------------------------------------------

    def start(self, task: int) -> Adapter:
        goes_on = self.settings.variant == "released" and task > 0
        return self.new_adapter(self.own(task - 1).state_dict() if goes_on else None, task)

    def train(self, adapter: Adapter, task: Task) -> None:
        """Cross-entropy among the new classes with a margin, and adapters that are kept apart."""
        settings, first = self.settings, task.classes.start
        rows = self.new_head()
        rows.grow(len(task.classes), generator(self.engine.seed, "init", task.index))
        overlap = overlap_of_directions if settings.variant == "text" else overlap_of_means
        earlier = [up_projections(one.tuning) for one in self.frozen]
        weight = settings.orthogonality * math.exp(-(task.index + 1))

        def loss(logits: Tensor, labels: Tensor) -> Tensor:
            value = cosine_margin(logits, labels - first, settings.cosine_scale, settings.margin)
            if not weight or not earlier:
                return value
            return value + weight * overlap(up_projections(adapter), earlier)

        self.fit(TunedHead(self.backbone, adapter, rows), loss, task.train, task)
        self.linear.append(rows)  # type: ignore[arg-type]

    def derive(self) -> None:
        self.fused = None
        if self.settings.variant == "text" and len(self.frozen) > 1:
            fused = self.new_adapter(sign_and_largest(self.trained_states()))
            self.fused = fused.to(self.backbone.device).freeze()

    def own(self, task: int) -> Tuning:
        return self.frozen[task].tuning

    # --- prediction -------------------------------------------------------------------------------

    def in_use(self) -> list[Subspace]:
        """One per task and the fused adapter, which the next task changes."""
        fused = [] if self.fused is None else [Subspace(self.fused, None)]
        return [*(Subspace(one.tuning, one.hash) for one in self.frozen), *fused]

    def head(self, features: Tensor) -> Tensor:
        """The universal adapter is the last of the subspaces: the fused one, or in the released code the newest."""
        scores = self.scores(features)
        universal = scores[-1].softmax(dim=-1)
        return most_certain(scores[: len(self.task_sizes)]) + universal


def most_certain(scores: Tensor) -> Tensor:
    """The probabilities [N, C] under the adapter with the least entropy, out of scores [S, N, C]."""
    logs = scores.log_softmax(dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1)
    chosen = entropy.argmin(dim=0)
    return logs.exp().gather(0, chosen[None, :, None].expand(1, *scores.shape[1:]))[0]


def up_projections(tuning: Tuning) -> Tensor:
    """The up-projections of all blocks, [L, d, r]."""
    assert isinstance(tuning, Adapter)
    return torch.stack([up.weight for up in tuning.up])  # type: ignore[misc]


def overlap_of_directions(new: Tensor, earlier: list[Tensor]) -> Tensor:
    """The text: sum over earlier adapters i of `|U U_i^T|_1`, the sum of all magnitudes, as a mean over blocks."""
    return torch.stack([(new @ old.mT).abs().sum(dim=(1, 2)).mean() for old in earlier]).sum()


def overlap_of_means(new: Tensor, earlier: list[Tensor]) -> Tensor:
    """The released code: `|mean(V V_i^T)|` in place of the norm, V being U with rows of length 1.

    The mean of all products of rows is the product of the mean rows, which needs no d x d matrix.
    """

    def mean_row(up: Tensor) -> Tensor:
        return F.normalize(up, dim=-1).mean(dim=1)

    mine = mean_row(new)
    return torch.stack([(mine * mean_row(old)).sum(dim=-1).abs().mean() for old in earlier]).sum()
