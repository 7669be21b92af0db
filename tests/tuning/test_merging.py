"""Merging of weights, by hand."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from ease.tuning.merging import mean_weights, move_towards, paired, sign_and_largest


def states(*rows: list[float]) -> list[dict[str, torch.Tensor]]:
    return [{"w": torch.tensor(row)} for row in rows]


def test_means_by_hand() -> None:
    assert mean_weights(states([1.0, -2.0], [3.0, 0.0]))["w"].tolist() == [2.0, -1.0]


def test_sign_and_largest_by_hand() -> None:
    # Sums: 2 (the largest positive is 3), -3 (the largest negative is -4), 0, and 0.5.
    merged = sign_and_largest(states([3.0, -4.0, 1.0, 0.5], [-2.0, 2.0, -1.0, 0.0], [1.0, -1.0, 0.0, 0.0]))
    assert merged["w"].tolist() == [3.0, -4.0, 0.0, 0.5]


def test_a_large_weight_of_the_other_sign_does_not_count() -> None:
    # The sum is 1: of the positive ones 4 is the largest, though -6 has a larger magnitude.
    assert sign_and_largest(states([-6.0], [4.0], [3.0]))["w"].tolist() == [4.0]


def test_one_tuning_merged_is_itself_and_every_tensor_is_merged() -> None:
    one = {"down.weight": torch.tensor([[1.0, -2.0]]), "down.bias": torch.tensor([0.0, 3.0])}
    found = sign_and_largest([one])
    assert found.keys() == one.keys()
    assert all(torch.equal(found[name], one[name]) for name in one)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.floats(-5, 5, width=32), min_size=3, max_size=3), min_size=1, max_size=5))
def test_sign_and_largest_picks_one_of_the_weights_or_zero(rows: list[list[float]]) -> None:
    merged = sign_and_largest(states(*rows))["w"]
    for column, value in enumerate(merged.tolist()):
        assert value == 0 or value in torch.tensor([row[column] for row in rows]).tolist()


def test_moving_towards_a_target_by_its_share() -> None:
    module, other = nn.Linear(2, 1), nn.Linear(2, 1)
    expected = 0.9 * module.weight.detach() + 0.1 * other.weight.detach()
    kept = other.weight.detach().clone()
    move_towards(paired(module, other), 0.1)
    assert torch.allclose(module.weight.detach(), expected)
    assert torch.equal(other.weight.detach(), kept)
    move_towards(paired(module, other.state_dict()), 1.0)
    assert torch.equal(module.bias.detach(), other.bias.detach())
