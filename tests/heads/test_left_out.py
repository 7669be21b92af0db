"""A learned image left out is scored as by a head that was made without it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.errors import EaseError
from ease.heads.left_out import left_out_scores
from ease.heads.whitened import WhitenedHead


def some_features(counts: list[int], width: int, seed: int) -> tuple[Tensor, Tensor]:
    """Classes around means of their own; some directions vary more than others."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    means = torch.randn(len(counts), width, generator=draw)
    noise = torch.randn(len(labels), width, generator=draw) * torch.logspace(0.5, -1, width)
    return means[labels] + noise + 1, labels


def made_of(features: Tensor, labels: Tensor, classes: int, parts: int = 1) -> WhitenedHead:
    head = WhitenedHead(features.shape[1], parts)
    head.grow(classes)
    head.add(features, labels)
    return head


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(2, 6), min_size=1, max_size=4),
    st.sampled_from([4, 8, 40]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 10**6),
)
def test_it_is_the_head_without_the_image(counts: list[int], width: int, parts: int, seed: int) -> None:
    """With the whole head's shares and its multiples of the identity, which are all that is taken over."""
    features, labels = some_features(counts, width, seed)
    whole = made_of(features, labels, len(counts), parts)
    found = left_out_scores(whole, features, labels)
    sigma_whole, share, own = whole.covariance()
    same_token = torch.block_diag(*[torch.ones(width // parts, width // parts)] * parts)
    weights = share + torch.tensor(own).repeat_interleave(width // parts)[:, None] * same_token
    rest_of_sigma = sigma_whole - weights * whole.scatter / whole.freedom
    for i in range(len(labels)):
        rest = torch.arange(len(labels)) != i
        without = made_of(features[rest], labels[rest], len(counts))
        sigma = rest_of_sigma + weights * without.scatter / whole.freedom
        inverse = torch.linalg.inv(sigma)
        centre = without.means.mean(dim=0) if len(counts) > 1 else torch.zeros(width)
        image, means = features[i].double() - centre, without.means - centre
        lengths = ((means @ inverse) * means).sum(dim=1) * (image @ inverse @ image)
        wanted = means @ inverse @ image / lengths.sqrt()
        assert torch.allclose(found[i].double(), wanted, atol=2e-3), (found[i], wanted)


def test_it_is_close_to_a_head_made_anew_and_far_from_what_a_learned_image_scores() -> None:
    features, labels = some_features([12] * 5, 64, seed=3)
    whole = made_of(features, labels, 5)
    found = left_out_scores(whole, features, labels)
    anew = []
    for i in range(len(labels)):
        rest = torch.arange(len(labels)) != i
        anew.append(made_of(features[rest], labels[rest], 5).scores(features[i : i + 1])[0])
    assert (found - torch.stack(anew)).abs().max() < 0.02
    own = found.gather(1, labels[:, None])
    assert (whole.scores(features).gather(1, labels[:, None]) - own).mean() > 0.08


def test_images_of_earlier_tasks_count_too() -> None:
    features, labels = some_features([6, 6, 6], 10, seed=1)
    whole = made_of(features, labels, 3)
    new = labels == 2
    assert torch.allclose(
        left_out_scores(whole, features[new], labels[new]), left_out_scores(whole, features, labels)[new]
    )


@pytest.mark.parametrize("counts", [[1], [1, 4], [1, 1, 1]])
def test_nothing_is_said_of_the_only_image_of_a_class(counts: list[int]) -> None:
    features, labels = some_features(counts, 6, seed=2)
    found = left_out_scores(made_of(features, labels, len(counts)), features, labels)
    lonely = torch.tensor(counts)[labels] == 1
    assert found[lonely].isnan().all()
    assert found[~lonely].isfinite().all()


def test_equal_images_are_no_trouble() -> None:
    features, labels = torch.ones(6, 4), torch.tensor([0, 0, 0, 1, 1, 1])
    assert left_out_scores(made_of(features, labels, 2), features, labels).isfinite().all()


def test_numbers_that_cannot_be_computed_with_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the eigenvalues of a forged mean of 1e38 once could not; that depends on the processor."""

    def fails(matrix: Tensor) -> None:
        raise torch.linalg.LinAlgError("linalg.eigh: (Batch element 0): The algorithm failed to converge")

    features, labels = some_features([3, 3], 4, 0)
    monkeypatch.setattr(torch.linalg, "eigh", fails)
    with pytest.raises(EaseError, match="of too different sizes"):
        left_out_scores(made_of(features, labels, 2), features, labels)
