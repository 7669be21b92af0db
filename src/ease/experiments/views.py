"""The first two subspaces of a finished run, laid out in the plane."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from ease.config import RunConfig
from ease.errors import EaseError
from ease.experiments.inputs import make_tasks
from ease.methods import PrototypesPerSubspace, open_model
from ease.reporting.figures import SubspaceView
from ease.training.memory import joined

SHOWN = 2
"""Tasks, and the subspaces that were learned for them."""


def views_of_run(folder: Path, config: RunConfig) -> list[SubspaceView]:
    """t-SNE of the first two tasks' test images and prototypes, in each of the two tasks' own subspaces."""
    from sklearn.manifold import TSNE

    weights = None if config.weights is None else Path(config.weights)
    learner, _ = open_model(folder / "model", weights)
    shown = learner.prototypes_per_subspace()[:SHOWN] if isinstance(learner, PrototypesPerSubspace) else []
    if len(shown) < SHOWN:
        raise EaseError(f"{folder} has no two subspaces to show: run EASE on a stream of two tasks or more")
    stream, _ = make_tasks(config)
    tasks = stream.tasks[:SHOWN]
    images = joined(*(task.test for task in tasks))
    names = [name for task in tasks for name in task.names]
    features = learner.engine.features(images, [tuning for tuning, _ in shown])
    prototypes = [rows[: len(names)] for _, rows in shown]
    views = []
    for number in range(SHOWN):
        both = F.normalize(torch.cat([features[number], prototypes[number].cpu()]), dim=-1).numpy()
        layout = TSNE(
            perplexity=min(30.0, (len(both) - 1) / 4), metric="cosine", init="pca", random_state=config.seed
        ).fit_transform(both)
        views.append(
            SubspaceView(
                points=layout[: len(images)],
                labels=images.labels.tolist(),
                prototypes=layout[len(images) :],
                prototype_labels=list(range(len(names))),
                title=f"Subspace {number + 1}, learned for task {number + 1}",
                classes=names,
                class_tasks=np.repeat(range(SHOWN), [len(task.classes) for task in tasks]).tolist(),
            )
        )
    return views
