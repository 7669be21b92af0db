"""DAP's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.backbone import Tuning
from ease.methods.dap import Dap, DapSettings, GeneratedPrompts, PromptGenerator, batch_vote_analysis
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Dap:
    quick = {"epochs": 2, "batch_size": 12, "length": 3, "embedding": 4}
    return Dap(engine, DapSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Dap:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def pool_of(learner: Dap) -> PromptGenerator:
    assert isinstance(learner.pool, PromptGenerator)
    return learner.pool


def tiny() -> PromptGenerator:
    """Tokens of width 2, three of them, one block, one prompt, embeddings of width 1."""
    pool = PromptGenerator(2, 3, 1, DapSettings(length=1, embedding=1))
    pool.begin(0, torch.Generator().manual_seed(0))
    with torch.no_grad():
        pool.down.copy_(torch.tensor([[[1.0, 2.0, -1.0]]]))
        pool.down_bias.fill_(0.5)
        pool.norm.copy_(torch.tensor([[1.0, 2.0]]))
        pool.norm_bias.copy_(torch.tensor([[0.0, 1.0]]))
        pool.film.copy_(torch.tensor([[[3.0], [4.0], [0.0], [-1.0]]]))
        pool.film_bias.copy_(torch.tensor([[0.0, 0.0, 2.0, 2.0]]))
    return pool


def test_prompts_by_hand() -> None:
    pool = tiny()
    # Each token of two channels is normed to (1, -1) or (-1, 1); with weight (1, 2) and bias (0, 1) that is
    # (1, -1) or (-1, 3). W = (1, 2, -1), c = .5.
    tokens = torch.tensor([[[5.0, 1.0], [0.0, 8.0], [3.0, -7.0]]])
    # (1, -1) + 2 (-1, 3) - (1, -1) + .5 = (-1.5, 6.5)
    # e = 2: gain (6, 8) / 10, shift (2, 0) / 2
    expected = torch.tensor([[[0.6 * -1.5 + 1.0, 0.8 * 6.5 + 0.0]]])
    found = pool.prompts(0, tokens, torch.tensor([[2.0]]))
    assert torch.allclose(found, expected, atol=1e-5)
    two = pool.prompts(0, tokens.expand(2, -1, -1), torch.tensor([[2.0], [-1.0]]))
    assert torch.allclose(two[:1], expected, atol=1e-5)
    # e = -1: gain (-3, -4) / 5, shift (2, 3) / sqrt 13
    other = torch.tensor([-0.6 * -1.5 + 2 / 13**0.5, -0.8 * 6.5 + 3 / 13**0.5])
    assert torch.allclose(two[1, 0], other, atol=1e-5)


def test_no_gradient_passes_through_the_norms_of_gain_and_shift() -> None:
    pool = tiny()
    embedding = torch.tensor([[2.0]], requires_grad=True)
    pool.prompts(0, torch.tensor([[[5.0, 1.0], [0.0, 8.0], [3.0, -7.0]]]), embedding).sum().backward()
    # d gain / d e = (3, 4) / 10 and d shift / d e = (0, -1) / 2, with the norms 10 and 2 held fixed
    assert embedding.grad is not None
    assert float(embedding.grad) == pytest.approx(0.3 * -1.5 + 0.4 * 6.5 - 0.5, abs=1e-4)


@pytest.mark.parametrize("last", [True, False])
def test_every_block_makes_prompts_from_its_own_tokens_and_they_are_removed_again(
    last: bool, engine: Engine, stream: Stream
) -> None:
    """Against timm's own blocks."""
    learner = learned(engine, stream, last=last)
    pool, vit = pool_of(learner), engine.backbone.vit
    pixels = engine.pixels(stream.tasks[1].test)[:5]
    chosen = torch.tensor([0, 1, 2, 1, 0])
    with torch.no_grad():
        embeddings = torch.stack(list(pool.embeddings))[chosen]
        x = vit.norm_pre(vit._pos_embed(vit.patch_embed(pixels)))
        for layer, block in enumerate(vit.blocks):
            if layer < 2 or last:
                made = pool.prompts(layer, x, embeddings)
                out = block(torch.cat([x[:, :1], made, x[:, 1:]], dim=1))
                x = torch.cat([out[:, :1], out[:, 4:]], dim=1)
            else:
                x = block(x)
        expected = vit.norm(x)[:, 0]
        found = learner.read(pixels, pool.tuning_for(chosen))
    assert torch.allclose(found, expected, atol=1e-5)
    assert pool.down.abs().max() > 0


def test_each_image_takes_the_task_of_its_nearest_key(engine: Engine, stream: Stream) -> None:
    pool = pool_of(learned(engine, stream))
    keys = torch.stack(list(pool.keys)).detach()
    query = torch.cat([3.0 * keys, 0.2 * keys[1:2] + 0.1 * keys[2:]])
    tuning, _ = pool(query)
    assert isinstance(tuning, GeneratedPrompts)
    nearest = [int(F.cosine_similarity(q[None], keys).argmax()) for q in query]
    assert nearest[:3] == [0, 1, 2]
    assert torch.equal(tuning._of[1], torch.stack(list(pool.embeddings))[nearest])


