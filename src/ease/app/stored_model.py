"""A model in memory that follows its directory: loading, changes under the writer's lock, saving."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ease.app.calibration import Calibration
from ease.app.changes import Forgotten, Learned, lists, renamed, tuples, without_unknown
from ease.app.inbox import Inbox
from ease.app.inbox_photos import Known
from ease.app.job_book import forget_in_jobs
from ease.errors import EaseError, unknown
from ease.experiments.predictor import Predictor
from ease.methods import (
    Files,
    Learner,
    check_answers,
    forgettable,
    making_sense,
    restore_learner,
    save_model,
)
from ease.progress import Quiet
from ease.storage.manifest import HistoryEntry, Manifest
from ease.storage.model_directory import ModelDirectory
from ease.streams.intake import class_name
from ease.training.engine import Engine
from ease.training.hardware import Precision

UNWRITTEN = 0
"""The generation number of a model that has not been written to disk yet."""


class StoredModel:
    """The learner and the facts of a model directory. All changes but learning are here; `Classifier` adds the rest.

    Args:
        directory: The model directory.
        engine: What the learner computes with.
        learner: The learner of the current generation.
        manifest: The manifest of that generation.
        budget: Largest number of passes through the backbone per image; no limit if None.
        weights: Weights file of the backbone, if it was given.
    """

    def __init__(
        self,
        directory: ModelDirectory,
        engine: Engine,
        learner: Learner,
        manifest: Manifest,
        budget: int | None = None,
        weights: Path | str | None = None,
    ) -> None:
        self._directory, self._engine, self._budget, self._weights = directory, engine, budget, weights
        self._inbox = Inbox(directory.path)
        self._load(learner, manifest)

    def _load(self, learner: Learner, manifest: Manifest) -> None:
        Predictor(learner, budget=self._budget)  # refuses a budget that the method cannot keep
        self._learner = learner
        self._classes = list(manifest.classes)
        self._history = [Learned(**tuples(entry.as_json())) for entry in manifest.history]
        fitted = manifest.calibration
        self._calibration = (
            Calibration.none() if fitted is None else Calibration.of_json(fitted, len(self._classes))
        )
        self._augment: str = manifest.augmentation or "photos"
        self._kept: dict[int, str] = {int(i): name for i, name in manifest.kept_images.items()}
        self._corrections = dict(manifest.corrections)
        self._learned_in = manifest.learned_in
        self._next_id = len(self._classes) if manifest.next_id is None else manifest.next_id
        self.generation = manifest.generation

    def refresh(self) -> bool:
        """Load the model's current generation if another process has written one; returns whether it did."""
        if self.generation == UNWRITTEN:
            self._directory.check_free()
            return False
        if self._directory.manifest().generation == self.generation:
            return False
        with making_sense(self._directory):
            self._load(*restored(self._directory, self._engine))
        return True

    # --- reading ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The model directory."""
        return self._directory.path

    @property
    def facts(self) -> Manifest:
        """The manifest of the model's current generation on disk: its backbone, settings, augmentation and seed."""
        return self._directory.manifest()

    @property
    def learner(self) -> Learner:
        """The method with everything it has learned."""
        return self._learner

    @property
    def precision(self) -> Precision:
        """What the backbone computes in: `32-true` or `bf16-mixed`. What the model last learned in is in `facts`."""
        return self._engine.precision

    @property
    def classes(self) -> list[str]:
        """Names of all classes, in the order of the logits."""
        return [entry.name for entry in self._classes]

    @property
    def history(self) -> list[Learned]:
        """What was learned, when, and the accuracy measured at that time."""
        return list(self._history)

    @property
    def calibration(self) -> Calibration:
        """The function from logits to confidences and unknown scores."""
        return self._calibration

    @property
    def inbox(self) -> Inbox:
        """Photos that wait for a person or for learning, in the folder MODEL.inbox; there is none by default."""
        return self._inbox

    @property
    def known(self) -> Known:
        """What the inbox needs to know of this generation: its classes, and photos that people have named."""
        return Known(
            self.generation,
            {entry.id: entry.name for entry in self._classes},
            self._corrections,
            self._history[0].date if self._history else None,
        )

    def thumbnail(self, name: str) -> bytes | None:
        """The small picture of a class, as JPEG, if it was learned with `thumbnails`."""
        kept = self._kept.get(self._classes[self._position(name)].id)
        if kept is None:
            return None
        return self._directory.load(self.generation, [kept]).files[kept]["jpeg"].numpy().tobytes()

    def _position(self, name: str) -> int:
        if name not in self.classes:
            raise unknown("class", name, self.classes)
        return self.classes.index(name)

    # --- changing ---------------------------------------------------------------------------------

    def rename(self, old: str, new: str) -> None:
        """Rename a class. Nothing else changes."""
        with self.changing():
            position = self._position(old)
            name = class_name(new)
            if name in self.classes:
                raise EaseError(f"there is a class '{name}' already: choose another name")
            self._inbox.follow(self._classes[position].id, self.known)
            self._classes[position] = self._classes[position].model_copy(update={"name": name})
            self._history = [renamed(learned, old, name) for learned in self._history]
            self._save()

    def forget(self, name: str) -> Forgotten:
        """Remove a class, and every other generation, since these still contain it.

        Its name leaves the list of jobs beside the model, too, if a server has kept one. The adapter of its task was
        trained on its images among others and stays: only its prototypes are removed.

        Args:
            name: Name of the class.

        Returns:
            What changed for the other classes, and what still contains information about the class.
        """
        with self.changing():
            position, known = self._position(name), self.known
            done = forgettable(self._learner).forget(position)
            gone = self._classes.pop(position)
            self._kept.pop(gone.id, None)
            self._corrections = {d: i for d, i in self._corrections.items() if i != gone.id}
            self._calibration = self._calibration.without(position)
            self._history = [without_unknown(entry, set(self.classes)) for entry in self._history]
            with self._inbox.forgetting(gone.id, known, self._names_of(gone.id)):
                self._save(clears_history=True)
        forget_in_jobs(self.path, self.classes)
        return Forgotten(self.generation, name, done.moved, done.kept)

    def replace_learner(self, change: Callable[[Learner], Learner], *, forget_history: bool = False) -> None:
        """Write the same classes with another learner as a new generation.

        Args:
            change: Function from the newest generation's learner to the one to write. If it raises an exception,
                nothing is changed.
            forget_history: Remove every earlier generation, and the files that only they used.
        """
        with self.changing():
            self._learner = change(self._learner)
            self._save(clears_history=forget_history)

    def rollback(self, generation: int) -> None:
        """Go back to an earlier generation. Later ones are kept, and can be restored the same way."""
        with self.changing():
            self._directory.rollback(generation)
            self._load(*restored(self._directory, self._engine))

    def generations(self) -> list[int]:
        """Numbers of the generations that `rollback` can go to."""
        return self._directory.generations()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the writer lock and work on the newest generation; after an error this object is what is on disk."""
        # Taking the lock of a model that does not exist yet would create its folder.
        with nullcontext() if self.generation == UNWRITTEN else self._directory.writing():
            self.refresh()
            self._inbox.finish_forgetting()
            settings = self._learner.settings
            try:
                yield
            except BaseException:
                if self.generation == UNWRITTEN:
                    self._load(
                        type(self._learner)(self._engine, settings),
                        empty_manifest(self._augment, self.precision),
                    )
                else:
                    with making_sense(self._directory):
                        self._load(*restored(self._directory, self._engine))
                raise
            finally:
                self._engine.progress = Quiet()

    def _save(self, more: Files | None = None, *, clears_history: bool = False) -> None:
        with self._directory.writing():
            if self.generation == UNWRITTEN:  # another process may have created a model there meanwhile
                self._directory.check_free()
            self._skip_taken_ids()
            extra: dict[str, Any] = {"corrections": self._corrections} if self._corrections else {}
            extra |= {"clears_history": True} if clears_history else {}
            self.generation = save_model(
                self._directory,
                self._learner,
                self._classes,
                augmentation=self._augment,
                seed=self._engine.seed,
                next_id=self._next_id,
                history=[HistoryEntry(**lists(asdict(entry))) for entry in self._history],
                kept_images={str(i): name for i, name in self._kept.items()},
                more=more,
                keep=[name for name in self._kept.values() if name not in (more or {})],
                weights=self._weights,
                precision=self._learned_in,
                calibration=self._calibration.as_json() if self._calibration.calibrated else None,
                **extra,
            )

    def _names_of(self, class_id: int) -> set[str]:
        """The names of a class in all generations that can be read."""
        names: set[str] = set()
        for number in self._directory.generations():
            with suppress(EaseError):
                manifest = self._directory.manifest(number)
                names.update(entry.name for entry in manifest.classes if entry.id == class_id)
        return names

    def _next_generation(self) -> int:
        return max(self._directory.generations(), default=0) + 1

    def _skip_taken_ids(self) -> None:
        """An id that a later generation has given, before somebody went back, stays taken."""
        self._next_id = max(self._next_id, self._directory.next_class_id())


def restored(directory: ModelDirectory, engine: Engine) -> tuple[Learner, Manifest]:
    """The learner of the current generation, which is known to answer."""
    learner, manifest = restore_learner(directory, engine)
    check_answers(directory, learner)
    return learner, manifest


def empty_manifest(augment: str, precision: str) -> Manifest:
    """The manifest of a model without classes that is in memory only. It is never written."""
    known: dict[str, Any] = {
        "classes": [],
        "augmentation": augment,
        "precision": precision,
        "generation": UNWRITTEN,
    }
    return Manifest.model_construct(**known)
