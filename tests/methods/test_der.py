"""DER's own promises."""

from __future__ import annotations

from typing import Any

import torch

from ease.backbone import tensors_hash
from ease.experiments.predictor import Predictor
from ease.heads.widening import WideningLinear, side_by_side
from ease.methods.der import Der, DerSettings
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.memory import Memory


def make(engine: Engine, **settings: Any) -> Der:
    return Der(engine, DerSettings(**{"epochs": 2, "lr": 0.01, "batch_size": 12, **settings}))


def test_the_feature_grows_by_d_per_task_and_old_backbones_stay_bit_identical(
    engine: Engine, stream: Stream
) -> None:
    learner, memory = make(engine), Memory(3)
    hashes: list[str] = []
    for task in stream.tasks:
        learner.learn(task, memory)
        number = task.index + 1
        assert learner.linear.weight.shape == (task.classes.stop, number * engine.backbone.dim)
        found = [tensors_hash(t.state_dict()) for t in learner.tunings]
        assert found[:-1] == hashes
        assert len(set(found)) == number
        hashes = found
        assert not any(p.requires_grad for t in learner.tunings for p in t.parameters())


def test_stored_features_of_old_backbones_serve_later_stages(engine: Engine, stream: Stream) -> None:
    learner, memory = make(engine, epochs=1), Memory(3)
    predictor = Predictor(learner, FeatureStore())
    test = stream.tasks[0].test
    for task in stream.tasks:
        learner.learn(task, memory)
        before = predictor.computed
        kept = predictor.logits(test)
        assert predictor.computed - before == len(test)  # the newest backbone alone
        assert torch.allclose(kept, learner.logits(engine.pixels(test)), atol=1e-4)


def test_a_new_backbone_starts_from_the_last(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0], Memory(3))
    start, last = learner.new_tuning().state_dict(), learner.tunings[-1].state_dict()
    assert all(torch.equal(start[name], value) for name, value in last.items())


def test_the_auxiliary_head_tells_new_classes_from_old_ones(engine: Engine, stream: Stream) -> None:
    learner, memory = make(engine), Memory(3)
    learner.learn(stream.tasks[0], memory)
    fit, sizes, losses = engine.fit, [], []

    def watching(module: Any, loss: Any, *args: Any, **kwargs: Any) -> list[float]:
        sizes.append(module.auxiliary.weight.shape[0])
        sure = torch.full((4, 3), -50.0)
        sure[[0, 1, 2, 3], [0, 0, 1, 2]] = 50  # old, old, first new, second new
        losses.append(float(loss((torch.zeros(4, 4), sure), torch.tensor([0, 1, 2, 3]))))
        return fit(module, loss, *args, **kwargs)

    engine.fit = watching  # type: ignore[method-assign]
    learner.learn(stream.tasks[1], memory)
    assert sizes == [3]
    # All of what is left is the main head's: log 4 for logits that say nothing.
    assert torch.isclose(torch.tensor(losses[0]), torch.tensor(4.0).log())


def test_a_widened_head_gives_the_old_logits_where_the_new_feature_is_zero() -> None:
    head = WideningLinear()
    draw = torch.Generator().manual_seed(0)
    head.widen(3, draw)
    head.grow(2, draw)
    features = torch.randn(2, 5, 3, generator=draw)
    before = head(features[0])
    head.widen(3, draw)
    head.grow(2, draw)
    features[1] = 0
    assert torch.allclose(head(side_by_side(features))[:, :2], before)
