"""A saved EASE model in fewer bytes and passes: narrower numbers, thinner adapters, fewer subspaces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from ease.app.classifier import Classifier
from ease.app.evaluation import evaluate_folder
from ease.backbone import Tuning
from ease.engine import files as durable
from ease.engine.compression import Packed, check_energy, check_storage
from ease.engine.files import FileEntry
from ease.engine.progress import Progress
from ease.engine.store import OWNER, ModelDirectory, model_directory
from ease.errors import EaseError, unknown
from ease.heads import PrototypeBank
from ease.heads.reduction import closeness, regrouped
from ease.methods.base import Learner
from ease.methods.ease import PTM, Ease, unpacked_tuning
from ease.tuning import Adapter
from ease.tuning.adapter import averaged

WAYS = ("drop", "merge")


@dataclass(frozen=True)
class Compaction:
    """What to do to a model. What is None is left as it is.

    Attributes:
        storage: `fp32`, `fp16` or `int8`, of subspaces and prototypes.
        energy: share of the squared length of each adapter's matrices that their low-rank factors keep.
        max_subspaces: how many passes a prediction may take; the PTM, where it is in use, is one of them.
        how: `drop` loses the newest subspaces, `merge` averages what adapters add.
    """

    storage: str | None = None
    energy: float | None = None
    max_subspaces: int | None = None
    how: str | None = None

    def __post_init__(self) -> None:
        if self.storage is not None:
            check_storage(self.storage)
        if self.energy is not None:
            object.__setattr__(self, "energy", check_energy(self.energy))
        if self.max_subspaces is not None and self.max_subspaces < 1:
            raise EaseError(
                f"max_subspaces (--max-subspaces) must be 1 or more, not {self.max_subspaces}: without any it is blind"
            )
        if self.how is not None and self.how not in WAYS:
            raise unknown("way to lose subspaces", self.how, WAYS)
        if self.how is not None and self.max_subspaces is None:
            raise EaseError(
                f"to {self.how} subspaces it must know how many may stay: give max_subspaces (--max-subspaces) as well"
            )

    @property
    def asks(self) -> bool:
        """Whether it asks for anything."""
        return (self.storage, self.energy, self.max_subspaces) != (None, None, None)


@dataclass(frozen=True)
class Size:
    """What a model takes.

    Attributes:
        subspace_bytes: of the files of a generation that hold adapters.
        prototype_bytes: of those that hold prototypes.
        subspaces: adapters (or other tunings) in them.
        passes: through the backbone, for one prediction.
        accuracy: percent of the images it was checked on; None without any.
    """

    subspace_bytes: int
    prototype_bytes: int
    subspaces: int
    passes: int
    accuracy: float | None = None


@dataclass(frozen=True)
class Compacted:
    """What compacting a model did.

    Attributes:
        before: the generation that was current.
        after: the new one.
        generation: its number; None if nothing was written.
        previous: the number of the generation that was current.
        changed: False if the model was as asked for already; then nothing is written.
        history_bytes: that files of other generations alone take on disk.
    """

    before: Size
    after: Size
    generation: int | None
    previous: int
    changed: bool
    history_bytes: int


def compact(
    path: Path | str,
    compaction: Compaction,
    *,
    check: Path | str | None = None,
    dry_run: bool = False,
    forget_history: bool = False,
    weights: Path | str | None = None,
    progress: Progress | None = None,
) -> Compacted:
    """Write a smaller form of a saved EASE model as a new generation; `rollback` goes back to the old one.

    Args:
        path: model directory, or a run's folder.
        compaction: what to do.
        check: photos, one folder per class, on which both generations are scored.
        dry_run: only say what would come out.
        forget_history: remove all earlier generations. Until then their files take the disk they always took.
        weights: the backbone's weights, where the manifest alone does not lead to them.
        progress: where to show it.
    """
    if not compaction.asks and not forget_history:
        raise EaseError(
            "nothing to do: give a storage, an energy or how many subspaces may stay (see --help)"
        )
    directory = model_directory(Path(path))
    classifier = Classifier.open(directory.path, weights)
    if not classifier.classes:
        raise EaseError(f"the model in {directory.path} knows no class yet: let it learn some")
    old, seen = _ease(classifier.learner), classifier.generation
    new = compacted(old, compaction)
    before, after = entries(old), entries(new)
    changed = before != after
    rates = _rates(classifier, new if changed else None, check, progress)
    generation = None
    if not dry_run and (changed or forget_history):
        generation = _write(classifier, new, seen, changed, forget_history)
    return Compacted(
        size_of(old, before, rates[0]),
        size_of(new, after, rates[1]),
        generation,
        seen,
        changed,
        history_bytes(directory),
    )


def _write(classifier: Classifier, new: Ease, seen: int, changed: bool, forget_history: bool) -> int | None:
    def change(learner: Learner) -> Learner:
        if classifier.generation != seen:
            raise EaseError(
                f"another process wrote generation {classifier.generation} of {classifier.path} meanwhile: run again"
            )
        return new

    if changed:
        classifier.rework(change, forget_history=forget_history)
        return classifier.generation
    ModelDirectory(classifier.path).clear_history()
    return None


def _rates(
    classifier: Classifier, new: Ease | None, check: Path | str | None, progress: Progress | None
) -> tuple[float | None, float | None]:
    if check is None:
        return None, None
    before = evaluate_folder(classifier, check, progress=progress)[0].accuracy
    if new is None:
        return before, before
    directory = ModelDirectory(classifier.path)
    trial = Classifier(directory, new.engine, new, directory.manifest())
    return before, evaluate_folder(trial, check, progress=progress)[0].accuracy


# --- sizes ----------------------------------------------------------------------------------------


def entries(learner: Learner) -> dict[str, FileEntry]:
    """Size and checksum of the files that a learner would be saved in."""
    files, _ = learner.state()
    return {
        name: durable.entry_of(durable.encode_tensors(tensors, {OWNER: name}))
        for name, tensors in files.items()
    }


def size_of(learner: Ease, files: dict[str, FileEntry] | None = None, accuracy: float | None = None) -> Size:
    """What a learner takes; its files, if they are known already."""
    files = entries(learner) if files is None else files

    def total(kind: str) -> int:
        return sum(entry.size for name, entry in files.items() if name.startswith(kind))

    passes = learner.passes_per_image()
    return Size(total("subspaces/"), total("prototypes/"), len(learner.tunings), passes, accuracy)


def history_bytes(directory: ModelDirectory) -> int:
    """What the files of all generations but the current one take beside the current one's own."""
    current = directory.manifest()
    mine = {entry["path"] for entry in current["files"].values()}
    sizes: dict[str, int] = {}
    for number in directory.generations():
        if number == current["generation"]:
            continue
        with suppress(EaseError):  # an old one that is damaged stands in nobody's way
            sizes |= {entry["path"]: entry["size"] for entry in directory.manifest(number)["files"].values()}
    return sum(size for path, size in sizes.items() if path not in mine)


