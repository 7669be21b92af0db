"""MOS (Sun et al., AAAI 2025): adapters that are merged while they are trained, and retrieved by their own answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor
from torch.func import functional_call

from ease.backbone import Departure, Tuning
from ease.heads import class_means
from ease.heads.linear import GrowingLinear
from ease.heads.losses import cross_entropy_of_new
from ease.methods._adapters import AdapterPerTask, AdapterPerTaskSettings
from ease.methods._base import Subspace
from ease.methods._frozen import FrozenTuning
from ease.methods._registry import register
from ease.methods._tuned_head import TunedHead
from ease.streams import Task
from ease.training.randomness import generator
from ease.tuning import Adapter
from ease.tuning.merging import mean_weights, move_towards, paired

PROTOTYPES = "prototypes"


class MosSettings(AdapterPerTaskSettings):
    """Settings of the released code for CIFAR-100."""

    lr: float = Field(0.03, gt=0, description="initial learning rate of the adapter")
    head_rate: float = Field(0.1, gt=0, description="learning rate of the head, as a share of the adapter's")
    merge: float = Field(
        0.1, ge=0, lt=1, description="share of the way to the mean of earlier adapters that a merge moves"
    )
    apart: float = Field(0.1, ge=0, description="weight of the term that keeps features apart")
    apart_temperature: float = Field(0.8, gt=0, description="products of features are divided by this")
    rounds: int = Field(4, ge=1, description="adapters that are tried at most to answer one image")
    align_epochs: int = Field(30, ge=0)
    align_lr: float = Field(0.005, gt=0)
    align_draws: int = Field(240, ge=1)


@register()
class Mos(AdapterPerTask):
    """`softmax(W f_j + b) + softmax((t + 1) cos(f_0, p))`: f_j under the adapter of the task that f_j answers with.

    In the text, an adapter is merged after each step of its training and stays as it was trained. In the released
    code, the merge is repeated in every block of every pass, those without training included, so that after its
    training an adapter ends at the mean of the earlier ones.

    Attributes:
        averaged: The adapters that a prediction uses, in the released code.
        prototypes: Mean feature of each class under the first adapter, [C, d].
    """

    name: ClassVar[str] = "mos"
    title: ClassVar[str] = "MOS"
    idea: ClassVar[str] = "an adapter per task, pulled to earlier ones; retrieved by the answer it leads to"
    Settings = MosSettings

    def __init__(self, engine: Any, settings: Any) -> None:
        super().__init__(engine, settings)
        self.averaged: list[FrozenTuning] = []
        self.prototypes = torch.zeros(0, self.backbone.dim)

    def new_head(self) -> GrowingLinear:
        return GrowingLinear(self.backbone.dim)

    # --- learning ---------------------------------------------------------------------------------

    def start(self, task: int) -> Adapter:
        """Adapters are never initialised again: the next one begins where the last one ended."""
        return self.new_adapter(self.own(task - 1).state_dict() if task else None)

    def train(self, adapter: Adapter, task: Task) -> None:
        """Cross-entropy among the new classes; features of the batch keep apart from each other and from old means."""
        settings, first, means = self.settings, task.classes.start, self.gaussians.means
        self.linear.grow(len(task.classes), generator(self.engine.seed, "init", task.index))
        pulled = None
        if task.index > 0:
            pulled = Pulled(adapter, mean_weights(self.trained_states()), settings.merge)
        repeats = settings.variant == "released"
        module = MosNetwork(self.backbone, pulled if pulled is not None and repeats else adapter, self.linear)

        def loss(outputs: tuple[Tensor, Tensor], labels: Tensor) -> Tensor:
            logits, features = outputs
            alike = apart(features, means.to(features), settings.apart_temperature)
            return cross_entropy_of_new(logits, labels, first) + settings.apart * alike

        self.fit(
            module,
            loss,
            task.train,
            task,
            rate_factors={"head": settings.head_rate},
            after_step=None if pulled is None else pulled.merge,
        )

    def derive(self) -> None:
        """Released: the adapter of task t is the mean of those of tasks 0 to t - 1; that of tasks 0 and 1 the first."""
        if self.settings.variant == "text":
            return
        states = self.trained_states()
        later = [self.new_adapter(mean_weights(states[:earlier])) for earlier in range(2, len(states))]
        self.averaged = [*self.frozen[:1], *(FrozenTuning.of(adapter, self.backbone) for adapter in later)]

    def column(self, task: int) -> int:
        """Which of the subspaces in use is that of a task."""
        return task if self.settings.variant == "text" else max(0, task - 1)

    def own(self, task: int) -> Tuning:
        used = self.frozen if self.settings.variant == "text" else self.averaged
        return used[self.column(task)].tuning

    def measure(self, task: Task) -> None:
        """The Gaussians are measured under the task's own adapter, the prototypes under the first one."""
        super().measure(task)
        if self.column(task.index) == 0:
            means = self.gaussians.means[task.classes.start :]
        else:
            features = self.engine.features(task.train, [self.own(0)])
            means = class_means(features, torch.from_numpy(task.train.labels), task.classes)[0][0]
        self.prototypes = torch.cat([self.prototypes, means])

    # --- prediction -------------------------------------------------------------------------------

    def in_use(self) -> list[Subspace]:
        used = self.frozen if self.settings.variant == "text" else self.averaged
        return [Subspace(one.tuning, one.hash) for one in used]

    def head(self, features: Tensor) -> Tensor:
        """The probabilities by prototypes under the first adapter, plus those by the head under the retrieved one."""
        cosines = F.normalize(features[0], dim=-1) @ F.normalize(self.prototypes, dim=-1).T.to(
            features.device
        )
        first = (len(self.task_sizes) * cosines).softmax(dim=-1)
        columns = [self.column(task) for task in range(len(self.task_sizes))]
        column_of = torch.tensor(columns).repeat_interleave(torch.tensor(self.task_sizes)).to(features.device)
        retrieved = retrieve(self.scores(features), first.argmax(dim=-1), column_of, self.settings.rounds)
        return retrieved.softmax(dim=-1) + first

    # --- saving -----------------------------------------------------------------------------------

    def measured(self, classes: range) -> dict[str, Tensor]:
        kept = {PROTOTYPES: self.prototypes[classes.start : classes.stop]}
        return {**super().measured(classes), **kept}

    def load_measured(self, parts: list[dict[str, Tensor]]) -> None:
        self.prototypes = torch.cat([part.pop(PROTOTYPES) for part in parts])
        super().load_measured(parts)


