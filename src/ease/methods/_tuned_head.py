"""How a tuning learns a task: with a head that is thrown away, and once more if the training collapsed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from ease.backbone import Backbone, Tuning
from ease.heads import CosineHead
from ease.streams import Task
from ease.training.engine import Engine
from ease.training.fit import Order, Training

COLLAPSED = 0.1
"""A training whose head has lost all but this share of its scale has collapsed,"""
CALM = 1.0
"""and is repeated with gradients of at most this norm."""


class TunedHead(nn.Module):
    """What trains: a tuning and a head. The frozen backbone runs in between but is no part of the state.

    Args:
        backbone: frozen.
        tuning: trained.
        head: trained.
        drop_patches: share of the patches that each image loses while training.
    """

    def __init__(
        self, backbone: Backbone, tuning: Tuning, head: nn.Module, drop_patches: float = 0.0
    ) -> None:
        super().__init__()
        self.tuning = tuning
        self.head = head
        self.drop_patches = drop_patches
        self._frozen = (backbone,)  # in a tuple, so that it is not registered

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, s, s] -> [N, classes]."""
        dropped = self.drop_patches if self.training else 0.0
        return self.head(self._frozen[0].forward(pixels, self.tuning, drop_patches=dropped))

    def known_by(self, loss: str) -> dict[str, Any]:
        """What decides the result of training it besides its tensors, for `Engine.fit`."""
        known = {"loss": loss, "tuning": [self.tuning.kind, self.tuning.config()]}
        return known | ({"drop_patches": self.drop_patches} if self.drop_patches else {})


def fit_task(
    engine: Engine,
    module: TunedHead,
    task: Task,
    training: Training,
    *,
    phase: str = "train",
    hardest: float = 1.0,
    order: Order | None = None,
) -> float:
    """Tell the task's classes from each other; labels are local to it. The last epoch's mean loss."""
    first = task.classes.start

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels - first, reduction="mean" if hardest == 1 else "none")

    losses = engine.fit(
        module,
        cross_entropy,
        task.train,
        training,
        task=task.index,
        phase=phase,
        order=order,
        hardest=hardest,
        known_by=module.known_by("cross-entropy"),
    )
    return losses[-1] if losses else math.nan


def tuned_for(
    engine: Engine, new: Callable[[], TunedHead], task: Task, training: Training, *, hardest: float = 1.0
) -> Tuning:
    """The tuning of `new()`, trained with its cosine head. What collapsed is trained once more, in calm, and told.

    Early steps at a high rate can take the head's scale to zero and below, from where it does not come back.
    """
    module = new()
    start = _scale(module)
    loss = fit_task(engine, module, task, training, hardest=hardest)
    if _scale(module) < COLLAPSED * start:
        module = new()
        calmer = training.model_copy(update={"clip": min(training.clip or CALM, CALM), "lr": training.lr / 2})
        again = fit_task(engine, module, task, calmer, phase="again", hardest=hardest)
        engine.tell(
            f"task {task.index + 1}: the training collapsed (loss {loss:.3g}) and was repeated at half the rate "
            f"with clipped gradients (loss {again:.3g})"
            + (f": --set clip={CALM:g} may spare you that" if training.clip is None else "")
        )
    return module.tuning


def _scale(module: TunedHead) -> float:
    assert isinstance(module.head, CosineHead)
    return float(module.head.sigma.detach())
