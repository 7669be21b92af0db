"""Images -> logits of all classes learned so far. All predictions use this loop; only it reads stored features."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ease.errors import EaseError
from ease.experiments.metrics import score_stage
from ease.methods import Learner, open_model, set_budget
from ease.progress import Progress
from ease.storage.model_directory import model_directory
from ease.streams import ImageSet
from ease.streams.datasets import load_dataset
from ease.training.features import FeatureKey, FeatureStore

Images = ImageSet | Sequence[ImageSet] | Tensor
"""What can be scored: one set of images, several of them, or pixels [N, 3, s, s] that `Engine.pixels` prepared."""


class PredictionCancelledError(Exception):
    """A prediction was cancelled at the request of its caller."""


class Predictor:
    """Scores images with a learner, batch by batch.

    With a store, features of frozen subspaces are computed once and then read from it. Features of a subspace without
    a content hash (one that is still being trained, or that depends on the image) are computed each time.

    Args:
        learner: The model. It may learn more tasks between two calls.
        store: Where features are kept; without one, nothing is kept.
        budget: Maximum number of passes through the backbone per image; no limit if None.

    Attributes:
        computed: Image x subspace passes made so far.

    Example:
        >>> from ease import Predictor, create_method, load_backbone, load_stream
        >>> stream = load_stream("digits", "B0 Inc5", limit_per_class=4)
        >>> learner = create_method("simplecil", load_backbone(input_size=16))
        >>> learner.learn(stream.tasks[0])
        >>> Predictor(learner).logits(stream.tasks[0].test).shape
        torch.Size([20, 5])
    """

    def __init__(
        self, learner: Learner, store: FeatureStore | None = None, budget: int | None = None
    ) -> None:
        self.learner, self.store, self.budget = learner, store, budget
        self.computed = 0
        if learner.classes:
            with self._within_budget():  # a budget that cannot be kept is refused before any image is loaded
                pass

    def logits(
        self,
        images: Images,
        *,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
    ) -> Tensor:
        """Scores of all classes.

        Args:
            images: A set of images, several sets (scored one after the other, with no batch across two sets), or
                pixels [N, 3, s, s] as the backbone reads them.
            progress: Where to show progress; where the learner's engine shows it if None.
            cancelled: Asked before each batch; if it returns True, the work ends with `PredictionCancelledError`.

        Returns:
            Logits [N, classes] on the CPU, in the order of the images.
        """
        engine = self.learner.engine
        sets = [images] if isinstance(images, ImageSet | Tensor) else images
        shown, parts = progress or engine.progress, []
        with (
            self._within_budget(),
            engine.ledger.timing("evaluation"),
            shown.bar("evaluation", sum(map(len, sets))) as advance,
        ):
            # Several processes share the features of as many batches as there are processes.
            together = engine.batch_size * (engine.fabric.world_size if self._uses_store else 1)
            for batch in _batches(sets, together):
                if cancelled is not None and cancelled():
                    raise PredictionCancelledError
                parts += self._of_batch(batch)
                advance(len(batch))
        return torch.cat(parts) if parts else torch.empty(0, self.learner.classes)

    @contextmanager
    def _within_budget(self) -> Iterator[None]:
        """Apply the budget inside the `with` only, so that it does not affect what is learned and saved."""
        if self.budget is None:
            yield
            return
        set_budget(self.learner, self.budget)
        try:
            yield
        finally:
            set_budget(self.learner, None)

    @property
    def _uses_store(self) -> bool:
        return self.store is not None and not self.learner.per_image

    def _of_batch(self, batch: ImageSet | Tensor) -> list[Tensor]:
        learner, size = self.learner, self.learner.engine.batch_size
        if isinstance(batch, ImageSet) and self.store is not None and self._uses_store:
            # The head gets the same batches, however many processes there are: its last bits depend on them, too.
            return [learner.head(part).cpu() for part in self._features(batch, self.store).split(size, dim=1)]
        self.computed += len(batch) * learner.passes_per_image()
        pixels = batch if isinstance(batch, Tensor) else learner.engine.pixels(batch)
        return [learner.logits(part).cpu() for part in pixels.split(size)]

    def _features(self, batch: ImageSet, store: FeatureStore) -> Tensor:
        """Features [S, N, d]. A batch is stored completely or not at all, so that resuming gives equal results."""
        engine = self.learner.engine
        digests = [batch.digest(i) for i in range(len(batch))]
        subspaces = self.learner.subspaces()
        keys = [self._key(s.hash) for s in subspaces]
        found = [None if key is None else store.get(key, digests) for key in keys]
        missing = [i for i, features in enumerate(found) if features is None]
        if missing:
            tunings = [subspaces[i].tuning for i in missing]
            fresh = engine.features(batch, tunings, "evaluation", self.learner.reading)
            self.computed += len(batch) * len(missing)
            for features, i in zip(fresh, missing, strict=True):
                found[i] = features
                key = keys[i]
                if key is not None:
                    with engine.one_writer():
                        for at in range(0, len(digests), engine.batch_size):
                            part = slice(at, at + engine.batch_size)
                            store.put(key, digests[part], features[part])
        return torch.stack([f for f in found if f is not None])

    def _key(self, tuning: str | None) -> FeatureKey | None:
        if tuning is None:
            return None
        engine = self.learner.engine
        return FeatureKey(
            engine.transforms.id,
            engine.backbone.weights_hash,
            tuning,
            engine.precision,
            str(self.learner.reading),
        )


def _batches(sets: Sequence[ImageSet | Tensor], size: int) -> Iterator[ImageSet | Tensor]:
    """Batches of at most `size` images; none spans two sets."""
    for images in sets:
        if isinstance(images, Tensor):
            yield from images.split(size)
        else:
            for start in range(0, len(images), size):
                yield images.take(np.arange(start, min(start + size, len(images))))


def evaluate_model(
    path: Path,
    dataset: str,
    root: Path | None = None,
    weights: Path | None = None,
    limit_per_class: int | None = None,
    budget: int | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score a saved model on the test images of a dataset. Classes are matched by name; unknown ones are left out.

    Args:
        path: Model directory, or the folder of a run.
        dataset: Name of the dataset.
        root: Folder of the dataset.
        weights: Weights file of the backbone, if it is neither embedded nor on the hub.
        limit_per_class: Use at most this many images of each class.
        budget: Maximum number of passes through the backbone per image; no limit if None.
        progress: Where to show progress.

    Returns:
        The fields of `StageScore`, the number of classes of the model, and notes.
    """
    learner, manifest = open_model(model_directory(path).path, weights)
    predictor = Predictor(learner, FeatureStore(), budget)
    data = load_dataset(dataset, root, limit_per_class)
    position = {name: i for i, name in enumerate(manifest.class_names)}
    known = [c for c, name in enumerate(data.class_names) if name in position]
    if not known:
        raise EaseError(
            f"dataset '{dataset}' shares no class name with the model in {path}: is it the right one?"
        )
    known.sort(key=lambda c: position[data.class_names[c]])
    test = data.test.of_classes(known, relabel=lambda c: position[data.class_names[c]])
    logits = predictor.logits(test, progress=progress)
    score = score_stage(logits.numpy(), test.labels, learner.task_sizes)
    notes = list(data.notes)
    if len(known) < len(data.class_names):
        notes.append(
            f"{len(data.class_names) - len(known)} classes of {dataset} are not in the model: left out"
        )
    return {**asdict(score), "classes": learner.classes, "notes": notes}
