"""Make a saved model smaller, as a new generation. The method decides how (see `Compactable`)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ease.app.classifier import Classifier
from ease.app.evaluation import evaluate_folder
from ease.errors import EaseError
from ease.methods import Compaction, Learner, compactable
from ease.progress import Progress
from ease.storage.contents import FileEntry, encode_tensors, entry_of
from ease.storage.model_directory import OWNER, ModelDirectory, model_directory


@dataclass(frozen=True)
class Size:
    """The size of a model.

    Attributes:
        subspace_bytes: Bytes of the files with adapters or other tunings.
        prototype_bytes: Bytes of the files with prototypes.
        subspaces: Number of adapters or other tunings.
        passes: Passes through the backbone for one prediction.
        accuracy: Percentage of the check images that are recognised; None without any.
        statistics_bytes: Bytes of the files with other state of the method; for strata, the covariance.
    """

    subspace_bytes: int
    prototype_bytes: int
    subspaces: int
    passes: int
    accuracy: float | None = None
    statistics_bytes: int = 0


@dataclass(frozen=True)
class Compacted:
    """The result of `compact`.

    Attributes:
        before: Size of the generation that was current.
        after: Size of the compacted model.
        generation: Number of the new generation; None if nothing was written.
        previous: Number of the generation that was current.
        changed: False if the model was already as small as requested; then nothing is written.
        history_bytes: Bytes on disk of files that only other generations use.
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
    """Write a smaller form of a saved model as a new generation; `rollback` restores the old one.

    Args:
        path: Model directory, or the folder of a run.
        compaction: How to make it smaller.
        check: Photos, one folder per class, on which both generations are evaluated.
        dry_run: Compute the result but write nothing.
        forget_history: Remove all earlier generations. Until then their files stay on disk.
        weights: Weights file of the backbone, if it is neither embedded nor on the hub.
        progress: Where to show progress.

    Returns:
        The sizes before and after.
    """
    if not compaction.asks and not forget_history:
        raise EaseError("nothing to do: give --storage, --energy or --max-subspaces (see --help)")
    directory = model_directory(Path(path))
    classifier = Classifier.open(directory.path, weights)
    if not classifier.classes:
        raise EaseError(f"the model in {directory.path} knows no class yet: teach it some with learn")
    old, seen = classifier.learner, classifier.generation
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


def _write(
    classifier: Classifier, new: Learner, seen: int, changed: bool, forget_history: bool
) -> int | None:
    def change(learner: Learner) -> Learner:
        if classifier.generation != seen:
            raise EaseError(
                f"another process wrote generation {classifier.generation} of {classifier.path} meanwhile: try again"
            )
        return new

    if changed:
        classifier.replace_learner(change, forget_history=forget_history)
        return classifier.generation
    ModelDirectory(classifier.path).clear_history()
    return None


def _rates(
    classifier: Classifier, new: Learner | None, check: Path | str | None, progress: Progress | None
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
    """Size and checksum of the files that a learner would be saved to."""
    files, _ = learner.state()
    return {name: entry_of(encode_tensors(tensors, {OWNER: name})) for name, tensors in files.items()}


def size_of(
    learner: Learner, files: dict[str, FileEntry] | None = None, accuracy: float | None = None
) -> Size:
    """The size of a learner; `files` are its files, if they are known already."""
    files = entries(learner) if files is None else files

    def sizes(kind: str) -> list[int]:
        return [entry.size for name, entry in files.items() if name.startswith(kind)]

    subspaces, prototypes, rest = (sizes(kind) for kind in ("subspaces/", "prototypes/", "learner/"))
    return Size(
        subspace_bytes=sum(subspaces),
        prototype_bytes=sum(prototypes),
        subspaces=len(subspaces),
        passes=learner.passes_per_image(),
        accuracy=accuracy,
        statistics_bytes=sum(rest),
    )


def history_bytes(directory: ModelDirectory) -> int:
    """Bytes of the files that other generations use and the current one does not."""
    current = directory.manifest()
    mine = {entry.path for entry in current.files.values()}
    sizes: dict[str, int] = {}
    for number in directory.generations():
        if number == current.generation:
            continue
        with suppress(EaseError):  # a damaged old generation is ignored
            sizes |= {entry.path: entry.size for entry in directory.manifest(number).files.values()}
    return sum(size for path, size in sizes.items() if path not in mine)


# --- the learner ----------------------------------------------------------------------------------


def compacted(learner: Learner, compaction: Compaction) -> Learner:
    """The smaller learner; the given one is not changed. A method that cannot be compacted is refused."""
    return compactable(learner).compacted(compaction)