def test_training_takes_the_newest_task_and_pulls_its_key(engine: Engine, stream: Stream) -> None:
    images = engine.pixels(stream.tasks[0].train)
    query = engine.backbone.features(images, [None])[0]
    reached = {}
    for pull in (0.0, 1.0):
        learner = make(engine, pull=pull, epochs=4)
        for task in stream.tasks[:2]:
            learner.learn(task)
        pool = pool_of(learner)
        newest = F.cosine_similarity(query, pool.keys[1])
        tuning, penalty = pool.train()(query)
        assert isinstance(tuning, GeneratedPrompts)
        assert torch.equal(tuning._of[1], pool.embeddings[1].expand(len(query), -1))
        assert torch.allclose(penalty, -pull * newest.mean())
        own = engine.backbone.features(engine.pixels(stream.tasks[1].train), [None])[0]
        reached[pull] = float(F.cosine_similarity(own, pool.keys[1].detach()).mean())
    assert reached[1.0] > reached[0.0] + 0.05


def test_what_each_task_trains(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0])
    pool = pool_of(learner)
    before = {name: value.detach().clone() for name, value in pool.named_parameters()}
    learner.learn(stream.tasks[1])
    moved = {
        n for n, v in pool_of(learner).named_parameters() if n in before and not torch.equal(v, before[n])
    }
    assert moved == {"film", "film_bias", "norm", "norm_bias"}
    shared, later = 3 * (2 * 48 * 4 + 2 * 48 + 2 * 48), 48 + 4
    down = 3 * (3 * 17 + 3)
    assert learner.costs().trained == [down + shared + later + 2 * 49, shared + later + 4 * 49]
    assert learner.costs().stored == down + shared + 2 * later + 4 * 49
    assert learner.passes_per_image() == 2


def test_counts_of_the_released_settings() -> None:
    for settings, count in (
        (DapSettings(), 363_376),
        (DapSettings(length=30, embedding=64), 1_296_112),
    ):
        pool = PromptGenerator(768, 197, 12, settings)
        for task in range(10):
            pool.begin(task, torch.Generator())
        assert sum(p.numel() for p in pool.parameters()) == count


def test_the_start_does_not_read_the_tokens(engine: Engine, stream: Stream) -> None:
    pool = pool_of(make(engine))
    pool.begin(0, torch.Generator())
    tokens = torch.randn(2, 17, 48)
    first, second = pool.prompts(0, tokens, pool.embeddings[0].expand(2, -1))
    assert torch.equal(first, second), "W and c start at zero: what is left is the shift"
    assert first.norm(dim=1).tolist() == pytest.approx([1.0] * 3, abs=1e-5)


def test_optimizer_is_adam_with_the_released_options() -> None:
    optimizer = DapSettings().make_optimizer(torch.nn.Linear(2, 2))
    assert isinstance(optimizer, torch.optim.Adam)
    (group,) = optimizer.param_groups
    assert (group["betas"], group["amsgrad"], group["lr"]) == ((0.9, 0.9), True, 0.01)
    other = DapSettings(optimizer="sgd", lr=0.25).make_optimizer(torch.nn.Linear(2, 2))
    assert isinstance(other, torch.optim.SGD)


class TestBatchVote:
    """The released evaluation, which is no method here: what it would change."""

    def test_a_batch_of_one_image_is_the_prediction(self, engine: Engine, stream: Stream) -> None:
        learner = learned(engine, stream)
        pixels = engine.pixels(stream.tasks[1].test)
        assert torch.allclose(batch_vote_analysis(learner, pixels, 1), learner.logits(pixels), atol=1e-5)

    def test_a_batch_of_one_task_gives_every_image_the_task_of_most(
        self, engine: Engine, stream: Stream
    ) -> None:
        learner = learned(engine, stream)
        pool, pixels = pool_of(learner).eval(), engine.pixels(stream.tasks[1].test)[:5]
        query = engine.backbone.features(pixels, [None])[0]
        with torch.no_grad():  # three images are nearest to the key of task 3, two to that of task 1
            towards = F.normalize(query, dim=1).pinverse() @ torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
            pool.keys[2].copy_(towards)
            pool.keys[0].copy_(-towards)
            pool.keys[1].copy_(-query.mean(0))
        keys = torch.stack(list(pool.keys))
        picked = F.cosine_similarity(query[:, None], keys, dim=-1).argmax(1)
        assert picked.tolist() == [2, 2, 2, 0, 0]
        voted, alone = batch_vote_analysis(learner, pixels, 5), learner.logits(pixels)
        assert torch.allclose(voted[:3], alone[:3], atol=1e-5)
        assert (voted[3:] - alone[3:]).abs().amax(1).min() > 1e-3, "the minority is given another task"

        def of_task(task: int) -> torch.Tensor:
            tuning: Tuning = pool.tuning_for(torch.full((5,), task))
            with torch.no_grad():
                return learner.linear(learner.read(pixels, tuning))

        assert torch.allclose(voted, of_task(2), atol=1e-5)
        assert torch.allclose(batch_vote_analysis(learner, pixels, 2)[2:4], of_task(0)[2:4], atol=1e-5), (
            "a tie goes to the first task"
        )
        ruled_out = batch_vote_analysis(learner, pixels, 5, only_voted=True)
        assert torch.equal(ruled_out.isfinite(), torch.tensor([[False] * 4 + [True] * 2] * 5))
        assert torch.equal(ruled_out[:, 4:], voted[:, 4:])
