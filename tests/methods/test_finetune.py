"""What the two baselines promise, and the plumbing they share."""

from __future__ import annotations

import torch

from ease.methods._sequential import SequentialSettings
from ease.methods.finetune import Finetune
from ease.methods.finetune_adapter import FinetuneAdapter, FinetuneAdapterSettings
from ease.streams import Stream
from ease.training.engine import Engine


def test_later_tasks_leave_the_old_rows_of_the_head_alone_but_move_the_network(
    engine: Engine, stream: Stream
) -> None:
    learner = Finetune(
        engine,
        SequentialSettings(epochs=2, lr=0.01, batch_size=12, weight_decay=0.0, later_weight_decay=0.0),
    )
    learner.learn(stream.tasks[0])
    rows = learner.linear.weight.detach().clone()
    features = engine.features(stream.tasks[0].test, [learner.tuned])
    learner.learn(stream.tasks[1])
    # Cross-entropy over the new logits alone gives the old rows no gradient.
    assert torch.equal(learner.linear.weight[:2], rows)
    assert not torch.allclose(engine.features(stream.tasks[0].test, [learner.tuned]), features, atol=1e-3)


def test_weight_decay_changes_after_the_first_task(engine: Engine, stream: Stream) -> None:
    learner = Finetune(engine, SequentialSettings(weight_decay=0.5, later_weight_decay=0.25))
    assert [learner.training_of(task).weight_decay for task in stream.tasks] == [0.5, 0.25, 0.25]


def test_one_adapter_serves_all_tasks(engine: Engine, stream: Stream) -> None:
    learner = FinetuneAdapter(engine, FinetuneAdapterSettings(epochs=1, lr=0.05, batch_size=12, rank=4))
    ptm = engine.features(stream.tasks[0].test, [None])
    assert torch.allclose(engine.features(stream.tasks[0].test, [learner.tuned]), ptm, atol=1e-5)
    adapter = learner.tuned
    for task in stream.tasks:
        learner.learn(task)
        assert [s.tuning for s in learner.subspaces()] == [adapter]
    width, depth = engine.backbone.dim, engine.backbone.shape.depth
    assert adapter.parameter_count() == depth * (2 * width * 4 + 4 + width)
    assert float(adapter.state_dict()["up.0.weight"].abs().max()) > 0
