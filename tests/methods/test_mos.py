"""MOS's own promises: merging while training, retrieval by the answer, and what its released code does."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.heads.linear import GrowingLinear
from ease.methods.mos import Mos, MosNetwork, MosSettings, Pulled, apart, retrieve
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.randomness import generator
from ease.tuning import Adapter
from ease.tuning.merging import mean_weights

State = dict[str, torch.Tensor]


def make(engine: Engine, **settings: Any) -> Mos:
    quick = {"epochs": 2, "lr": 0.05, "batch_size": 12, "rank": 4, "align_epochs": 2, "align_draws": 8}
    return Mos(engine, MosSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Mos:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def mixed(one: State, other: State, share: float) -> State:
    return {name: (1 - share) * one[name] + share * other[name] for name in one}


def close(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], atol=1e-6) for name in one)


def far(one: State, other: State) -> bool:
    return any(not torch.allclose(one[name], other[name], atol=1e-3) for name in one)


# --- retrieval ---


def winning(*tables: list[int]) -> torch.Tensor:
    """Scores [S, N, C] under which the adapter s answers image n with class `tables[s][n]`, of four classes."""
    return torch.stack([F.one_hot(torch.tensor(table), 4) * (s + 1.0) for s, table in enumerate(tables)])


def test_retrieval_ends_at_the_fixed_point() -> None:
    # Class c belongs to adapter c. From class 1, image 0 is led to 2, then to 3, which stays; image 1 stays at once.
    scores = winning([0, 0], [2, 1], [3, 0], [3, 0])
    found = retrieve(scores, torch.tensor([1, 1]), torch.arange(4), rounds=4)
    assert torch.equal(found, torch.stack([scores[3, 0], scores[1, 1]]))


def test_a_cycle_stops_after_four_rounds() -> None:
    scores = winning([1], [0], [2], [3])  # adapter 0 answers 1, adapter 1 answers 0
    # Tried are 0, 1, 0, 1: the fourth one counts.
    found = retrieve(scores, torch.tensor([0]), torch.arange(4), rounds=4)
    assert torch.equal(found[0], scores[1, 0])
    found = retrieve(scores, torch.tensor([0]), torch.arange(4), rounds=3)
    assert torch.equal(found[0], scores[0, 0])


def test_classes_of_one_task_lead_to_the_same_adapter() -> None:
    scores = winning([1], [3], [2], [3])
    found = retrieve(scores, torch.tensor([0]), torch.tensor([0, 0, 1, 1]), rounds=4)
    assert torch.equal(found[0], scores[0, 0])


@pytest.mark.parametrize("variant", ["text", "released"])
def test_an_answer_is_that_of_the_algorithm_image_by_image(
    variant: str, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, variant=variant)
    images = stream.tasks[1].test
    every = engine.features(images, [learner.own(task) for task in range(3)])
    expected = []
    for n in range(len(images)):
        cosines = F.cosine_similarity(every[0, n][None], learner.prototypes)
        task = learner.task_of(int(cosines.argmax()))
        for _ in range(4):
            logits = learner.linear(every[task, n])
            answer = learner.task_of(int(logits.argmax()))
            if answer == task:
                break
            task = answer
        expected.append(logits.softmax(0) + (3 * cosines).softmax(0))
    found = learner.logits(engine.pixels(images))
    assert torch.allclose(found, torch.stack(expected), atol=1e-5)
    assert torch.allclose(found.sum(dim=1), torch.full((len(images),), 2.0), atol=1e-5)


# --- merging ---


@pytest.mark.parametrize(("variant", "merges"), [("text", 1), ("released", 4)])
def test_a_step_keeps_a_power_of_nine_tenths(
    variant: str, merges: int, engine: Engine, stream: Stream
) -> None:
    # The golden ViT has three blocks, so the released code merges 3 + 1 times per step.
    assert engine.backbone.shape.depth == 3
    learner = make(engine, variant=variant, lr=0.5)
    for task in stream.tasks[:2]:
        learner.learn(task)
    # A rate of nothing: all that moves the third adapter in its two steps of one epoch are the merges.
    learner.settings = learner.settings.model_copy(update={"lr": 1e-30, "epochs": 1})
    start, mean = learner.start(2).state_dict(), mean_weights(learner.trained_states())
    assert far(start, mean)
    learner.learn(stream.tasks[2])
    kept = 0.9 ** (2 * merges)
    assert close(learner.trained_states()[2], mixed(mean, start, kept))  # type: ignore[arg-type]


def pulled(engine: Engine) -> tuple[MosNetwork, State, State]:
    """A network whose adapter is pulled, its adapter's weights, and the mean it is pulled to."""
    draw = generator(3, "test")
    adapters = [Adapter(engine.backbone.shape, 4, dropout=0.0, generator=draw) for _ in range(2)]
    for adapter in adapters:
        for parameter in adapter.parameters():
            parameter.data.normal_(0, 0.3, generator=draw)
    adapter, other = adapters
    head = GrowingLinear(engine.backbone.dim)
    head.grow(2, draw)
    towards = other.state_dict()
    before = copy.deepcopy(adapter.state_dict())
    return MosNetwork(engine.backbone, Pulled(adapter, towards, 0.1), head).train(), before, towards


