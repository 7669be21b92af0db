"""EASE in fewer bytes and passes: narrower numbers, thinner adapters, fewer subspaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ease.backbone import Tuning
from ease.errors import EaseError
from ease.heads import PrototypeBank
from ease.heads.reduction import PTM, closeness, regrouped
from ease.methods._compaction import Compaction, twin
from ease.storage.precision import Packed
from ease.tuning import Adapter
from ease.tuning.adapter import averaged

if TYPE_CHECKING:
    from ease.methods.ease.method import Ease


def compacted_ease(learner: Ease, compaction: Compaction) -> Ease:
    """The learner that comes out; the one given stays as it is."""
    if compaction.max_subspaces is not None:
        learner = fewer(learner, compaction.max_subspaces, compaction.how or "drop")
    return narrower(learner, compaction.storage, compaction.energy)


def narrower(learner: Ease, storage: str | None = None, energy: float | None = None) -> Ease:
    """The same subspaces and prototypes with fewer digits and thinner matrices."""
    if energy is not None:
        strange = {tuning.kind for tuning in learner.tunings} - {Adapter.kind}
        if strange:
            raise EaseError(
                f"low rank is for the matrices of adapters, and this model has '{min(strange)}': leave it out"
            )
    subspaces = []
    for tuning, packed in zip(learner.tunings, learner.packed, strict=True):
        new = packed.repacked(storage, energy)
        subspaces.append((tuning, packed) if new is packed else (twin(tuning, learner.backbone, new), new))
    storages, states = {}, []
    for task in range(learner.bank.tasks):
        packed = Packed(learner.bank.state(task)).repacked(storage or learner.storages.get(task, "fp32"))
        storages[task] = packed.storage
        states.append({name: value.clone() for name, value in packed.unpacked().items()})
    return learner.remade(PrototypeBank.of_states(states), subspaces, storages)


def fewer(learner: Ease, most: int, how: str) -> Ease:
    """The learner with at most so many subspaces in use; those that no class needs any more go in any case.

    `drop` keeps the oldest: the older a subspace, the more classes have a real prototype there, and in the first of all
    every class has. A task that loses its own takes one of them as its own.
    """
    columns = learner.columns()
    learned = [column for column in columns if column != PTM]
    if len(columns) <= most and len(learner.tunings) == len(learned):
        return learner
    if how == "merge":
        return regroup(learner, most_alike(learner, most))
    return regroup(learner, [[column] for column in learned[: most - len(columns) + len(learned)]])


def most_alike(learner: Ease, most: int) -> list[list[int]]:
    """Subspaces in groups, the two most alike joined first (average linkage)."""
    settings, columns = learner.settings, learner.columns()
    if settings.complement == "none" or settings.diagonal:
        raise EaseError(
            "merging needs prototypes of all classes in all subspaces, which this model does without: drop"
        )
    learned = [column for column in columns if column != PTM]
    adapters = [t for t in learner.tunings if isinstance(t, Adapter)]
    if len(adapters) < len(learner.tunings) or len({adapter.reads for adapter in adapters}) > 1:
        raise EaseError("only adapters that read the same can be merged, and this model has others: drop")
    wanted = most - (len(columns) - len(learned))
    if wanted < 1:
        raise EaseError(
            "one subspace is the pre-trained model, which merges with no adapter: let 2 or more stay, or drop"
        )
    alike = {frozenset(pair): closeness(learner.bank, *pair) for pair in combinations(learned, 2)}

    def linkage(pair: tuple[list[int], list[int]]) -> float:
        return sum(alike[frozenset((a, b))] for a in pair[0] for b in pair[1]) / (len(pair[0]) * len(pair[1]))

    groups = [[column] for column in learned]
    while len(groups) > wanted:
        one, other = max(combinations(groups, 2), key=linkage)
        groups = sorted([group for group in groups if group not in (one, other)] + [sorted(one + other)])
    return groups


def regroup(
    learner: Ease,
    groups: Sequence[Sequence[int]],
    average: Callable[[list[Any]], Tuning] = averaged,
) -> Ease:
    """The learner with one subspace per group, in this order; subspaces in no group are lost.

    Args:
        learner: it stays as it is.
        groups: of subspaces, counted from 1.
        average: makes one tuning of a group's.
    """
    mixes = any(len(group) > 1 for group in groups)
    prototypes = dict(zip(learner.columns(), learner.classifier(), strict=True)) if mixes else {}
    subspaces = []
    for group in groups:
        members = [(learner.tunings[s - 1], learner.packed[s - 1]) for s in group]
        subspaces.append(members[0] if len(members) == 1 else _joined(learner, members, average))
    return learner.remade(regrouped(learner.bank, groups, prototypes), subspaces, learner.storages)


def _joined(
    learner: Ease, members: list[tuple[Tuning, Packed]], average: Callable[[list[Any]], Tuning]
) -> tuple[Tuning, Packed]:
    tuning = average([tuning for tuning, _ in members])
    storages = {packed.storage for _, packed in members}
    packed = Packed(tuning.state_dict()).repacked(storages.pop() if len(storages) == 1 else None)
    return twin(tuning, learner.backbone, packed), packed
