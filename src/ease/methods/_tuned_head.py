"""How a tuning learns a task: with a head that is discarded afterwards."""

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
from ease.training.fit import Training, VisitingOrder

COLLAPSED = 0.1
"""A training has collapsed if the learned scale of its head fell below this share of its initial value."""
RETRY_CLIP = 1.0
"""Maximum gradient norm of the second attempt."""


class TunedHead(nn.Module):
    """The module that is trained: a tuning and a head. The frozen backbone between them is not part of its state.

    Args:
        backbone: The frozen backbone.
        tuning: The tuning to train.
        head: The head to train.
    """

    def __init__(self, backbone: Backbone, tuning: Tuning, head: nn.Module) -> None:
        super().__init__()
        self.tuning = tuning
        self.head = head
        self._frozen = (backbone,)  # in a tuple, so that it is not registered as a submodule

    def forward(self, pixels: Tensor) -> Tensor:
        """[N, 3, s, s] -> [N, classes]."""
        return self.head(self._frozen[0].forward(pixels, self.tuning))

    def known_by(self, loss: str) -> dict[str, Any]:
        """What decides the result of a training besides the tensors; see `Engine.fit`."""
        return {"loss": loss, "tuning": [self.tuning.kind, self.tuning.config()]}


def fit_task(
    engine: Engine,
    module: TunedHead,
    task: Task,
    training: Training,
    *,
    phase: str = "train",
    order: VisitingOrder | None = None,
) -> float:
    """Train a module to separate the classes of a task by cross-entropy.

    Returns:
        The mean loss of the last epoch; NaN without epochs.
    """
    first = task.classes.start

    def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels - first)

    losses = engine.fit(
        module,
        cross_entropy,
        task.train,
        training,
        task=task.index,
        phase=phase,
        order=order,
        known_by=module.known_by("cross-entropy"),
    )
    return losses[-1] if losses else math.nan


def train_tuning(engine: Engine, new: Callable[[], TunedHead], task: Task, training: Training) -> Tuning:
    """Train a tuning together with its cosine head.

    Early steps at a high learning rate can push the head's scale to zero or below, from where it does not recover. A
    training that collapsed in this way is retried once at half the learning rate with gradient clipping, and a note
    says so.

    Args:
        engine: Runs the training.
        new: Creates the untrained tuning and its head; called again for the second attempt.
        task: The task to train on.
        training: Epochs, learning rate, optimizer and so on.

    Returns:
        The trained tuning.
    """
    module = new()
    start = _scale(module)
    loss = fit_task(engine, module, task, training)
    if _scale(module) < COLLAPSED * start:
        module = new()
        clip = min(training.clip or RETRY_CLIP, RETRY_CLIP)
        retry = training.model_copy(update={"clip": clip, "lr": training.lr / 2})
        again = fit_task(engine, module, task, retry, phase="again")
        engine.report(
            f"task {task.index + 1}: the training collapsed (loss {loss:.3g}) and was retried once at half the "
            f"learning rate with gradient clipping (loss {again:.3g})"
            + (f"; --set clip={RETRY_CLIP:g} may avoid this" if training.clip is None else "")
        )
    return module.tuning


def _scale(module: TunedHead) -> float:
    assert isinstance(module.head, CosineHead)
    return float(module.head.sigma.detach())
