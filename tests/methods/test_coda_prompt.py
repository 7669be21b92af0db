"""CODA-Prompt's own promises."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from ease.methods.coda_prompt import CodaPrompt, CodaPromptSettings, Components, orthonormal_rows
from ease.streams import Stream
from ease.training.engine import Engine
from ease.tuning import PrefixPerImage

KINDS = ("prompts", "keys", "attention")


def make(engine: Engine, **settings: Any) -> CodaPrompt:
    quick = {"epochs": 1, "batch_size": 12, "components": 3, "length": 4, "lr": 0.01}
    return CodaPrompt(engine, CodaPromptSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> CodaPrompt:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def pool_of(learner: CodaPrompt) -> Components:
    assert isinstance(learner.pool, Components)
    return learner.pool


def test_new_components_train_while_old_ones_stay_bit_identical(engine: Engine, stream: Stream) -> None:
    learner, untrained = make(engine), make(engine, epochs=0)
    pool = pool_of(learner)
    for task in stream.tasks:
        before = {n: v.clone() for n, v in pool.state_dict().items()}
        untrained.pool.load_state_dict(before)
        untrained.learn(task)  # the same start, no step
        start = untrained.pool.state_dict()
        learner.learn(task)
        after = pool.state_dict()
        assert set(after) - set(before) == {f"{kind}.{task.index}" for kind in KINDS}
        assert all(torch.equal(after[name], value) for name, value in before.items())
        for kind in KINDS:
            assert not torch.equal(after[f"{kind}.{task.index}"], start[f"{kind}.{task.index}"])
    one_task = 3 * 3 * (4 * 48 + 2 * 48)  # three blocks, three components
    assert learner.costs().trained == [one_task + seen * 49 for seen in (2, 4, 6)]
    assert learner.costs().stored == 3 * one_task + 6 * 49


def test_the_prompt_is_the_sum_of_all_components_weighted_by_attention(
    engine: Engine, stream: Stream
) -> None:
    pool = pool_of(learned(engine, stream))
    query = engine.features(stream.tasks[1].test, [None])[0]
    with torch.no_grad():
        tuning, penalty = pool(query)
    assert isinstance(tuning, PrefixPerImage)
    assert penalty == 0
    for block in range(3):
        found = tuning.prefix(block, len(query))
        assert found is not None
        for image, q in enumerate(query):
            expected = torch.zeros(4, 48)
            for task in range(3):
                for m in range(3):
                    attended = q * pool.attention[task][block, m]
                    weight = F.cosine_similarity(attended, pool.keys[task][block, m], dim=0)
                    expected += weight.detach() * pool.prompts[task][block, m].detach()
            assert torch.allclose(torch.cat([found[0][image], found[1][image]]), expected, atol=1e-5)
            assert found[0][image].shape == (2, 48), "one half keys, one half values"


def test_new_components_start_orthonormal_and_orthogonal_to_old_ones(engine: Engine, stream: Stream) -> None:
    learner = make(engine, lr=0.1)
    learner.learn(stream.tasks[0])
    pool = pool_of(learner)
    pool.begin(1, torch.Generator().manual_seed(0))
    for kind in KINDS:
        old, new = (part.detach().flatten(2) for part in getattr(pool, kind))
        assert torch.allclose(new @ new.mT, torch.eye(3).expand(3, 3, 3), atol=1e-5)
        assert (new @ old.mT).abs().max() < 1e-5


def test_a_full_space_takes_more_rows_of_length_one() -> None:
    draw = torch.Generator().manual_seed(0)
    old = torch.randn(6, 8, generator=draw)
    rows = orthonormal_rows(4, old, (8,), draw)
    assert torch.allclose(rows.norm(dim=1), torch.ones(4))
    assert (rows[:2] @ old.T).abs().max() < 1e-5, "two still had room"
    assert torch.isfinite(orthonormal_rows(3, torch.randn(9, 8, generator=draw), (8,), draw)).all()


def test_the_orthogonality_term_keeps_components_apart(engine: Engine, stream: Stream) -> None:
    overlap = {}
    for weight in (0.0, 100.0):
        learner = make(engine, epochs=4, lr=0.02, orthogonality=weight)
        learner.learn(stream.tasks[0])
        rows = pool_of(learner).keys[0].detach()
        overlap[weight] = float((rows @ rows.mT - torch.eye(3)).square().mean())
    assert overlap[100.0] < 0.5 * overlap[0.0]


def test_old_components_count_in_the_features_of_new_tasks(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream)
    pixels = engine.pixels(stream.tasks[2].test)
    before = learner.logits(pixels)
    with torch.no_grad():
        pool_of(learner).prompts[0] += 1.0
    assert not torch.allclose(learner.logits(pixels), before, atol=1e-3)


def test_blocks_that_the_backbone_lacks_are_left_out(engine: Engine) -> None:
    assert pool_of(make(engine)).blocks == [0, 1, 2]
    assert pool_of(make(engine, layers=(2, 9))).blocks == [1]
    assert pool_of(make(engine, layers=(8, 9))).blocks == [2], "the last one, if no other is left"
