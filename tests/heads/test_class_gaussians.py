"""Gaussians of classes: what is stored, and that draws have its moments."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.heads.class_gaussians import ClassGaussians, Covariance

FORMS: list[Covariance] = ["full", "low-rank", "diagonal"]


def features(count: int = 40, width: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(3)
    mixing = torch.randn(width, width, generator=random)
    drawn = torch.randn(2 * count, width, generator=random) @ mixing + 5
    return drawn, torch.arange(2).repeat_interleave(count)


@pytest.mark.parametrize("form", FORMS)
def test_drawn_features_have_the_moments_of_their_class(form: Covariance) -> None:
    some, labels = features()
    found = ClassGaussians(6, form, rank=3)
    found.add(some, labels, range(2))
    root = found.roots(ridge=0.5)[1]
    drawn = found.draw(1, 200_000, root, torch.Generator().manual_seed(0))
    expected = found.covariance_of(1).float() + 0.5 * torch.eye(6)
    scale = float(expected.diagonal().max())
    assert drawn.mean(dim=0).abs().max() < 0.02 * scale**0.5
    assert torch.allclose(drawn.mT.cov(), expected, atol=0.02 * scale)


@pytest.mark.parametrize("form", FORMS)
def test_the_variance_of_every_feature_is_exact_in_every_form(form: Covariance) -> None:
    some, labels = features()
    found = ClassGaussians(6, form, rank=3)
    found.add(some, labels, range(2))
    for position in range(2):
        mine = some[labels == position]
        assert torch.allclose(found.means[position], mine.mean(dim=0), atol=1e-5)
        variances = found.covariance_of(position).diagonal().float()
        assert torch.allclose(variances, mine.var(dim=0), rtol=1e-5)


def test_a_full_covariance_is_that_of_the_features_and_all_directions_give_the_same() -> None:
    some, labels = features()
    for form, rank in (("full", 1), ("low-rank", 6)):
        found = ClassGaussians(6, form, rank)  # type: ignore[arg-type]
        found.add(some, labels, range(2))
        assert torch.allclose(found.covariance_of(0).float(), some[labels == 0].mT.cov(), atol=1e-4)


def test_low_rank_takes_the_leading_directions() -> None:
    along = torch.tensor([[3.0, 4.0, 0.0]]) * torch.tensor([[-1.0], [0.0], [1.0]])
    found = ClassGaussians(3, "low-rank", rank=1)
    found.add(along, torch.zeros(3, dtype=torch.int64), range(1))
    directions = found.spreads(range(1))["directions"][0, 0]
    assert torch.allclose(directions.abs(), torch.tensor([3.0, 4.0, 0.0]), atol=1e-5)
    assert torch.allclose(found.spreads(range(1))["diagonal"], torch.zeros(1, 3), atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_one_image_is_a_class_too(form: Covariance) -> None:
    found = ClassGaussians(4, form, rank=2)
    found.add(torch.ones(1, 4), torch.zeros(1, dtype=torch.int64), range(1))
    drawn = found.draw(0, 9, found.roots(ridge=0.0)[0], torch.Generator())
    assert drawn.abs().max() < 1e-6


@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 30), width=st.integers(1, 12), scale=st.floats(1e-4, 1e4))
def test_a_covariance_of_few_images_can_be_drawn_from_without_a_ridge(
    count: int, width: int, scale: float
) -> None:
    random = torch.Generator().manual_seed(count * 100 + width)
    found = ClassGaussians(width)
    found.add(scale * torch.randn(count, width, generator=random), torch.zeros(count, dtype=torch.int64), [0])
    assert found.draw(0, 5, found.roots(0.0)[0], random).isfinite().all()


@pytest.mark.parametrize("form", FORMS)
def test_saved_by_task_and_loaded(form: Covariance) -> None:
    some, labels = features()
    found = ClassGaussians(6, form, rank=3)
    found.add(some, labels, range(2))
    found.move(torch.ones(1, 6))
    again = ClassGaussians(6, form, rank=3)
    again.load(found.means, [found.spreads(range(1)), found.spreads(range(1, 2))])
    assert torch.equal(again.means, found.means)
    assert torch.allclose(again.means[0], some[labels == 0].mean(dim=0) + 1)
    for position in range(2):
        assert torch.equal(again.covariance_of(position), found.covariance_of(position))
    with pytest.raises(ValueError, match="do not fit 1 covariances"):
        again.load(found.means, [found.spreads(range(1))])
    wrong = {name: value[..., :-1] for name, value in found.spreads(range(2)).items()}
    with pytest.raises(ValueError, match=f"are no {form} covariances"):
        again.load(found.means, [wrong])
