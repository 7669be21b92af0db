"""Merging of tunings, weight by weight, against cases done by hand."""

from __future__ import annotations

import torch
from torch import nn

from ease.tuning.merging import mean_weights, move_towards, paired, sign_and_largest


def states(*rows: list[float]) -> list[dict[str, torch.Tensor]]:
    return [{"w": torch.tensor(row)} for row in rows]


def test_the_mean_of_every_weight() -> None:
    found = mean_weights(states([1.0, -2.0], [2.0, 0.0], [6.0, 5.0]))
    assert found["w"].tolist() == [3.0, 1.0]


def test_sign_of_the_sum_and_the_largest_magnitude_of_that_sign() -> None:
    first, second, third = (
        [4.0, 1.0, -1.0, 2.0, 0.0],
        [-3.0, 1.5, -6.0, -2.0, 0.0],
        [1.0, -9.0, 2.0, 0.0, 5.0],
    )
    # Sums: 2, -6.5, -5, 0, 5. In the second place only -9 is negative; the largest magnitude of all, 6 in the third,
    # has the sign of its sum; a sum of zero has no sign.
    found = sign_and_largest(states(first, second, third))
    assert found["w"].tolist() == [4.0, -9.0, -6.0, 0.0, 5.0]


def test_a_large_weight_of_the_other_sign_does_not_count() -> None:
    # The sum is 1: of the positive ones 4 is the largest, though -6 has a larger magnitude.
    assert sign_and_largest(states([-6.0], [4.0], [3.0]))["w"].tolist() == [4.0]


def test_one_tuning_merged_is_itself_and_every_tensor_is_merged() -> None:
    one = {"down.weight": torch.tensor([[1.0, -2.0]]), "down.bias": torch.tensor([0.0, 3.0])}
    found = sign_and_largest([one])
    assert found.keys() == one.keys()
    assert all(torch.equal(found[name], one[name]) for name in one)


def test_weights_move_by_a_share_of_the_way() -> None:
    module = nn.Linear(1, 1)
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(0.0)
    target = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([-1.0])}
    move_towards(paired(module, target), 0.1)
    assert torch.allclose(module.weight, torch.tensor([[1.1]]))
    assert torch.allclose(module.bias, torch.tensor([-0.1]))
    assert module.weight.requires_grad
