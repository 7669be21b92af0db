"""Anytime inference: scores from fewer passes than there are subspaces."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

SubspacePass = Callable[[int, Tensor], Tensor]
"""Maps a column and the positions [n] of images to their similarity [n, C] to all prototypes of that column.

It costs one pass through the backbone per image."""

BEHIND = 1e-3
"""Distance in score between the last class whose own subspace was visited and the first one whose was not."""


def within_budget(run_pass: SubspacePass, images: int, own: Tensor, weights: Tensor, budget: int) -> Tensor:
    """Eq. 12 over `budget` subspaces per image, chosen one after the other.

    Every image starts in the first column, where all classes have prototypes. The mean similarity to each class over
    the visited subspaces then determines the most likely class whose own subspace was not visited yet, and that
    subspace is visited next. At the end, a class whose own subspace was visited is scored as in the full sum, with the
    mean over the visited subspaces in place of the mean over all others. The remaining classes are ranked behind, in
    the order of their mean similarity. With a single pass the scores are plain similarities.

    Args:
        run_pass: Computes one pass.
        images: Number of images N.
        own: The column of each class's own subspace, [C].
        weights: The weight of each column for each class, [S, C].
        budget: Columns per image, at least 1.

    Returns:
        Logits [N, C].
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
            each[column, here] = run_pass(column, here)
            seen[column, here] = True
        evidence = each.sum(dim=0) / seen.sum(dim=0)[:, None]
        candidates = torch.where(seen[own].mT, -torch.inf, evidence)
        best = candidates.max(dim=1)
        following, going = own[best.indices], best.values > -torch.inf
    if budget == 1:
        return evidence
    return _behind(_scores(each, seen, is_own, weights), evidence, seen[own].mT)


def _scores(each: Tensor, seen: Tensor, is_own: Tensor, weights: Tensor) -> Tensor:
    """The weighted sum over visited columns, [N, C], extrapolated to the columns that were not visited."""
    counted = seen.float()
    others = weights.where(~is_own, 0.0)
    visited = torch.einsum("sn,sc->nc", counted, others)
    whole = others.sum(dim=0)
    share = torch.where(visited > 0, whole / visited.clamp(min=torch.finfo().tiny), 0.0)
    rest = torch.einsum("snc,sc->nc", each, others) * share
    return torch.einsum("snc,sc->nc", each, weights.where(is_own, 0.0)) + rest


def _behind(scores: Tensor, evidence: Tensor, visited_own: Tensor) -> Tensor:
    """Rank the classes whose own subspace was not visited behind the last one whose was."""
    last = scores.where(visited_own, torch.inf).min(dim=1, keepdim=True).values
    last = last.where(last < torch.inf, 0.0)  # no class's own subspace was visited
    candidates = evidence.where(~visited_own, -torch.inf)
    first = candidates.max(dim=1, keepdim=True).values
    return torch.where(visited_own, scores, last - BEHIND - (first - evidence))
