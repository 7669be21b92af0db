"""A classifier that keeps learning: classes from folders of photos, one model directory, no old image kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ease.app.calibration import Calibration, hold_out
from ease.backbone.zoo import EMBEDDED, load_backbone
from ease.config import resolve
from ease.errors import EaseError, unknown
from ease.methods import (
    Files,
    Learner,
    backbone_of,
    extendable,
    find_method,
    forgettable,
    making_sense,
    restore_learner,
    save_model,
    set_budget,
)
from ease.progress import Progress, Quiet
from ease.storage.manifest import ClassEntry, HistoryEntry, Manifest
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet, Task
from ease.streams.images import jpeg_thumbnail
from ease.streams.intake import LabelledImages, as_image_set, class_name, collect_images
from ease.streams.stream import Augmentation
from ease.streams.transforms import Transforms
from ease.training.engine import Engine

Augment = Literal["photos", "gentle"]
AUGMENTATIONS: dict[str, Augmentation] = {
    "photos": Augmentation(),
    "gentle": Augmentation(scale=(0.6, 1.0), flip=False),
}
"""`gentle` never mirrors and crops little: for letters, signs, parts whose left and right differ."""

UNWRITTEN = 0
"""The generation of a model that is in memory only."""

METHOD = "strata"
"""What a new model learns with unless another method is asked for."""


@dataclass(frozen=True)
class Prediction:
    """What one image is taken for.

    Attributes:
        names: the most likely classes, the best one first.
        confidences: how sure of each, in [0, 1]; over all classes they add up to 1.
        unknown: from 0 (surely a class that was learned) to 1 (surely none); above .5 it is taken for none. None while
            nothing is known about it.
        calibrated: whether the figures were fitted on held-out images.
    """

    names: tuple[str, ...]
    confidences: tuple[float, ...]
    unknown: float | None
    calibrated: bool

    @property
    def name(self) -> str:
        """The most likely class."""
        return self.names[0]

    @property
    def is_unknown(self) -> bool:
        """Whether it is more likely none of the classes."""
        return self.unknown is not None and self.unknown > 0.5


@dataclass(frozen=True)
class Learned:
    """One act of learning, as it was measured on its day; later ones change what the model can do.

    Attributes:
        generation: of the model, afterwards.
        date: when, in UTC.
        classes: the new ones.
        extended: classes known before that were shown more images.
        images: learned from.
        held_out: kept apart for measuring.
        accuracy: share of the held-out images recognised among all classes of that day, in percent; None without any.
        notes: what the photos' owner should know.
    """

    generation: int
    date: str
    classes: tuple[str, ...]
    extended: tuple[str, ...]
    images: int
    held_out: int
    accuracy: float | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forgotten:
    """What forgetting a class did to the others.

    Attributes:
        generation: of the model, afterwards.
        name: of the class.
        moved: largest change of another class's direction, as 1 - cosine; 0 if none moved.
        kept: what still carries some of the class, in words; empty if nothing does.
    """

    generation: int
    name: str
    moved: float
    kept: str


class Classifier:
    """A model directory that is open for work. Make one with `create`, or `open` one."""

    def __init__(
        self,
        directory: ModelDirectory,
        engine: Engine,
        learner: Learner,
        manifest: Manifest,
        budget: int | None = None,
    ) -> None:
        self._directory, self._engine, self._budget = directory, engine, budget
        self._become(learner, manifest)

    def _become(self, learner: Learner, manifest: Manifest) -> None:
        self._learner = learner
        self._hurry()
        self._classes = list(manifest.classes)
        self._history = [Learned(**_tuples(entry.as_json())) for entry in manifest.history]
        fitted = manifest.calibration
        self._calibration = (
            Calibration.none() if fitted is None else Calibration.of_json(fitted, len(self._classes))
        )
        self._augment: str = manifest.augmentation or "photos"
        self._kept: dict[int, str] = {int(i): name for i, name in manifest.kept_images.items()}
        self._next_id = len(self._classes) if manifest.next_id is None else manifest.next_id
        self.generation = manifest.generation

    # --- making and opening -----------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path | str,
        backbone: str = EMBEDDED,
        *,
        weights: Path | str | None = None,
        input_size: int | None = None,
        method: str = METHOD,
        augment: Augment = "photos",
        settings: Mapping[str, Any] | None = None,
        seed: int = 1993,
        write: bool = True,
    ) -> Classifier:
        """A new model that knows no class yet.

        Args:
            path: folder for it, new or empty.
            backbone: `ease-vit` or any plain timm ViT, with the file in `weights` if it is not on the hub.
            weights: local weights file.
            input_size: side length of the input; the backbone's own if left out.
            method: `strata` learns in one pass without training; `ease` is the paper's method; or any other that keeps
                no old image (see `ease methods`).
            augment: `photos`, or `gentle` for images that must not be mirrored or cropped hard while training.
            settings: of the method, such as `{"layers": 6}`.
            seed: random seed.
            write: write the model without classes, so that others can open it. Without it the folder is made when
                something was learned; until then, whatever happens, nothing is on disk.
        """
        directory = ModelDirectory(path)
        directory.check_free()
        if augment not in AUGMENTATIONS:
            raise unknown("augmentation", augment, AUGMENTATIONS)
        learner_type = find_method(method)
        chosen = _settings(learner_type, settings or {}, backbone)
        frozen = load_backbone(backbone, weights=weights, input_size=input_size)
        engine = Engine(frozen, Transforms(frozen.pixels, AUGMENTATIONS[augment]), seed=seed)
        learner = learner_type(engine, chosen)
        made = cls(directory, engine, learner, _nothing(augment))
        if write:
            made._save()
        return made

    @classmethod
    def open(
        cls, path: Path | str, weights: Path | str | None = None, *, budget: int | None = None
    ) -> Classifier:
        """A model that was saved: by `create`, or by a run of an exemplar-free method.

        Args:
            path: the model directory.
            weights: the backbone's file, if it is not on the hub.
            budget: passes through the backbone per image, for quicker predictions; see docs/performance.md. It is not
                saved, and confidences were fitted without it.
        """
        directory = ModelDirectory(path)
        manifest = directory.manifest()
        frozen = backbone_of(directory, weights)
        with making_sense(directory):
            augmentation = AUGMENTATIONS[manifest.augmentation or "photos"]
            engine = Engine(
                frozen,
                Transforms(frozen.pixels, augmentation),
                seed=1993 if manifest.seed is None else manifest.seed,
            )
            learner, manifest = restore_learner(directory, engine)
            return cls(directory, engine, learner, manifest, budget)

    def refresh(self) -> bool:
        """Become the model's current generation, if another process has written one. True if so."""
        if self.generation == UNWRITTEN:
            self._directory.check_free()
            return False
        if self._directory.manifest().generation == self.generation:
            return False
        with making_sense(self._directory):
            self._become(*restore_learner(self._directory, self._engine))
        return True

    def renewed(self) -> Classifier:
        """The directory's current generation as a second object on the same backbone; this one stays what it is."""
        with making_sense(self._directory):
            learner, manifest = restore_learner(self._directory, self._engine)
            return Classifier(ModelDirectory(self.path), self._engine, learner, manifest, self._budget)

    def _hurry(self) -> None:
        if self._budget is not None and self._learner.classes:
            set_budget(self._learner, self._budget)

    # --- looking ----------------------------------------------------------------------------------

    @property
    def path(self) -> Path:
        """The model directory."""
        return self._directory.path

    @property
    def learner(self) -> Learner:
        """What scores the classes."""
        return self._learner

    @property
    def classes(self) -> list[str]:
        """Names of all classes, in the order of the logits."""
        return [entry.name for entry in self._classes]

    @property
    def tunable(self) -> bool:
        """Whether `learn` may take more time over its first images (`tune=True`)."""
        return bool(self._learner.thorough_settings) and not self._learner.task_sizes

    @property
    def history(self) -> list[Learned]:
        """What was learned when, and how well it went on that day."""
        return list(self._history)

    @property
    def calibration(self) -> Calibration:
        """What turns logits into confidences."""
        return self._calibration

    def logits(self, images: Sequence[Any]) -> Tensor:
        """Scores of all classes, [N, C]. For what an image may be, see `predict`."""
        return self._logits(as_image_set(images))

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Images as the backbone reads them, [N, 3, s, s]: the same for every generation of a model."""
        return self._engine.pixels(as_image_set(images))

    def score(self, pixels: Tensor) -> Tensor:
        """Scores of all classes for images that `pixels` made ready, [N, C]."""
        return torch.cat([self._learner.logits(part) for part in pixels.split(self._engine.batch_size)])

    def predict(self, images: Any, top_k: int = 5) -> list[Prediction]:
        """What the images show.

        Args:
            images: files, PIL images, arrays or bytes; a single one is fine.
            top_k: how many classes to name for each.
        """
        if top_k < 1:
            raise EaseError(f"top_k must be 1 or more, not {top_k}")
        several = images if isinstance(images, (list, tuple)) else [images]
        return self.read(self.logits(several), top_k)

    def read(self, logits: Tensor, top_k: int = 5) -> list[Prediction]:
        """Logits [N, C] as predictions."""
        confidences, where = self._calibration.confidences(logits).topk(
            min(top_k, len(self._classes)), dim=-1
        )
        unknown = self._calibration.unknown(logits).tolist()
        return [
            Prediction(
                names=tuple(self._classes[at].name for at in here),
                confidences=tuple(values),
                unknown=score if self._calibration.calibrated else None,
                calibrated=self._calibration.calibrated,
            )
            for here, values, score in zip(where.tolist(), confidences.tolist(), unknown, strict=True)
        ]

    def _logits(self, images: ImageSet) -> Tensor:
        if not self._classes:
            raise EaseError(f"the model in {self.path} knows no class yet: let it learn some")
        size, parts = self._engine.batch_size, []
        for start in range(0, len(images), size):
            batch = images.take(np.arange(start, min(start + size, len(images))))
            parts.append(self._learner.logits(self._engine.pixels(batch)))
        return torch.cat(parts) if parts else torch.empty(0, len(self._classes))

    # --- changing ---------------------------------------------------------------------------------

    def learn(
        self,
        source: Path | str | Mapping[str, Sequence[Any]] | LabelledImages,
        *,
        extend: bool = False,
        tune: bool = False,
        unreadable: Literal["refuse", "skip"] = "refuse",
        thumbnails: bool = False,
        progress: Progress | None = None,
    ) -> Learned:
        """Learn the classes of a folder (one folder per class) or of a mapping from names to images.

        Args:
            source: the images; what `collect_images` found in them is fine, too.
            extend: classes that are known already get these images too; without it they are refused.
            tune: take more time over the first images of a new model: an adapter is trained on them, and kept if
                held-out images say that it helps. What was measured is in the answer's notes.
            unreadable: what to do about damaged files.
            thumbnails: keep a small picture of each new class in the model, to show people. It is the only image that
                is ever kept; the manifest lists it under `kept_images`, and `forget` removes it.
            progress: where to show it.
        """
        with self._changing():
            if isinstance(source, LabelledImages):
                photos = source
            else:
                photos = collect_images(source, unreadable=unreadable, progress=progress)
            known = {name: position for position, name in enumerate(self.classes)}
            again = tuple(name for name in photos.names if name in known)
            if again and not extend:
                raise EaseError(
                    f"class '{again[0]}' is known already: rename its folder, or extend it (extend=True, --extend)"
                )
            self._engine.progress, self._engine.ledger.notes = progress or Quiet(), []
            if tune:
                self._look_closer()
            new = tuple(name for name in photos.names if name not in known)
            learn_from, held_out = self._meet(photos, new)
            if again:
                extendable(self._learner).extend(_of_classes(photos, again, known))
            pictures = self._picture(photos, new) if thumbnails else {}
            return self._learned(photos, new, again, learn_from, held_out, pictures)

    def _look_closer(self) -> None:
        """Let the method take more time over the first task."""
        learner = self._learner
        if not learner.thorough_settings:
            raise EaseError(f"method '{learner.name}' has nothing to tune (tune, --tune): leave it out")
        if learner.task_sizes:
            raise EaseError(
                f"the model in {self.path} has learned already, and is tuned on its first photos only "
                "(tune, --tune): leave it out, or begin a new model"
            )
        self._learner = type(learner)(
            self._engine, learner.settings.model_copy(update=learner.thorough_settings)
        )

    def _picture(self, photos: LabelledImages, new: tuple[str, ...]) -> Files:
        """A small picture of each new class, by file."""
        files: Files = {}
        for entry in self._classes:
            if entry.name in new:
                first = photos.images.of_classes([photos.names.index(entry.name)]).image(0)
                self._kept[entry.id] = f"thumbnails/{entry.id:04d}"
                files[self._kept[entry.id]] = {
                    "jpeg": torch.frombuffer(bytearray(jpeg_thumbnail(first)), dtype=torch.uint8)
                }
        return files

    def thumbnail(self, name: str) -> bytes | None:
        """The small picture of a class, as JPEG, if it was learned with `thumbnails`."""
        kept = self._kept.get(self._classes[self._position(name)].id)
        if kept is None:
            return None
        return self._directory.load(self.generation, [kept]).files[kept]["jpeg"].numpy().tobytes()

    def _meet(self, photos: LabelledImages, new: tuple[str, ...]) -> tuple[ImageSet | None, ImageSet | None]:
        """Learn the new classes; the images used, and those held out."""
        if not new:
            return None, None
        start = len(self._classes)
        images = _of_classes(photos, new, {name: start + i for i, name in enumerate(new)})
        learn_from, held_out = hold_out(images)
        task = Task(
            index=len(self._learner.task_sizes),
            classes=range(start, start + len(new)),
            names=new,
            train=learn_from,
            test=learn_from.take([]),
        )
        self._learner.learn(task)
        counts = np.bincount(learn_from.labels - start, minlength=len(new))
        for name, count in zip(new, counts.tolist(), strict=True):
            self._classes.append(ClassEntry(id=self._next_id, name=name, task=task.index, count=count))
            self._next_id += 1
        return learn_from, held_out

    def _learned(
        self,
        photos: LabelledImages,
        new: tuple[str, ...],
        again: tuple[str, ...],
        learn_from: ImageSet | None,
        held_out: ImageSet | None,
        pictures: Files,
    ) -> Learned:
        accuracy = None
        judged = self._left_out(learn_from)
        if held_out is not None and len(held_out):
            logits, labels = self._logits(held_out), torch.from_numpy(held_out.labels)
            accuracy = float((logits.argmax(dim=1) == labels).double().mean() * 100)
            judged.append((logits, labels))
            if (
                self._learner.extends_exactly
            ):  # they have served their purpose, and are photos like all others
                self._add_held_out(held_out)
        if judged:
            self._calibration = self._calibration.joined(
                *(torch.cat(parts) for parts in zip(*judged, strict=True))
            )
        for position, entry in enumerate(self._classes):
            if entry.name in again:
                self._count(position, int(np.sum(photos.images.labels == photos.names.index(entry.name))))
        known = sum(int(np.sum(photos.images.labels == photos.names.index(name))) for name in again)
        learned = Learned(
            generation=self._coming(),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            classes=new,
            extended=again,
            images=known + self._learned_from(learn_from, held_out),
            held_out=0 if held_out is None else len(held_out),
            accuracy=accuracy,
            notes=(*photos.notes, *self._engine.ledger.notes),
        )
        self._history.append(learned)
        self._save(pictures)
        return learned

    def _learned_from(self, learn_from: ImageSet | None, held_out: ImageSet | None) -> int:
        """How many images of new classes are in the model now."""
        added = held_out if self._learner.extends_exactly else None
        return sum(len(images) for images in (learn_from, added) if images is not None)

    def _add_held_out(self, held_out: ImageSet) -> None:
        extendable(self._learner).extend(held_out)
        for position, count in zip(*np.unique(held_out.labels, return_counts=True), strict=True):
            self._count(int(position), int(count))

    def _count(self, position: int, more: int) -> None:
        """Note that a class has learned from more images."""
        entry = self._classes[position]
        self._classes[position] = entry.model_copy(update={"count": entry.count + more})

    def _left_out(self, learned: ImageSet | None) -> list[tuple[Tensor, Tensor]]:
        """Logits and labels of learned images, each as if it had not been learned, where the method can tell.

        An image that is there twice has been seen all the same, so it does not count.
        """
        logits = self._learner.left_out
        if learned is None or logits is None:
            return []
        digests = [learned.digest(i) for i in range(len(learned))]
        times = Counter(digests)
        once = torch.tensor([times[digest] == 1 for digest in digests])
        fit = once & logits.isfinite().all(dim=1)
        return [(logits[fit], torch.from_numpy(learned.labels)[fit])]

    def rename(self, old: str, new: str) -> None:
        """Give a class another name. Nothing else changes."""
        with self._changing():
            position = self._position(old)
            name = class_name(new)
            if name in self.classes:
                raise EaseError(f"there is a class '{name}' already: choose another name")
            self._classes[position] = self._classes[position].model_copy(update={"name": name})
            self._save()

    def forget(self, name: str) -> Forgotten:
        """Drop a class and every earlier generation, which would still hold it.

        The adapter of its task was shaped by its images among others and stays: only its prototypes are gone.
        """
        with self._changing():
            position = self._position(name)
            done = forgettable(self._learner).forget(position)
            self._kept.pop(self._classes.pop(position).id, None)
            self._calibration = self._calibration.without(position)
            self._history = [_without(entry, name) for entry in self._history]
            self._save()
            self._directory.clear_history()
            return Forgotten(self.generation, name, done.moved, done.kept)

    def rework(self, change: Callable[[Learner], Learner], *, forget_history: bool = False) -> None:
        """Write the same classes with another learner as a new generation.

        Args:
            change: the newest generation's learner -> the one to write. What it raises leaves all as it was.
            forget_history: remove every earlier generation, and the files that only they used.
        """
        with self._changing():
            self._learner = change(self._learner)
            self._save()
            if forget_history:
                self._directory.clear_history()

    def rollback(self, generation: int) -> None:
        """Become an earlier generation again. Nothing is lost: a later one can be had back the same way."""
        with self._changing():
            self._directory.rollback(generation)
            self._become(*restore_learner(self._directory, self._engine))

    def generations(self) -> list[int]:
        """Generations that `rollback` can go to."""
        return self._directory.generations()

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One writer at a time, on the newest generation; whatever goes wrong, this object is what is on disk."""
        # To hold the lock of a model that is not there yet would make its folder.
        with nullcontext() if self.generation == UNWRITTEN else self._directory.writing():
            self.refresh()
            set_budget(self._learner, None)  # what is measured and saved must not depend on who is in a hurry
            settings = self._learner.settings
            try:
                yield
            except BaseException:
                if self.generation == UNWRITTEN:
                    self._become(type(self._learner)(self._engine, settings), _nothing(self._augment))
                else:
                    with making_sense(self._directory):
                        self._become(*restore_learner(self._directory, self._engine))
                raise
            finally:
                self._engine.progress = Quiet()
                self._hurry()

    def _save(self, more: Files | None = None) -> None:
        with self._directory.writing():
            if self.generation == UNWRITTEN:  # another process may have made a model there meanwhile
                self._directory.check_free()
            self.generation = save_model(
                self._directory,
                self._learner,
                self._classes,
                augmentation=self._augment,
                seed=self._engine.seed,
                next_id=self._next_id,
                history=[HistoryEntry(**_lists(asdict(entry))) for entry in self._history],
                kept_images={str(i): name for i, name in self._kept.items()},
                more=more,
                keep=[name for name in self._kept.values() if name not in (more or {})],
                calibration=self._calibration.as_json() if self._calibration.calibrated else None,
            )

    def _coming(self) -> int:
        return max(self._directory.generations(), default=0) + 1

    def _position(self, name: str) -> int:
        if name not in self.classes:
            raise unknown("class", name, self.classes)
        return self.classes.index(name)


