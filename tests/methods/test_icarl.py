"""iCaRL's own promises."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ease.methods.icarl import Icarl, IcarlSettings
from ease.streams import ImageSet, Stream
from ease.training.engine import Engine
from ease.training.memory import Memory


def learned(engine: Engine, stream: Stream, memory: Memory) -> Icarl:
    learner = Icarl(engine, IcarlSettings(epochs=2, lr=0.01, batch_size=12))
    for task in stream.tasks:
        learner.learn(task, memory)
    return learner


@pytest.mark.parametrize("memory", [Memory(3), Memory(total=20)], ids=["per class", "total"])
def test_the_nearest_mean_of_exemplars_wins_with_means_from_the_newest_network(
    memory: Memory, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, memory)
    assert set(np.bincount(memory.images.labels)) == {3}
    unit = F.normalize(engine.features(memory.images, [learner.tuned])[0], dim=-1)
    labels = torch.from_numpy(memory.images.labels)
    means = F.normalize(torch.stack([unit[labels == c].mean(0) for c in range(6)]), dim=-1)
    assert torch.allclose(learner.means, means, atol=1e-5)
    images = stream.tasks[0].test
    features = F.normalize(engine.features(images, [learner.tuned])[0], dim=-1)
    logits = learner.logits(engine.pixels(images))
    assert torch.allclose(logits, -torch.cdist(features, means).square(), atol=1e-4)
    # Not the linear head, which only trains the features:
    assert not torch.allclose(logits, learner.linear(engine.features(images, [learner.tuned])[0]), atol=0.1)


def test_it_trains_on_new_images_and_on_all_exemplars(engine: Engine, stream: Stream) -> None:
    seen: list[ImageSet] = []
    fit = engine.fit

    def watching(module: Any, loss: Any, images: ImageSet, *args: Any, **kwargs: Any) -> list[float]:
        seen.append(images)
        return fit(module, loss, images, *args, **kwargs)

    engine.fit = watching  # type: ignore[method-assign]
    learned(engine, stream, Memory(3))
    assert [np.bincount(images.labels).tolist() for images in seen] == [
        [12, 12],
        [3, 3, 12, 12],
        [3, 3, 3, 3, 12, 12],
    ]
