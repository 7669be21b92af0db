"""How far old class means have moved, estimated from new images."""

from __future__ import annotations

import torch
from torch import Tensor


def drift(before: Tensor, after: Tensor, prototypes: Tensor, sigma: float, floor: float = 0.0) -> Tensor:
    """Estimate how far each prototype has moved, from images near it (SDC, SSIAT).

    `w_ic = exp(-|before_i - p_c|^2 / 2 sigma^2) + floor`, and the drift of c is the mean of `after_i - before_i` under
    these weights.

    Args:
        before: Features of the new task's images before the task was learned, [N, d].
        after: Features of the same images afterwards, [N, d].
        prototypes: Prototypes of the old classes, in the space of `before`, [C, d].
        sigma: Width of the neighbourhood of a prototype.
        floor: Weight of an image that is far away. Without one, weights are normalised in the log domain, because they
            would all be 0 if all images were far away.

    Returns:
        The drift of each prototype, [C, d].
    """
    return (_weights(before, prototypes, sigma, floor) @ (after - before).double()).float()


def unpaired_drift(
    before: Tensor, after: Tensor, prototypes: Tensor, sigma: float, floor: float = 0.0
) -> Tensor:
    """The drift as SSIAT's released code estimates it: features before and after are not of the same images.

    There, both come from loaders that shuffle, so that an image's weight meets the feature of another image. What this
    gives on average over the shuffles is `mean_i(after_i) - sum_i w_ic before_i / sum_i w_ic`; it equals `drift` only
    if all weights are the same. Arguments and result are those of `drift`.
    """
    weights = _weights(before, prototypes, sigma, floor)
    return (after.double().mean(dim=0) - weights @ before.double()).float()


def _weights(before: Tensor, prototypes: Tensor, sigma: float, floor: float) -> Tensor:
    """The weights [C, N] of the images, which sum to 1 for each prototype."""
    logs = -torch.cdist(prototypes.double(), before.double()).square() / (2 * sigma**2)
    if floor == 0:
        return logs.softmax(dim=1)
    weights = logs.exp() + floor
    return weights / weights.sum(dim=1, keepdim=True)
