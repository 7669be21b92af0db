"""L2P's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from ease.methods.l2p import L2p, L2pSettings, NearestPrompts
from ease.streams import Stream
from ease.training.engine import Engine
from ease.tuning import PromptsPerImage


def make(engine: Engine, **settings: Any) -> L2p:
    quick = {"epochs": 1, "batch_size": 12, "pool": 6, "length": 2, "top_k": 3, "lr": 0.01}
    return L2p(engine, L2pSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> L2p:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def pool_of(learner: L2p) -> NearestPrompts:
    assert isinstance(learner.pool, NearestPrompts)
    return learner.pool


def tokens_for(pool: NearestPrompts, query: torch.Tensor) -> torch.Tensor:
    tuning, _ = pool(query)
    assert isinstance(tuning, PromptsPerImage)
    tokens = tuning.prompts(0, len(query))
    assert tokens is not None
    return tokens


def test_every_image_picks_its_own_nearest_prompts(engine: Engine, stream: Stream) -> None:
    pool = pool_of(learned(engine, stream))
    query = pool.keys.detach().clone()  # each query is nearest to the key that it copies
    query[0] = 0.7 * pool.keys[2] + 0.3 * pool.keys[5]
    tokens = tokens_for(pool, query).unflatten(1, (3, 2))
    for image in range(len(query)):
        similarity = F.cosine_similarity(query[image], pool.keys, dim=-1)
        picked = similarity.argsort(descending=True)[:3]
        expected = pool.prompts[picked] + pool.positions.unflatten(0, (3, 2))
        assert torch.allclose(tokens[image], expected)
        assert image == 0 or picked[0] == image
    assert len({tuple(t.flatten().tolist()) for t in tokens}) > 1, "not one set for the batch"


def test_the_head_reads_the_mean_output_of_the_prompts_not_the_class_token(
    engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream)
    pixels = engine.pixels(stream.tasks[0].test)
    with torch.no_grad():
        tuning, _ = learner.pool(engine.backbone.forward(pixels))
        tokens = engine.backbone.forward(pixels, tuning, "tokens")
        assert tokens.shape[1] == 1 + 3 * 2 + 16
        expected = learner.linear(tokens[:, 1:7].mean(dim=1))
        of_class_token = learner.linear(tokens[:, 0])
    logits = learner.logits(pixels)
    assert torch.allclose(logits, expected, atol=1e-5)
    assert not torch.allclose(logits, of_class_token, atol=1e-2)


def test_picked_keys_are_pulled_to_their_queries(engine: Engine, stream: Stream) -> None:
    images = engine.pixels(stream.tasks[0].train)
    query = engine.backbone.features(images, [None])[0]
    reached = {}
    for pull in (0.0, 1.0):
        learner = make(engine, pull=pull, epochs=4)
        learner.learn(stream.tasks[0])
        _, penalty = learner.pool(query)
        nearest = F.cosine_similarity(query[:, None], pool_of(learner).keys, dim=-1).topk(3).values
        assert torch.allclose(penalty, -pull * nearest.sum(1).mean())
        reached[pull] = float(nearest.detach().mean())
    assert reached[1.0] > reached[0.0] + 0.05


def test_rows_of_old_classes_stay_while_new_ones_are_learned(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    for task in stream.tasks:
        before = learner.linear.weight.detach().clone()
        learner.learn(task)
        assert torch.equal(learner.linear.weight[: len(before)], before), "old logits are masked"
    assert len(learner.linear.bias) == 6


def test_cost_is_two_passes_and_one_pool(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream)
    pool = 6 * (48 + 2 * 48) + 3 * 2 * 48
    assert learner.passes_per_image() == 2
    assert learner.costs().trained == [pool + seen * 49 for seen in (2, 4, 6)]
    assert learner.costs().stored == pool + 6 * 49


def test_more_picks_than_prompts_are_refused() -> None:
    with pytest.raises(ValidationError, match="cannot select more"):
        L2pSettings(pool=3, top_k=4)
