"""Scores from fewer passes than there are subspaces: each image goes only where it is likely to belong."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Look = Callable[[int, Tensor], Tensor]
"""(column, positions [n] of images) -> their similarity [n, C] to all prototypes of that column. One pass each."""

BEHIND = 1e-3
"""How far classes that were not looked at stand behind those that were."""


def within_budget(look: Look, images: int, own: Tensor, weights: Tensor, budget: int) -> Tensor:
    """Eq. 12 over `budget` subspaces per image, chosen one after the other.

    Every image starts in the first column, where all classes have prototypes. What was seen so far (the mean
    similarity to each class) says which class is the likeliest among those whose own subspace was not visited yet;
    there it goes next. In the end a class whose own subspace was visited is scored as in the full sum, the mean over
    visited subspaces standing for the mean over all others. The remaining classes stand behind, in the order of what
    was seen of them. A single pass favours nobody's own subspace: it is plain similarity.

    Args:
        look: one pass.
        images: how many, N.
        own: [C] the column of each class's own subspace.
        weights: [S, C] how much a column counts for a class.
        budget: columns per image, at least 1.

    Returns:
        logits [N, C].
    """
    columns, classes = weights.shape
    is_own = own[None, :] == torch.arange(columns)[:, None]
    each = torch.zeros(columns, images, classes)
    seen = torch.zeros(columns, images, dtype=torch.bool)
    following = torch.zeros(images, dtype=torch.long)
    going = torch.ones(images, dtype=torch.bool)
    for _ in range(min(budget, columns)):
        for column in following[going].unique().tolist():
            here = torch.nonzero(going & (following == column))[:, 0]
            each[column, here] = look(column, here)
            seen[column, here] = True
        evidence = each.sum(dim=0) / seen.sum(dim=0)[:, None]
        hopes = torch.where(seen[own].mT, -torch.inf, evidence)
        best = hopes.max(dim=1)
        following, going = own[best.indices], best.values > -torch.inf
    if budget == 1:
        return evidence
    return _behind(_scores(each, seen, is_own, weights), evidence, seen[own].mT)


def _scores(each: Tensor, seen: Tensor, is_own: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over visited columns [N, C], as if those not visited were like the visited ones."""
    counted = seen.float()
    others = weights.where(~is_own, 0.0)
    visited = torch.einsum("sn,sc->nc", counted, others)
    whole = others.sum(dim=0)
    share = torch.where(visited > 0, whole / visited.clamp(min=torch.finfo().tiny), 0.0)
    rest = torch.einsum("snc,sc->nc", each, others) * share
    return torch.einsum("snc,sc->nc", each, weights.where(is_own, 0.0)) + rest


def _behind(scores: Tensor, evidence: Tensor, looked_at: Tensor) -> Tensor:
    """Classes that were not looked at, put behind the last one that was."""
    last = scores.where(looked_at, torch.inf).min(dim=1, keepdim=True).values
    last = last.where(last < torch.inf, 0.0)  # nothing was looked at
    hopes = evidence.where(~looked_at, -torch.inf)
    first = hopes.max(dim=1, keepdim=True).values
    return torch.where(looked_at, scores, last - BEHIND - (first - evidence))
