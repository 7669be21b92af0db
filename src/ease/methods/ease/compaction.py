"""Smaller models of EASE: lower precision, low-rank adapters, fewer subspaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ease.errors import EaseError
from ease.heads.prototypes import PTM
from ease.heads.reduction import with_subspaces
from ease.methods._capabilities import Compaction
from ease.tuning import Adapter

if TYPE_CHECKING:
    from ease.methods.ease.method import Ease


def compacted_ease(learner: Ease, compaction: Compaction) -> Ease:
    """Return a smaller learner; the given one is left unchanged."""
    if compaction.max_subspaces is not None:
        learner = with_fewer_subspaces(learner, compaction.max_subspaces)
    return repacked(learner, compaction.storage, compaction.energy)


def repacked(learner: Ease, storage: str | None = None, energy: float | None = None) -> Ease:
    """Return the learner with adapters and prototypes in another precision, or with low-rank adapters."""
    if energy is not None:
        others = {tuning.kind for tuning in learner.tunings} - {Adapter.kind}
        if others:
            raise EaseError(
                f"low rank is for the matrices of adapters, and this model has '{min(others)}': leave it out"
            )
    frozen = [one.repacked(storage, energy, learner.backbone) for one in learner.frozen]
    return learner.with_parts(frozen, learner.bank.repacked(storage))


def with_fewer_subspaces(learner: Ease, most: int) -> Ease:
    """Return the learner with at most `most` subspaces in use; subspaces that no class uses are dropped in any case.

    The oldest subspaces stay: the older a subspace, the more classes have a real prototype in it. A task whose own
    subspace is dropped gets one of the remaining ones as its own.
    """
    columns = learner.columns()
    trained = [column for column in columns if column != PTM]
    if len(columns) <= most and len(learner.frozen) == len(trained):
        return learner
    return keeping(learner, trained[: most - len(columns) + len(trained)])


def keeping(learner: Ease, subspaces: Sequence[int]) -> Ease:
    """Return the learner with only these trained subspaces, counted from 1, in this order."""
    frozen = [learner.frozen[subspace - 1] for subspace in subspaces]
    return learner.with_parts(frozen, with_subspaces(learner.bank, subspaces))