def apart(features: Tensor, means: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of `M M^T / temperature` with the identity, M the means [C, d] and the features [N, d].

    It is small if no row is as much like another one as like itself.
    """
    rows = torch.cat([means, features])
    return F.cross_entropy(rows @ rows.T / temperature, torch.arange(len(rows), device=rows.device))


def retrieve(scores: Tensor, answers: Tensor, column_of: Tensor, rounds: int) -> Tensor:
    """Try the adapter of an image's answer, which may change the answer, until it does not lead to another adapter.

    Args:
        scores: Of all classes under each adapter, [S, N, C].
        answers: First answers [N].
        column_of: The adapter of each class, [C].
        rounds: Adapters that are tried at most; the last one counts, whether or not it is a fixed point.

    Returns:
        The scores [N, C] under the adapter that was tried last.
    """
    for _ in range(rounds):
        column = column_of[answers]
        found = scores.gather(0, column[None, :, None].expand(1, *scores.shape[1:]))[0]
        # An adapter that leads to itself is tried again, which changes nothing.
        answers = found.argmax(dim=-1)
    return found


class MosNetwork(TunedHead):
    """The module that is trained. The loss needs the features as well."""

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """[N, 3, s, s] -> (logits [N, classes], features [N, d])."""
        features = self._frozen[0].forward(pixels, self.tuning)
        if isinstance(self.tuning, Pulled) and self.training:
            self.tuning.merge(times=self._frozen[0].shape.depth)
        return self.head(features), features


class Pulled(Tuning):
    """An adapter in training that every block of every pass merges with the mean of earlier ones, all layers at once.

    So the block l, counted from 0, computes with weights that were merged l + 1 times in this pass. A merge is not
    part of the gradient: the gradient of the merged weights is that of the adapter's.

    Args:
        adapter: The adapter in training.
        towards: The mean of the earlier adapters, by name.
        share: Share of the way to it that one merge moves.
    """

    kind: ClassVar[str] = "pulled-adapter"
    departs = Departure.BRANCH

    def __init__(self, adapter: Adapter, towards: Mapping[str, Tensor], share: float) -> None:
        super().__init__()
        self.adapter = adapter
        self._towards, self._share = towards, share

    def merge(self, times: int = 1) -> None:
        """Merge all layers in place."""
        move_towards(paired(self.adapter, self._towards), 1 - (1 - self._share) ** times)

    def branch(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor:
        share = 1 - (1 - self._share) ** (layer + 1)
        merged = {}
        for name, weight in self.adapter.named_parameters():
            if name.split(".")[1] == str(layer):
                value = weight.detach().lerp(self._towards[name].to(weight), share)
                merged[f"adapter.{name}"] = value + (weight - weight.detach())
        return functional_call(self, merged, (layer, stream, normed))

    def forward(self, layer: int, stream: Tensor, normed: Tensor) -> Tensor:
        """The adapter's own branch, with whatever weights it has at the moment."""
        return self.adapter.branch(layer, stream, normed)