def _nothing(augment: str) -> Manifest:
    """The manifest of a model that knows no class and is in memory only. It is never written."""
    known: dict[str, Any] = {"classes": [], "augmentation": augment, "generation": UNWRITTEN}
    return Manifest.model_construct(**known)


def _settings(method: type[Learner], given: Mapping[str, Any], backbone: str) -> Any:
    """The method's settings for a new model. For the embedded backbone they were searched with few images."""
    if method.kind != "exemplar-free":
        raise EaseError(
            f"method '{method.name}' keeps old images, a classifier never does: choose another method"
        )
    for key in given:
        if key == "method":
            raise EaseError("the method is no setting of its own: choose it with --method (method=)")
        if key not in method.Settings.model_fields:
            raise unknown(f"setting of method '{method.name}'", key, method.Settings.model_fields)
    preset = "few-images" if backbone == EMBEDDED else None
    config, _ = resolve({"method": method.name, "settings": dict(given)}, preset=preset)
    return method.Settings.model_validate(config.settings)


def _of_classes(photos: LabelledImages, names: Sequence[str], position: Mapping[str, int]) -> ImageSet:
    """The images of these classes, labelled by position."""
    wanted = [photos.names.index(name) for name in names]
    return photos.images.of_classes(wanted, relabel=lambda c: position[photos.names[c]])


def _without(entry: Learned, name: str) -> Learned:
    def left(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(each for each in names if each != name)

    notes = tuple(note for note in entry.notes if f"'{name}'" not in note)
    return replace(entry, classes=left(entry.classes), extended=left(entry.extended), notes=notes)


def _tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}


def _lists(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of `_tuples`."""
    return {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}
