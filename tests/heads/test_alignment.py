"""The alignment of a head on drawn features."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ease.heads.alignment import AlignmentSettings, align, mean_factors, normalised
from ease.heads.class_gaussians import ClassGaussians


def two_classes(spread: float = 0.5) -> ClassGaussians:
    random = torch.Generator().manual_seed(1)
    centres = torch.tensor([[2.0, 0.0, 0.0], [0.0, 2.0, 0.0]]).repeat_interleave(20, dim=0)
    found = ClassGaussians(3)
    found.add(
        centres + spread * torch.randn(40, 3, generator=random), torch.arange(2).repeat_interleave(20), [0, 1]
    )
    return found


def seeded(seed: int = 0) -> Callable[[int], torch.Generator]:
    return lambda epoch: torch.Generator().manual_seed(seed + epoch)


def zero_head() -> nn.Linear:
    head = nn.Linear(3, 2)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def test_a_head_learns_the_classes_from_draws_alone() -> None:
    head, gaussians = zero_head(), two_classes()
    losses = align(head, gaussians, AlignmentSettings(align_lr=0.1), [1, 1], seeded())
    assert len(losses) == 5
    assert losses[-1] < losses[0] < math.log(2)
    assert head(gaussians.means).argmax(dim=1).tolist() == [0, 1]
    assert all(p.grad is None for p in head.parameters())


def test_the_same_random_numbers_give_the_same_head_and_others_another() -> None:
    found = []
    for seed in (0, 0, 100):
        head = zero_head()
        align(head, two_classes(), AlignmentSettings(), [1, 1], seeded(seed))
        found.append(head.weight.detach())
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_one_step_is_a_step_of_sgd_on_draws_whose_moments_are_known() -> None:
    """Without variance, every draw is the mean: one step from zero is minus the rate times the mean gradient."""
    gaussians = ClassGaussians(3)
    gaussians.add(torch.eye(3)[:2], torch.arange(2), [0, 1])
    head = zero_head()
    settings = AlignmentSettings(align_epochs=1, align_draws=2, align_ridge=0.0, align_weight_decay=0.0)
    # One epoch has two batches of two; with momentum 0 and a tiny rate, the sum of both is that of all four.
    settings = settings.model_copy(update={"align_momentum": 0.0, "align_lr": 1e-3})
    align(head, gaussians, settings, [2], seeded())
    by_hand = 1e-3 * 0.5 * torch.tensor([[1.0, -1.0, 0.0], [-1.0, 1.0, 0.0]])
    assert torch.allclose(head.weight.detach(), by_hand, atol=2e-6)


def test_a_frozen_row_stays() -> None:
    head = zero_head()
    head.bias.requires_grad_(False)
    align(head, two_classes(), AlignmentSettings(), [1, 1], seeded())
    assert torch.equal(head.bias, torch.zeros(2))
    assert head.weight.abs().max() > 0


def test_no_epochs_leave_the_head() -> None:
    head = zero_head()
    assert align(head, two_classes(), AlignmentSettings(align_epochs=0), [1, 1], seeded()) == []
    assert torch.equal(head.weight, torch.zeros(2, 3))


def test_factors_of_means_by_hand() -> None:
    assert mean_factors("plain", [2, 1]).tolist() == [1, 1, 1]
    assert mean_factors("rising", [2, 1, 1]).tolist() == pytest.approx(
        [0.9 + 0.1 / 3] * 2 + [0.9 + 0.2 / 3, 1]
    )
    assert mean_factors("falling", [2, 1, 1]).tolist() == pytest.approx(
        [0.9] * 2 + [0.9 - 0.1 / 3, 0.9 - 0.2 / 3]
    )


def test_the_factor_shortens_the_mean_that_is_drawn_from() -> None:
    gaussians = ClassGaussians(3)
    gaussians.add(torch.eye(3)[:2], torch.arange(2), [0, 1])
    seen: list[torch.Tensor] = []

    class Spy(nn.Linear):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            seen.append(features.detach())
            return super().forward(features)

    settings = AlignmentSettings(align_epochs=1, align_draws=4, align_ridge=0.0, align_means="rising")
    align(Spy(3, 2), gaussians, settings, [1, 1], seeded())
    drawn = torch.cat(seen).sum(dim=1).sort().values
    assert torch.allclose(drawn, torch.tensor([0.95] * 4 + [1.0] * 4), atol=1e-4)


def test_norms_of_logits_by_hand() -> None:
    logits = torch.tensor([[3.0, 4.0, 12.0]])
    whole = normalised(logits, 0.1, "whole", [2, 1])
    by_task = normalised(logits, 0.1, "task-mean", [2, 1])
    assert torch.allclose(whole, logits / 13 / 0.1)
    assert torch.allclose(by_task, logits / ((5 + 12) / 2) / 0.1)


def test_the_rate_falls_to_zero_over_its_period_and_rises_again() -> None:
    rates: list[float] = []
    step = torch.optim.SGD.step

    def watched(self: torch.optim.SGD, *args: object) -> object:
        rates.append(self.param_groups[0]["lr"])
        return step(self, *args)  # type: ignore[arg-type]

    settings = AlignmentSettings(align_epochs=4, align_period=2, align_lr=1.0, align_draws=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", watched)
        align(zero_head(), two_classes(), settings, [1, 1], seeded())
    assert rates[::2] == pytest.approx([1.0, 0.5, 0.0, 0.5])
