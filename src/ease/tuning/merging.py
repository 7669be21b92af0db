"""Several tunings of one shape merged into one, weight by weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

State = Mapping[str, Tensor]


def mean_weights(states: Sequence[State]) -> dict[str, Tensor]:
    """The mean of every weight.

    Example:
        >>> mean_weights([{"w": torch.tensor([1.0])}, {"w": torch.tensor([4.0])}])["w"].tolist()
        [2.5]
    """
    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def sign_and_largest(states: Sequence[State]) -> dict[str, Tensor]:
    """Every weight gets the sign of the sum and, of those with that sign, the largest magnitude (TUNA).

    A weight whose sum is zero becomes zero.

    Example:
        >>> values = [{"w": torch.tensor([3.0, -1.0])}, {"w": torch.tensor([-2.0, -5.0])}]
        >>> sign_and_largest(values)["w"].tolist()
        [3.0, -5.0]
    """
    merged = {}
    for name in states[0]:
        values = torch.stack([state[name] for state in states])
        sign = values.sum(dim=0).sign()
        merged[name] = sign * (values * sign).clamp(min=0).amax(dim=0)
    return merged


@torch.no_grad()
def move_towards(weights: Iterable[tuple[Tensor, Tensor]], share: float) -> None:
    """Move weights in place by a share of the way to a target: `w <- (1 - share) w + share target`.

    Args:
        weights: Pairs of a weight and its target.
        share: 0 leaves the weights, 1 copies the targets.
    """
    for weight, target in weights:
        weight.lerp_(target.to(weight), share)


def paired(module: nn.Module, target: nn.Module | State) -> list[tuple[Tensor, Tensor]]:
    """The parameters of a module, each with the tensor of the same name in another module or a state."""
    state = dict(target.named_parameters()) if isinstance(target, nn.Module) else target
    return [(weight, state[name]) for name, weight in module.named_parameters()]