def test_in_the_released_code_block_l_computes_with_weights_merged_l_plus_1_times(
    engine: Engine, stream: Stream
) -> None:
    module, before, towards = pulled(engine)
    pixels = engine.pixels(stream.tasks[0].train)[:4]
    logits, features = module(pixels)
    logits.sum().backward()

    by_hand = Adapter(engine.backbone.shape, 4, dropout=0.0)
    merged = {}
    for name, value in before.items():
        keeps = 0.9 ** (int(name.split(".")[1]) + 1)
        merged[name] = keeps * value + (1 - keeps) * towards[name]
    by_hand.load_state_dict(merged)
    expected = engine.backbone.forward(pixels, by_hand)
    assert torch.allclose(features, expected, atol=1e-5)
    module.head(expected).sum().backward()
    adapter = module.tuning.adapter
    for (name, ours), theirs in zip(adapter.named_parameters(), by_hand.parameters(), strict=True):  # type: ignore[union-attr, operator]
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-4), name
    # The merges of the pass are done before the step of the optimizer.
    assert close(adapter.state_dict(), mixed(before, towards, 1 - 0.9**3))  # type: ignore[union-attr, operator, arg-type]


def test_a_pass_without_training_merges_nothing(engine: Engine, stream: Stream) -> None:
    module, before, _ = pulled(engine)
    module.eval()(engine.pixels(stream.tasks[0].train)[:4])
    assert close(module.tuning.adapter.state_dict(), before)  # type: ignore[union-attr, operator, arg-type]


# --- which adapter is whose ---


def test_in_the_released_code_an_adapter_ends_at_the_mean_of_the_earlier_ones(
    engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, lr=0.5)
    first, second, _ = learner.trained_states()
    assert far(first, second)  # type: ignore[arg-type]
    assert learner.own(0) is learner.own(1)
    assert close(learner.own(0).state_dict(), first)  # type: ignore[arg-type]
    assert close(learner.own(2).state_dict(), mixed(first, second, 0.5))  # type: ignore[arg-type]
    assert close(learner.start(3).state_dict(), learner.own(2).state_dict())
    assert learner.passes_per_image() == 2


def test_in_the_text_an_adapter_stays_as_it_was_trained(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, variant="text")
    for task, state in enumerate(learner.trained_states()):
        assert close(learner.own(task).state_dict(), state)  # type: ignore[arg-type]
    assert close(learner.start(3).state_dict(), learner.trained_states()[2])  # type: ignore[arg-type]
    assert learner.passes_per_image() == 3


@pytest.mark.parametrize("variant", ["text", "released"])
def test_gaussians_are_measured_under_the_own_adapter_and_prototypes_under_the_first(
    variant: str, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, variant=variant)
    for task in stream.tasks:
        features = engine.features(task.train, [learner.own(task.index), learner.frozen[0].tuning])
        for position in task.classes:
            own, first = features[:, torch.from_numpy(task.train.labels) == position].mean(dim=1)
            assert torch.allclose(learner.gaussians.means[position], own, atol=1e-5)
            assert torch.allclose(learner.prototypes[position], first, atol=1e-5)


@pytest.mark.parametrize("variant", ["text", "released"])
def test_nothing_old_is_written_again_and_predicting_changes_nothing(
    variant: str, engine: Engine, stream: Stream
) -> None:
    learner = make(engine, variant=variant)
    learner.learn(stream.tasks[0])
    before = copy.deepcopy(learner.state()[0])
    for task in stream.tasks[1:]:
        learner.learn(task)
    after = copy.deepcopy(learner.state()[0])
    for name in ("subspaces/0000", "prototypes/0000"):
        assert all(torch.equal(value, after[name][key]) for key, value in before[name].items())
    learner.logits(engine.pixels(stream.tasks[0].test))
    for name, part in learner.state()[0].items():
        assert all(torch.equal(value, after[name][key]) for key, value in part.items())


# --- training ---


def test_features_are_kept_apart_by_hand() -> None:
    # Rows (1, 0), (0, 1), (0, 1), products 0 or 1, over 0.5: the first row has one equal, the others two each.
    means, features = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    alone = math.log(math.exp(2) + 2) - 2
    shared = math.log(2 * math.exp(2) + 1) - 2
    assert float(apart(features, means, 0.5)) == pytest.approx((alone + 2 * shared) / 3)


def test_the_head_learns_at_a_tenth_of_the_rate_and_old_rows_are_masked(
    engine: Engine, stream: Stream
) -> None:
    given: list[dict[str, float]] = []
    fit = engine.fit

    def watching(*args: Any, **how: Any) -> list[float]:
        given.append(how["rate_factors"])
        return fit(*args, **how)

    engine.fit = watching  # type: ignore[method-assign]
    learner = make(engine, align_epochs=0, weight_decay=0.0)
    learner.learn(stream.tasks[0])
    before = learner.linear.weight.detach().clone()
    learner.learn(stream.tasks[1])
    assert given == [{"head": 0.1}] * 2
    assert torch.equal(learner.linear.weight[:2], before)
