"""Test images -> logits of all classes seen. The only reader of stored test features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ease.errors import EaseError
from ease.experiments.metrics import score_stage
from ease.methods import Learner, open_model, set_budget
from ease.storage.model_directory import model_directory
from ease.streams import ImageSet
from ease.streams.datasets import load_dataset
from ease.training.features import FeatureKey, FeatureStore


@dataclass
class Evaluator:
    """Scores a learner on test images, asking the backbone only for features that are not stored yet.

    What has no content hash (a subspace that still trains, or differs per image) is computed anew each time.

    Attributes:
        store: where features of frozen subspaces are kept.
        computed: image x subspace passes made so far.
    """

    store: FeatureStore = field(default_factory=FeatureStore)
    computed: int = 0

    def logits(self, learner: Learner, tests: Sequence[ImageSet]) -> Tensor:
        """Logits [N, classes] of these test sets, one after the other."""
        engine = learner.engine
        parts = []
        total = sum(len(images) for images in tests)
        with engine.ledger.timing("evaluation"), engine.progress.bar("evaluation", total) as advance:
            for images in tests:
                for start in range(0, len(images), engine.batch_size):
                    batch = images.take(np.arange(start, min(start + engine.batch_size, len(images))))
                    parts.append(self._logits(learner, batch).cpu())
                    advance(len(batch))
        return torch.cat(parts) if parts else torch.empty(0, learner.classes)

    def _logits(self, learner: Learner, batch: ImageSet) -> Tensor:
        if not learner.per_image:
            return learner.head(self._features(learner, batch))
        self.computed += len(batch) * learner.passes_per_image()
        return learner.logits(learner.engine.pixels(batch))

    def _features(self, learner: Learner, batch: ImageSet) -> Tensor:
        """[S, N, d]. A batch is stored whole or not at all, so that a resumed run computes what it would have."""
        engine = learner.engine
        digests = [batch.digest(i) for i in range(len(batch))]
        subspaces = learner.subspaces()
        shelves = [self._shelf(learner, s.hash) for s in subspaces]
        found = [None if shelf is None else self.store.get(shelf, digests) for shelf in shelves]
        missing = [i for i, features in enumerate(found) if features is None]
        if missing:
            tunings = [subspaces[i].tuning for i in missing]
            fresh = engine.features(batch, tunings, "evaluation", learner.reading)
            self.computed += len(batch) * len(missing)
            for features, i in zip(fresh, missing, strict=True):
                found[i] = features
                shelf = shelves[i]
                if shelf is not None:
                    with engine.one_writer():
                        self.store.put(shelf, digests, features)
        return torch.stack([f for f in found if f is not None])

    @staticmethod
    def _shelf(learner: Learner, tuning: str | None) -> FeatureKey | None:
        if tuning is None:
            return None
        engine = learner.engine
        return FeatureKey(
            engine.transforms.id,
            engine.backbone.weights_hash,
            tuning,
            str(engine.fabric.strategy.precision.precision),
            str(learner.reading),
        )


def evaluate_model(
    path: Path,
    dataset: str,
    root: Path | None = None,
    weights: Path | None = None,
    limit_per_class: int | None = None,
    budget: int | None = None,
) -> dict[str, Any]:
    """Score a saved model on a dataset's test images. Classes are matched by name; unknown ones are left out."""
    learner, manifest = open_model(model_directory(path).path, weights)
    set_budget(learner, budget)
    data = load_dataset(dataset, root, limit_per_class)
    position = {name: i for i, name in enumerate(manifest.class_names)}
    known = [c for c, name in enumerate(data.class_names) if name in position]
    if not known:
        raise EaseError(
            f"dataset '{dataset}' shares no class name with the model in {path}: is it the right one?"
        )
    known.sort(key=lambda c: position[data.class_names[c]])
    test = data.test.of_classes(known, relabel=lambda c: position[data.class_names[c]])
    logits = Evaluator().logits(learner, [test])
    score = score_stage(logits.numpy(), test.labels, learner.task_sizes)
    notes = list(data.notes)
    if len(known) < len(data.class_names):
        notes.append(
            f"{len(data.class_names) - len(known)} classes of {dataset} are not in the model: left out"
        )
    return {**asdict(score), "classes": learner.classes, "notes": notes}
