"""DualPrompt's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from ease.backbone import Shape
from ease.methods.dualprompt import DualPool, DualPrompt, DualPromptSettings
from ease.streams import Stream
from ease.training.engine import Engine
from ease.tuning import PrefixPerImage


def make(engine: Engine, **settings: Any) -> DualPrompt:
    quick = {"epochs": 1, "batch_size": 12, "g_length": 2, "e_length": 3, "lr": 0.01}
    return DualPrompt(engine, DualPromptSettings(**{**quick, **settings}))


def pool_of(learner: DualPrompt) -> DualPool:
    assert isinstance(learner.pool, DualPool)
    return learner.pool


def learned(engine: Engine, stream: Stream, **settings: Any) -> DualPrompt:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def test_a_task_trains_its_own_expert_and_key_and_the_general_prompt(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    pool = pool_of(learner)
    for task in stream.tasks:
        before = {n: v.clone() for n, v in pool.state_dict().items()}
        learner.learn(task)
        after = pool.state_dict()
        for old in range(task.index):
            assert torch.equal(after[f"experts.{old}"], before[f"experts.{old}"])
            assert torch.equal(after[f"keys.{old}"], before[f"keys.{old}"])
        if task.index:
            assert not torch.equal(after["general"], before["general"])
            assert not torch.equal(after[f"experts.{task.index}"], before[f"experts.{task.index - 1}"])
    assert len(pool.experts) == len(pool.keys) == 3
    one_task = 2 * 2 * 2 * 48 + 2 * 3 * 48 + 48  # G in two blocks, E in one, a key
    assert learner.costs().trained == [one_task + seen * 49 for seen in (2, 4, 6)]


def test_a_new_expert_starts_as_the_one_before(engine: Engine, stream: Stream) -> None:
    learner = make(engine, epochs=0)
    pool = pool_of(learner)
    for task in stream.tasks[:2]:
        learner.learn(task)
    assert torch.equal(pool.experts[0], pool.experts[1])
    assert not torch.equal(pool.keys[0], pool.keys[1])


def test_training_uses_the_tasks_own_expert_and_testing_the_nearest_key(
    engine: Engine, stream: Stream
) -> None:
    pool = pool_of(learned(engine, stream))
    query = torch.stack([key.detach() * (2 + i) for i, key in enumerate(pool.keys)])[[2, 0, 1, 0]]
    for training, expected in ((True, [2, 2, 2, 2]), (False, [2, 0, 1, 0])):
        tuning, penalty = pool.train(training)(query)
        assert isinstance(tuning, PrefixPerImage)
        for block, row in ((2, 0),):
            found = tuning.prefix(block, 4)
            assert found is not None
            for which in (0, 1):
                wanted = torch.stack([pool.experts[t][row, which] for t in expected])
                assert torch.equal(found[which], wanted)
        similarity = [
            F.cosine_similarity(q, pool.keys[t], dim=0) for q, t in zip(query, expected, strict=True)
        ]
        assert torch.allclose(penalty, -0.1 * torch.stack(similarity).mean())
        for block in (0, 1):
            found = tuning.prefix(block, 4)
            assert found is not None
            assert torch.equal(found[0][3], pool.general[block, 0]), "the general prompt is everyone's"
            assert torch.equal(found[1][3], pool.general[block, 1])


def test_keys_are_pulled_to_their_own_tasks_queries(engine: Engine, stream: Stream) -> None:
    """On a random backbone all queries are alike; what counts is that the key goes where its task is."""
    query = engine.features(stream.tasks[0].train, [None])[0]
    reached = {}
    for pull in (0.0, 1.0):
        learner = make(engine, pull=pull, epochs=5)
        learner.learn(stream.tasks[0])
        key = pool_of(learner).keys[0].detach()
        reached[pull] = float(F.cosine_similarity(query, key[None]).mean())
    assert reached[1.0] > reached[0.0] + 0.05


@pytest.mark.parametrize(
    ("depth", "general", "expert"),
    [(12, [0, 1], [2, 3, 4]), (4, [0, 1], [2, 3]), (3, [0, 1], [2]), (2, [0], [1]), (1, [], [0])],
)
def test_a_shallow_backbone_has_fewer_blocks_for_prompts(
    depth: int, general: list[int], expert: list[int]
) -> None:
    pool = DualPool(Shape(8, depth, 2, 16), DualPromptSettings())
    assert (pool.g_blocks, pool.e_blocks) == (general, expert)
    pool.begin(0, torch.Generator().manual_seed(0))
    tuning, _ = pool(torch.randn(2, 8))
    assert [b for b in range(depth) if tuning.prefix(b, 2) is not None] == general + expert


def test_one_block_cannot_have_both_prompts() -> None:
    with pytest.raises(ValidationError, match="block 2 has a G-prompt already"):
        DualPromptSettings(e_layers=(2, 3))
