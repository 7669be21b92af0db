"""Classifier alignment: a head is trained again on features that are drawn from a Gaussian per class.

SLCA introduced it; SSIAT, MOS and TUNA use it with other settings.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from ease.heads.class_gaussians import ClassGaussians, GaussianSettings

SPAN = 0.1
"""The factor of a mean lies within this of 0.9."""


class AlignmentSettings(GaussianSettings):
    """Settings of the alignment. The defaults are those of SLCA's released code."""

    align_epochs: int = Field(5, ge=0, description="epochs of the alignment; 0 leaves it out")
    align_lr: float = Field(0.01, gt=0, description="its initial learning rate")
    align_period: int | None = Field(
        None,
        ge=1,
        description="epochs until the cosine schedule reaches 0, from where it rises again; all if unset",
    )
    align_momentum: float = Field(0.9, ge=0, lt=1)
    align_weight_decay: float = Field(5e-4, ge=0)
    align_draws: int = Field(256, ge=1, description="features drawn per class and epoch, and per batch")
    align_ridge: float = Field(1e-4, ge=0, description="added to the variance of every feature")
    align_means: Literal["plain", "rising", "falling"] = Field(
        "plain", description="factor of a class's mean: 1, or from 0.9 rising (or falling) with its task"
    )
    align_temperature: float | None = Field(
        None, gt=0, description="logits are divided by their norm times this; not at all if unset"
    )
    align_norm: Literal["task-mean", "whole"] = Field(
        "whole", description="the norm of all logits of a feature, or the mean of the norms by task"
    )


def mean_factors(kind: Literal["plain", "rising", "falling"], sizes: Sequence[int]) -> Tensor:
    """The factor [C] of every class's mean: features of old classes have moved, and shorter means allow for that.

    Rising, as in SLCA: `0.9 + 0.1 (t_c + 1) / (t + 1)`, t_c the task of class c and t the newest, so that the newest
    classes have 1. Falling, as in TUNA's released code, where the size of a task has the wrong sign:
    `0.9 - 0.1 t_c / (t + 1)`.

    Example:
        >>> mean_factors("rising", [1, 2])[1:].tolist()
        [1.0, 1.0]
    """
    tasks = torch.arange(len(sizes), dtype=torch.float64).repeat_interleave(torch.tensor(list(sizes)))
    if kind == "plain":
        return torch.ones_like(tasks)
    share = (tasks + 1) / len(sizes) if kind == "rising" else -tasks / len(sizes)
    return 1 - SPAN + SPAN * share


def normalised(logits: Tensor, temperature: float, norm: str, sizes: Sequence[int]) -> Tensor:
    """Divide logits [N, C] by `temperature` times their norm: of all, or the mean over tasks of each task's norm."""
    if norm == "whole":
        length = logits.norm(dim=1, keepdim=True)
    else:
        parts = [part.norm(dim=1, keepdim=True) for part in logits.split(list(sizes), dim=1)]
        length = torch.cat(parts, dim=1).mean(dim=1, keepdim=True)
    return logits / (length + 1e-7) / temperature


def align(
    head: nn.Module,
    gaussians: ClassGaussians,
    settings: Any,
    sizes: Sequence[int],
    random: Callable[[int], torch.Generator],
) -> list[float]:
    """Train a head in place, on the CPU, on drawn features of all classes, by cross-entropy and SGD.

    Every epoch draws the same number of features of every class and visits them in random order.

    Args:
        head: Maps features [N, d] to logits [N, C]. Parameters that require no gradient stay as they are.
        gaussians: The classes to draw from.
        settings: An instance of `AlignmentSettings`.
        sizes: Number of classes of each task.
        random: Source of the random numbers of an epoch.

    Returns:
        The mean loss of each epoch.
    """
    classes, draws = gaussians.classes, settings.align_draws
    weights = [p for p in head.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(
        weights, settings.align_lr, momentum=settings.align_momentum, weight_decay=settings.align_weight_decay
    )
    means = gaussians.means.double() * mean_factors(settings.align_means, sizes)[:, None]
    means = means.float()
    roots = gaussians.roots(settings.align_ridge) if settings.align_epochs else []
    labels = torch.arange(classes).repeat_interleave(draws)
    losses = []
    with torch.enable_grad():
        for epoch in range(settings.align_epochs):
            draw = random(epoch)
            for group in optimizer.param_groups:
                group["lr"] = _rate(settings, epoch)
            drawn = [means[c] + gaussians.draw(c, draws, roots[c], draw) for c in range(classes)]
            features, order = torch.cat(drawn), torch.randperm(len(labels), generator=draw)
            summed = 0.0
            for batch in order.split(draws):
                logits = head(features[batch])
                if settings.align_temperature is not None:
                    logits = normalised(logits, settings.align_temperature, settings.align_norm, sizes)
                loss = F.cross_entropy(logits, labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                summed += float(loss.detach()) * len(batch)
            losses.append(summed / len(labels))
    for weight in weights:
        weight.grad = None
    return losses


def _rate(settings: Any, epoch: int) -> float:
    period = settings.align_period or settings.align_epochs
    return settings.align_lr * 0.5 * (1 + math.cos(math.pi * epoch / period))
