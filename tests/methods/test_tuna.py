"""TUNA's own promises: the most certain adapter, the universal one, and what its released code does."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ease.methods._tuned_head import TunedHead
from ease.methods.tuna import (
    Tuna,
    TunaSettings,
    most_certain,
    overlap_of_directions,
    overlap_of_means,
    up_projections,
)
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Tuna:
    quick = {"epochs": 2, "lr": 0.05, "batch_size": 12, "rank": 4, "align_epochs": 2, "align_draws": 8}
    return Tuna(engine, TunaSettings(**{**quick, **settings}))


def learned(engine: Engine, stream: Stream, **settings: Any) -> Tuna:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def test_the_adapter_with_the_least_entropy_answers() -> None:
    # Image 0: adapter 0 is certain, of the wrong or the right class alike; image 1: adapter 1 is.
    probabilities = torch.tensor([[[0.9, 0.1], [0.6, 0.4]], [[0.5, 0.5], [0.2, 0.8]]])
    found = most_certain(probabilities.log() + 7.0)
    assert torch.allclose(found, torch.tensor([[0.9, 0.1], [0.2, 0.8]]))


def test_entropy_is_not_the_largest_probability() -> None:
    # Entropies 0.890 and 0.673: the second is lower, though 0.65 > 0.6.
    probabilities = torch.tensor([[[0.65, 0.175, 0.175]], [[0.6, 0.4, 1e-9]]])
    assert torch.allclose(most_certain(probabilities.log())[0], probabilities[1, 0], atol=1e-6)


@pytest.mark.parametrize("variant", ["text", "released"])
def test_the_answer_is_the_most_certain_adapters_plus_the_universal_ones(
    variant: str, engine: Engine, stream: Stream
) -> None:
    learner = learned(engine, stream, variant=variant)
    images = stream.tasks[0].test
    own = [one.tuning for one in learner.frozen]
    if variant == "text":
        universal = learner.new_adapter(by_hand(learner)).eval()
    else:
        universal = own[-1]  # type: ignore[assignment]
    features = engine.features(images, [*own, universal])
    rows = F.normalize(learner.linear.weight.detach(), dim=-1)
    every = (20 * F.normalize(features, dim=-1) @ rows.T).softmax(dim=-1)
    entropy = torch.special.entr(every[:3]).sum(dim=-1)
    expected = torch.stack([every[entropy[:, n].argmin(), n] for n in range(len(images))]) + every[3]
    assert torch.allclose(learner.logits(engine.pixels(images)), expected, atol=1e-5)
    assert not torch.allclose(every[2], every[3]) or variant == "released"


def by_hand(learner: Tuna) -> dict[str, torch.Tensor]:
    """The fused adapter, one number after the other."""
    states = learner.trained_states()
    merged = {}
    for name in states[0]:
        columns = torch.stack([state[name].flatten() for state in states]).T.tolist()
        values = []
        for column in columns:
            total = float(torch.tensor(column).sum())
            same = [value for value in column if value * total > 0]
            values.append(max(same, key=abs) if same else 0.0)
        merged[name] = torch.tensor(values).reshape(states[0][name].shape)
    return merged


def test_the_text_uses_the_fused_adapter_and_the_released_code_the_last_one(
    engine: Engine, stream: Stream
) -> None:
    text, released = (learned(engine, stream, variant=v) for v in ("text", "released"))
    assert text.fused is not None
    for name, value in by_hand(text).items():
        assert torch.allclose(text.fused.state_dict()[name], value)
    assert text.subspaces()[-1].tuning is text.fused
    assert text.passes_per_image() == 4
    assert released.fused is None
    assert released.subspaces()[-1].tuning is released.frozen[-1].tuning
    assert released.passes_per_image() == 3


def test_with_one_task_both_variants_take_one_pass(engine: Engine, stream: Stream) -> None:
    for variant in ("text", "released"):
        learner = make(engine, variant=variant)
        learner.learn(stream.tasks[0])
        assert learner.passes_per_image() == 1
        found = learner.logits(engine.pixels(stream.tasks[0].test))
        assert torch.allclose(found.sum(dim=1), torch.full((len(found),), 2.0), atol=1e-5)


def test_the_text_begins_anew_and_the_released_code_goes_on(engine: Engine, stream: Stream) -> None:
    text, released = make(engine, variant="text"), make(engine)
    for learner in (text, released):
        learner.learn(stream.tasks[0])
    new, last = text.start(1).state_dict(), text.frozen[0].tuning.state_dict()
    assert not new["up.0.weight"].any()
    assert not torch.equal(new["down.0.weight"], text.start(0).state_dict()["down.0.weight"])
    assert last["up.0.weight"].any()
    goes_on, last = released.start(1).state_dict(), released.frozen[0].tuning.state_dict()
    assert all(torch.equal(goes_on[name], last[name]) for name in last)


def test_overlaps_are_those_of_the_whole_products() -> None:
    torch.manual_seed(0)
    new, *earlier = torch.randn(3, 2, 5, 4)  # two blocks, d = 5, r = 4
    text = released = 0.0
    for old in earlier:
        for layer in range(2):
            text += float((new[layer] @ old[layer].T).abs().sum()) / 2
            product = F.normalize(new[layer], dim=1) @ F.normalize(old[layer], dim=1).T
            released += float(product.mean().abs()) / 2
    assert float(overlap_of_directions(new, earlier)) == pytest.approx(text, rel=1e-5)
    assert float(overlap_of_means(new, earlier)) == pytest.approx(released, rel=1e-4)


@pytest.mark.parametrize("variant", ["text", "released"])
def test_the_loss_is_a_margin_loss_among_new_classes_and_an_overlap_that_fades(
    variant: str, engine: Engine, stream: Stream
) -> None:
    overlap = overlap_of_directions if variant == "text" else overlap_of_means
    terms: list[tuple[float, float]] = []
    fit = engine.fit

    def watching(module: TunedHead, loss: Any, images: Any, *args: Any, **how: Any) -> list[float]:
        with torch.no_grad():
            for up in module.tuning.up:  # type: ignore[union-attr]
                up.weight.add_(0.01 * torch.randn(up.weight.shape, generator=draw))
            logits, labels = (
                torch.tensor([[4.0, 1.0], [0.5, 2.0]]),
                torch.tensor([1, 0]) + int(images.labels.min()),
            )
            earlier = [up_projections(one.tuning) for one in learner.frozen]
            expected = overlap(up_projections(module.tuning), earlier) if earlier else 0.0
            lowered = logits - 20 * 0.3 * torch.tensor([[0.0, 1.0], [1.0, 0.0]])
            plain = F.cross_entropy(lowered, torch.tensor([1, 0]))
            terms.append((float(loss(logits, labels) - plain), float(expected)))
        return fit(module, loss, images, *args, **how)

    engine.fit = watching  # type: ignore[method-assign, assignment]
    draw = torch.Generator().manual_seed(0)
    learner = make(engine, variant=variant, orthogonality=50.0, margin=0.3, epochs=0)
    for task in stream.tasks:
        learner.learn(task)
    assert terms[0] == (0.0, 0.0)
    for task, (found, expected) in enumerate(terms[1:], start=1):
        assert expected > 1e-3
        assert found == pytest.approx(50 * math.exp(-(task + 1)) * expected, rel=1e-2)


def test_the_rate_of_the_alignment_oscillates_in_the_released_code_only() -> None:
    assert TunaSettings().align_period == 5
    assert TunaSettings(variant="text").align_period is None
    assert TunaSettings(variant="text", align_period=7).align_period == 7
    again = TunaSettings.model_validate(TunaSettings(variant="text").model_dump())
    assert again.align_period is None


def test_nothing_old_is_written_again_and_predicting_changes_nothing(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
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