# --- the learner ----------------------------------------------------------------------------------


def compacted(learner: Learner, compaction: Compaction) -> Ease:
    """The learner that comes out; the one given stays as it is."""
    learner = _ease(learner)
    if compaction.max_subspaces is not None:
        learner = fewer(learner, compaction.max_subspaces, compaction.how or "drop")
    return narrower(learner, compaction.storage, compaction.energy)


def _ease(learner: Learner) -> Ease:
    # A subclass may keep images beside its prototypes, which would no longer belong together.
    if type(learner) is not Ease:
        raise EaseError(f"a model of '{learner.name}' cannot be compacted: only those of 'ease' can")
    return learner


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
        subspaces.append((tuning, packed) if new is packed else (_twin(learner, tuning, new), new))
    storages, states = {}, []
    for task in range(learner.bank.tasks):
        packed = Packed(learner.bank.state(task)).repacked(storage or learner.storages.get(task, "fp32"))
        storages[task] = packed.storage
        states.append({name: value.clone() for name, value in packed.unpacked().items()})
    return learner.remade(PrototypeBank.of_states(states), subspaces, storages)


def _twin(learner: Ease, tuning: Tuning, packed: Packed) -> Tuning:
    return unpacked_tuning(tuning.kind, learner.backbone.shape, tuning.config(), packed)


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
    return _twin(learner, tuning, packed), packed
