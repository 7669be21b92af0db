"""A classifier that learns new classes from folders of photos and keeps no image: one model directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ease.app.calibration import hold_out
from ease.app.changes import Learned
from ease.app.corrections import as_named, correct, learn_inbox, remembered
from ease.app.explain import Explanation, explain_pixels
from ease.app.inbox_photos import Correction
from ease.app.prediction import ClassConfidence, Prediction, no_finite_scores
from ease.app.repeated import check_repeated, check_repeated_settings
from ease.app.stored_model import StoredModel, empty_manifest, restored
from ease.backbone import Backbone
from ease.backbone.zoo import EMBEDDED, load_backbone
from ease.config import resolve
from ease.errors import EaseError, unknown
from ease.experiments.predictor import Predictor
from ease.methods import (
    Files,
    Learner,
    backbone_of,
    extendable,
    find_method,
    making_sense,
)
from ease.progress import Progress, Quiet
from ease.storage.manifest import ClassEntry
from ease.storage.model_directory import ModelDirectory
from ease.streams import ImageSet, Task
from ease.streams.images import jpeg_thumbnail
from ease.streams.intake import LabelledImages, as_image_set, collect_images
from ease.streams.intake.sources import AllowUrls
from ease.streams.stream import Augmentation
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.hardware import AskedPrecision, app_precision

Augment = Literal["photos", "gentle"]
AUGMENTATIONS: dict[str, Augmentation] = {
    "photos": Augmentation(),
    "gentle": Augmentation(scale=(0.6, 1.0), flip=False),
}
"""`gentle` never mirrors and crops little: for letters, signs, and parts whose left and right sides differ."""

METHOD = "strata"
"""The method of a new model unless another one is asked for."""


class Classifier(StoredModel):
    """An image classifier in a model directory; it learns new classes at any time and keeps no image.

    Make a new one with `create`, or `open` a saved one.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120, 160, 200)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier = Classifier.create(f"{folder}/model", input_size=16)
        ...     _ = classifier.learn({"dark": images[:2], "grey": images[2:4]})
        ...     _ = classifier.learn({"bright": images[4:]})  # later, without the first images
        ...     found = classifier.predict(images[0], top_k=2)
        >>> classifier.classes
        ['dark', 'grey', 'bright']
        >>> found[0].name, len(found[0].classes)
        ('dark', 2)
    """

    # --- creating and opening ---------------------------------------------------------------------

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
        precision: AskedPrecision | None = None,
    ) -> Classifier:
        """Make a new model that knows no class yet.

        Args:
            path: Folder of the model; it must be new or empty.
            backbone: `ease-vit` or any plain timm ViT, with the file in `weights` if it is not on the hub.
            weights: Local weights file of the backbone.
            input_size: Side length of the input in pixels; the backbone's own if None.
            method: `strata` learns in one pass without training, `ease` is the method of the paper; any other
                exemplar-free method works too (see `ease list methods`).
            augment: `photos`, or `gentle` for images that must not be mirrored or strongly cropped during training.
            settings: Settings of the method, such as `{"layers": 6}`.
            seed: Random seed, from 0 to 2^32 - 1.
            write: Write the empty model at once, so that other processes can open it. If False, the folder is created
                by the first successful `learn`, and a failure before that leaves nothing on disk.
            precision: What the backbone computes in: `32-true`, `bf16-mixed`, or `auto`, which is bf16 where the
                processor computes it natively, else fp32. If None, what the environment variable `EASE_PRECISION`
                says, else `auto`. See docs/how-to/precision.md.

        Returns:
            The classifier, with no classes.
        """
        directory = ModelDirectory(path)
        directory.check_free()
        if augment not in AUGMENTATIONS:
            raise unknown("augmentation", augment, AUGMENTATIONS)
        if not 0 <= seed < 2**32:
            raise EaseError(f"seed {seed} is out of range: give a whole number from 0 to {2**32 - 1}")
        learner_type = find_method(method)
        chosen = _settings(learner_type, settings or {}, backbone)
        frozen = load_backbone(backbone, weights=weights, input_size=input_size)
        engine = Engine(
            frozen,
            Transforms(frozen.pixels, AUGMENTATIONS[augment]),
            seed=seed,
            precision=app_precision(precision),
        )
        learner = learner_type(engine, chosen)
        manifest = empty_manifest(augment, engine.precision)
        created = cls(directory, engine, learner, manifest, weights=weights)
        if write:
            created._save()
        return created

    @classmethod
    def open(
        cls,
        path: Path | str,
        weights: Path | str | None = None,
        *,
        budget: int | None = None,
        backbone: Backbone | None = None,
        precision: AskedPrecision | None = None,
    ) -> Classifier:
        """Open a saved model: one made by `create`, or by a run of an exemplar-free method.

        Args:
            path: The model directory.
            weights: Weights file of the backbone. Without it the file is looked for where it was, in the folder
                `EASE_WEIGHTS` and beside the model directory; it must be the one that the model was learned with.
            budget: Largest number of passes through the backbone per image, for faster predictions; see
                docs/how-to/performance.md. It is not saved, and confidences are fitted without it.
            backbone: The model's backbone if it is in memory already, such as that of another model; it is loaded if
                None. One that is not the model's is an error.
            precision: What the backbone computes in from now on, as in `create`; the model may have been learned in
                another precision.

        Returns:
            The classifier at the model's current generation.
        """
        directory = ModelDirectory(path)
        manifest = directory.manifest()
        computes_in = app_precision(precision)
        frozen = backbone_of(directory, weights) if backbone is None else backbone
        with making_sense(directory):
            augmentation = AUGMENTATIONS[manifest.augmentation or "photos"]
            engine = Engine(
                frozen,
                Transforms(frozen.pixels, augmentation),
                seed=1993 if manifest.seed is None else manifest.seed,
                precision=computes_in,
            )
            learner, manifest = restored(directory, engine)
            return cls(directory, engine, learner, manifest, budget, weights)

    @classmethod
    def open_or_create(
        cls,
        path: Path | str,
        backbone: str | None = None,
        *,
        weights: Path | str | None = None,
        settings: Mapping[str, Any] | None = None,
        precision: AskedPrecision | None = None,
        **options: Any,
    ) -> Classifier:
        """Open the model in a folder, or make a new one there: the same line works every month.

        Args:
            path: Folder of the model.
            backbone: As in `create`.
            weights: Weights file of the backbone. An existing model finds the file that it was made with by itself.
            settings: As in `create`.
            precision: As in `create`. An existing model may be opened in another one.
            options: `method`, `input_size`, `augment` and `seed` as in `create`. For an existing model, what is given
                (and is not None) must be what it was made with.

        Returns:
            The classifier. A new one is written by its first successful `learn`.
        """
        given = {
            name: value for name, value in {"backbone": backbone, **options}.items() if value is not None
        }
        directory = ModelDirectory(path)
        if not directory.exists:
            return cls.create(
                path, weights=weights, settings=settings, write=False, precision=precision, **given
            )
        check_repeated(path, directory.manifest(), given)
        classifier = cls.open(path, weights, precision=precision)
        learner = classifier.learner
        wanted = _settings(type(learner), settings or {}, learner.backbone.name)
        check_repeated_settings(path, learner.settings, {key: getattr(wanted, key) for key in settings or {}})
        return classifier

    def reopened(self) -> Classifier:
        """The current generation as a second object on the same backbone; this object is not changed."""
        with making_sense(self._directory):
            learner, manifest = restored(self._directory, self._engine)
            return Classifier(
                ModelDirectory(self.path), self._engine, learner, manifest, self._budget, self._weights
            )

    # --- reading ----------------------------------------------------------------------------------

    @property
    def predictor(self) -> Predictor:
        """What turns images into logits, within the budget that the classifier was opened with."""
        if not self._classes:
            raise EaseError(f"the model in {self.path} knows no class yet: teach it some with learn")
        return Predictor(self._learner, budget=self._budget)

    @property
    def tunable(self) -> bool:
        """Whether `learn` can adapt the backbone to its first images (`tune=True`)."""
        return bool(self._learner.thorough_settings) and not self._learner.task_sizes

    def logits(self, images: Sequence[Any], progress: Progress | None = None) -> Tensor:
        """Scores of all classes.

        Args:
            images: As in `predict`.
            progress: Where to show progress.

        Returns:
            Logits [N, C], with the classes in the order of `classes`.
        """
        return self.predictor.logits(as_image_set(images), progress=progress)

    def pixels(self, images: Sequence[Any]) -> Tensor:
        """Images as the backbone reads them, [N, 3, s, s]: the same for every generation of a model."""
        return self._engine.pixels(as_image_set(images))

    def predict(self, images: Any, top_k: int = 5, progress: Progress | None = None) -> list[Prediction]:
        """Name what images show.

        Args:
            images: Paths, PIL images, arrays [H, W] or [H, W, 3], or contents of image files; a list or a single one.
            top_k: Number of classes to name for each image.
            progress: Where to show progress.

        Returns:
            One prediction for each image, in their order. A photo that a person has named (see `correct`) gets that
            name.
        """
        if top_k < 1:
            raise EaseError(f"top_k must be 1 or more, not {top_k}")
        found = as_image_set(images if isinstance(images, (list, tuple)) else [images])
        logits = self.predictor.logits(found, progress=progress)
        digests = [found.digest(i) for i in range(len(found))] if self.looks_up_photos else []
        return self.predictions(logits, top_k, digests)

    @property
    def looks_up_photos(self) -> bool:
        """Whether some photos are answered with names that people gave them, and so need their content hash."""
        return bool(self._corrections) or self._inbox.on

    def predictions(self, logits: Tensor, top_k: int = 5, digests: Sequence[str] = ()) -> list[Prediction]:
        """Turn logits [N, C] into predictions that name `top_k` classes each.

        Args:
            logits: [N, C].
            top_k: Number of classes to name for each image.
            digests: Content hash of each image, by which photos that people have named are found; none are if empty.
        """
        return as_named(self._computed(logits, top_k), digests, self.known, self._inbox)

    def _computed(self, logits: Tensor, top_k: int) -> list[Prediction]:
        calibrated = self._calibration.calibrated
        confidences, positions = self._calibration.confidences(logits).topk(
            min(top_k, len(self._classes)), dim=-1
        )
        scores = self._calibration.unknown(logits)
        if not bool(confidences.isfinite().all() and (not calibrated or scores.isfinite().all())):
            raise no_finite_scores(self.path)
        unknown = scores.tolist()
        names = self.classes
        return [
            Prediction(
                classes=tuple(
                    ClassConfidence(name=names[position], confidence=confidence)
                    for position, confidence in zip(own, values, strict=True)
                ),
                unknown=score if calibrated else None,
                calibrated=calibrated,
            )
            for own, values, score in zip(positions.tolist(), confidences.tolist(), unknown, strict=True)
        ]

    def explain(self, image: Any, top_k: int = 3, name: str | None = None) -> Explanation:
        """Say why the model takes an image for a class: the patches that spoke for it, and the nearest other classes.

        Args:
            image: One image, as in `predict`.
            top_k: Number of other classes to compare with.
            name: The class to explain; the answer of the model if None.
        """
        return explain_pixels(self, self.pixels([image]), top_k, name)

    # --- changing ---------------------------------------------------------------------------------

    def learn(
        self,
        source: Path | str | Mapping[str, Sequence[Any]] | LabelledImages | None = None,
        *,
        labels: Path | str | None = None,
        root: Path | str | None = None,
        columns: Sequence[str] | None = None,
        allow_urls: AllowUrls = False,
        extend: bool = False,
        tune: bool = False,
        unreadable: Literal["refuse", "skip"] = "refuse",
        thumbnails: bool = False,
        progress: Progress | None = None,
    ) -> Learned:
        """Learn classes from a folder with one folder per class, a table, or a mapping of names to images.

        Args:
            source: The folder, or another place that `collect_images` takes; the mapping; or what `collect_images`
                returned for one of them.
            labels: A table or a COCO file with the labels of the images in the folder `source`.
            root: The folder that relative paths of a table begin at.
            columns: The names of the table's columns of paths and labels, where they are not recognised.
            allow_urls: Whether http and https addresses in tables are fetched.
            extend: Add the images of known classes to these classes. If False, a known class is an error.
            tune: Train an adapter on the first images of a new model, and keep it if it improves the accuracy on
                held-out images. The measured accuracies are in the notes of the result. A model that was tuned at its
                beginning accepts it again; nothing is trained then.
            unreadable: Whether damaged files are an error (`refuse`) or left out (`skip`).
            thumbnails: Keep a small picture of each new class in the model. It is the only image that is ever kept;
                the manifest lists it under `kept_images`, and `forget` removes it.
            progress: Where to show progress.

        Returns:
            What was learned, and the accuracy on held-out images.
        """
        with self.changing():
            if isinstance(source, LabelledImages):
                photos = source
            else:
                photos = collect_images(
                    source,
                    labels=labels,
                    root=root,
                    columns=columns,
                    allow_urls=allow_urls,
                    unreadable=unreadable,
                    progress=progress,
                )
            return self._learn(photos, extend, tune, thumbnails, progress)

    def correct(self, image: Any, name: str, *, confirm: bool = False) -> Correction:
        """Say what an image shows. If the model says something else, the image goes into the inbox with this name.

        From then on this very image is answered with that name, as soon as the model knows a class of that name. What
        is in the inbox is learned by `learn_inbox`; until then nothing in the model changes.

        Args:
            image: As in `predict`; its bytes are kept as they are.
            name: What it shows: a class that the model knows, or a new one.
            confirm: Accept a name that differs from a known one only by case, spaces or Unicode form.

        Returns:
            Where it is in the inbox, or that the answer was right.
        """
        return correct(self, image, name, confirm=confirm)

    def learn_inbox(self, *, only: Sequence[str] | None = None, progress: Progress | None = None) -> Learned:
        """Learn all photos of the inbox that people have named; then they are removed from it.

        Known classes are extended, new ones are learned. If the process is killed after the model was written, the
        photos are not learned again: the manifest says which were.

        Args:
            only: Ids of the photos to learn; all that have names if None.
            progress: Where to show progress.

        Returns:
            What was learned, as from `learn`.
        """
        with self.changing():
            return learn_inbox(self, self._learn_named, only, progress)

    def _learn_named(
        self, photos: LabelledImages, named: Mapping[str, str], progress: Progress | None
    ) -> Learned:
        """Learn photos of the inbox; `named` is content hash -> class name."""
        return self._learn(photos, True, False, False, progress, named)

    def _learn(
        self,
        photos: LabelledImages,
        extend: bool,
        tune: bool,
        thumbnails: bool,
        progress: Progress | None,
        named: Mapping[str, str] | None = None,
    ) -> Learned:
        known = {name: position for position, name in enumerate(self.classes)}
        again = tuple(name for name in photos.names if name in known)
        if again and not extend:
            raise EaseError(
                f"class '{again[0]}' is known already: rename its folder, or extend it (extend=True, --extend)"
            )
        self._engine.progress, self._engine.ledger.notes = progress or Quiet(), []
        if tune:
            self._tune_first_task()
        new = tuple(name for name in photos.names if name not in known)
        learn_from, held_out = self._learn_new(photos, new)
        if again:
            extendable(self._learner).extend(_of_classes(photos, again, known))
        self._learned_in = self.precision
        self._corrections = remembered(self._corrections, named or {}, self.known)
        pictures = self._make_thumbnails(photos, new) if thumbnails else {}
        return self._conclude(photos, new, again, learn_from, held_out, pictures)

    def _tune_first_task(self) -> None:
        """Choose the method's settings that adapt the backbone to the first task."""
        learner = self._learner
        if not learner.thorough_settings:
            raise EaseError(f"method '{learner.name}' has nothing to tune (tune, --tune): leave it out")
        if learner.task_sizes:
            chosen = learner.settings.model_dump()
            if all(chosen[key] == value for key, value in learner.thorough_settings.items()):
                return  # it was tuned then; the same command may be given every month
            raise EaseError(
                f"the model in {self.path} has learned already without it, and is tuned on its first photos only "
                "(tune, --tune): leave it out, or begin a new model"
            )
        self._learner = type(learner)(
            self._engine, learner.settings.model_copy(update=learner.thorough_settings)
        )

    def _make_thumbnails(self, photos: LabelledImages, new: tuple[str, ...]) -> Files:
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

    def _learn_new(
        self, photos: LabelledImages, new: tuple[str, ...]
    ) -> tuple[ImageSet | None, ImageSet | None]:
        """Learn the new classes; returns the images used and those held out."""
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
        self._skip_taken_ids()
        counts = np.bincount(learn_from.labels - start, minlength=len(new))
        for name, count in zip(new, counts.tolist(), strict=True):
            self._classes.append(ClassEntry(id=self._next_id, name=name, task=task.index, count=count))
            self._next_id += 1
        return learn_from, held_out

    def _conclude(
        self,
        photos: LabelledImages,
        new: tuple[str, ...],
        again: tuple[str, ...],
        learn_from: ImageSet | None,
        held_out: ImageSet | None,
        pictures: Files,
    ) -> Learned:
        """Measure what was learned, calibrate, and write a new generation."""
        accuracy = None
        judged = self._left_out(learn_from)
        if held_out is not None and len(held_out):
            # Without a budget: what is measured and saved does not depend on how fast predictions should be.
            logits, labels = Predictor(self._learner).logits(held_out), torch.from_numpy(held_out.labels)
            accuracy = float((logits.argmax(dim=1) == labels).double().mean() * 100)
            judged.append((logits, labels))
            if self._learner.extends_exactly:  # they were measured on, and can be learned from now
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
            generation=self._next_generation(),
            date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            classes=new,
            extended=again,
            images=known + self._count_learned(learn_from, held_out),
            held_out=0 if held_out is None else len(held_out),
            accuracy=accuracy,
            notes=(*photos.notes, *self._engine.ledger.notes),
        )
        self._history.append(learned)
        self._save(pictures)
        return learned

    def _count_learned(self, learn_from: ImageSet | None, held_out: ImageSet | None) -> int:
        """Number of images of new classes that the model has learned from."""
        added = held_out if self._learner.extends_exactly else None
        return sum(len(images) for images in (learn_from, added) if images is not None)

    def _add_held_out(self, held_out: ImageSet) -> None:
        extendable(self._learner).extend(held_out)
        for position, count in zip(*np.unique(held_out.labels, return_counts=True), strict=True):
            self._count(int(position), int(count))

    def _count(self, position: int, more: int) -> None:
        """Add to the number of images that a class was learned from."""
        entry = self._classes[position]
        self._classes[position] = entry.model_copy(update={"count": entry.count + more})

    def _left_out(self, learned: ImageSet | None) -> list[tuple[Tensor, Tensor]]:
        """Logits and labels of learned images, each as if it had not been learned, where the method provides them.

        An image that occurs twice is left out: its copy was learned from.
        """
        logits = self._learner.left_out
        if learned is None or logits is None:
            return []
        digests = [learned.digest(i) for i in range(len(learned))]
        times = Counter(digests)
        once = torch.tensor([times[digest] == 1 for digest in digests])
        fit = once & logits.isfinite().all(dim=1)
        return [(logits[fit], torch.from_numpy(learned.labels)[fit])]


def _settings(method: type[Learner], given: Mapping[str, Any], backbone: str) -> Any:
    """The method's settings for a new model. For the embedded backbone they were tuned for few images."""
    if method.kind != "exemplar-free":
        raise EaseError(
            f"method '{method.name}' is {method.kind}: a classifier keeps no images, choose an exemplar-free method"
        )
    for key in given:
        if key == "method":
            raise EaseError(
                "'method' is not a setting of a method: choose the method with --method (method=)"
            )
        if key not in method.Settings.model_fields:
            raise unknown(f"setting of method '{method.name}'", key, method.Settings.model_fields)
    preset = "few-images" if backbone == EMBEDDED else None
    config, _ = resolve({"method": method.name, "settings": dict(given)}, preset=preset)
    return method.Settings.model_validate(config.settings)


def _of_classes(photos: LabelledImages, names: Sequence[str], position: Mapping[str, int]) -> ImageSet:
    """The images of these classes, labelled by position."""
    wanted = [photos.names.index(name) for name in names]
    return photos.images.of_classes(wanted, relabel=lambda c: position[photos.names[c]])
