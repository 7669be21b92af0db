"""Class means in the metric of the pooled covariance: exact sums, a known shrinkage, and an answer in every corner."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import OAS
from torch import Tensor

from ease.errors import EaseError
from ease.heads.whitened import UNRELATED, WhitenedHead, oas_shrinkage

WIDTH = 6


def some(count: int, classes: int, width: int = WIDTH, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features around different class means, and their labels; every class has an image."""
    draw = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (count - classes,), generator=draw)])
    mixing = torch.randn(width, width, generator=draw, dtype=torch.float64)
    centres = 3 * torch.randn(classes, width, generator=draw, dtype=torch.float64)
    noise = torch.randn(count, width, generator=draw, dtype=torch.float64) @ mixing
    return centres[labels] + noise + 5, labels


def head_of(features: Tensor, labels: Tensor, classes: int) -> WhitenedHead:
    head = WhitenedHead(features.shape[1])
    head.grow(classes)
    head.add(features, labels)
    return head


def assert_same(one: WhitenedHead, other: WhitenedHead) -> None:
    assert torch.equal(one.counts, other.counts)
    assert one.freedom == other.freedom
    for a, b in (
        (one.means, other.means),
        (one.scatter, other.scatter),
        (one.covariance().sigma, other.covariance().sigma),
    ):
        assert (a - b).abs().max() <= 1e-9 * max(1.0, float(b.abs().max()))


def by_hand(features: np.ndarray, labels: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Scores [N, C] with scikit-learn's shrinkage and an inverse square root by eigenvectors."""
    classes = range(labels.max() + 1)
    means = np.stack([features[labels == c].mean(axis=0) for c in classes])
    residuals = features - means[labels]
    freedom = len(features) - len(means)
    # As many rows as there are degrees of freedom, with the scatter of all: what scikit-learn should see.
    rows = np.linalg.qr(residuals)[1] if freedom >= features.shape[1] else None
    assert rows is not None
    rows = np.concatenate([rows, np.zeros((freedom - len(rows), features.shape[1]))])
    estimated = OAS(assume_centered=True).fit(rows)
    share, pooled = 1.5 * estimated.shrinkage_, rows.T @ rows / freedom
    sigma = (1 - share) * pooled + share * np.trace(pooled) / len(pooled) * np.eye(len(pooled))
    values, vectors = np.linalg.eigh(sigma)
    root = vectors / np.sqrt(values) @ vectors.T
    centre = means.mean(axis=0)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    return unit((queries - centre) @ root) @ unit((means - centre) @ root).T


def test_equals_scikit_learns_oas_and_an_explicit_computation() -> None:
    features, labels = some(40, 3)
    queries, _ = some(10, 3, seed=1)
    found = head_of(features, labels, 3).scores(queries.float())
    assert np.abs(found.numpy() - by_hand(features.numpy(), labels.numpy(), queries.numpy())).max() < 1e-5


def test_tokens_are_mixed_with_their_own_covariances_each_shrunk_on_its_own() -> None:
    features, labels = some(40, 3)
    head = WhitenedHead(WIDTH, parts=2)
    head.grow(3)
    head.add(features, labels)
    pooled, freedom = head.scatter / head.freedom, head.freedom

    def shrunk(covariance: Tensor) -> tuple[Tensor, float]:
        rho = 1.5 * oas_shrinkage(covariance, freedom)
        return (1 - rho) * covariance + rho * covariance.diagonal().mean() * torch.eye(len(covariance)), rho

    own = torch.block_diag(shrunk(pooled[:3, :3])[0], shrunk(pooled[3:, 3:])[0])
    # Tokens of different scale: the whole is shrunk as if both varied alike.
    scale = pooled.diagonal().view(2, 3).mean(dim=1).sqrt().repeat_interleave(3)
    scaled, rho = shrunk(pooled / (scale[:, None] * scale))
    whole = scaled * scale[:, None] * scale
    assert 0 < rho < 1
    assert torch.allclose(head.covariance().sigma, (1 - rho) * whole + rho * own)


@pytest.mark.parametrize("parts", [2, 3])
def test_a_token_that_never_varies_is_no_trouble(parts: int) -> None:
    features, labels = some(4, 2)
    features[:, : WIDTH // parts] = 1
    head = WhitenedHead(WIDTH, parts)
    head.grow(2)
    head.add(features, labels)
    assert head.scores(torch.randn(5, WIDTH)).isfinite().all()


@pytest.mark.parametrize("count", [5, 30, 1000])
def test_the_shrinkage_is_scikit_learns(count: int) -> None:
    rows = some(count, 1)[0] - 5
    sample = OAS(assume_centered=True).fit(rows.numpy())
    assert oas_shrinkage(rows.mT @ rows / count, count) == pytest.approx(sample.shrinkage_, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 30), max_size=6),
    order=st.permutations(range(30)),
    seed=st.integers(0, 5),
)
def test_any_order_and_any_split_into_calls_gives_the_same_head(
    cuts: list[int], order: list[int], seed: int
) -> None:
    features, labels = some(30, 4, seed=seed)
    whole = head_of(features, labels, 4)
    parts = WhitenedHead(WIDTH)
    parts.grow(4)
    edges = [0, *sorted(cuts), 30]
    for start, end in itertools.pairwise(edges):
        at = torch.tensor(order[start:end], dtype=torch.long)
        parts.add(features[at], labels[at])
    assert_same(parts, whole)


def test_classes_that_come_one_by_one_give_the_same_head() -> None:
    features, labels = some(30, 4)
    parts = WhitenedHead(WIDTH)
    for c in range(4):
        parts.grow(1)
        parts.add(features[labels == c], labels[labels == c])
    assert_same(parts, head_of(features, labels, 4))


def test_a_class_that_is_shown_more_images_moves_as_if_they_had_been_there() -> None:
    features, labels = some(30, 4)
    later = torch.arange(30) % 3 == 0
    head = head_of(features[~later], labels[~later], 4)
    before = head.scores(features.float())
    head.add(features[later], labels[later])
    assert_same(head, head_of(features, labels, 4))
    assert not torch.equal(head.scores(features.float()), before), (
        "what was computed before must not be used again"
    )


def test_a_forgotten_class_is_gone_but_for_its_share_of_the_covariance() -> None:
    features, labels = some(30, 4)
    head = head_of(features, labels, 4)
    covariance = head.covariance().sigma
    head.forget(1)
    kept = head_of(
        features[labels != 1], labels[labels != 1].where(labels[labels != 1] < 1, labels[labels != 1] - 1), 3
    )
    assert torch.equal(head.counts, kept.counts)
    assert torch.allclose(head.means, kept.means)
    assert torch.equal(head.covariance().sigma, covariance)
    assert head.scores(features.float()).shape == (30, 3)


@pytest.mark.parametrize(
    ("features", "labels"),
    [
        (torch.randn(1, 8), [0]),
        (torch.randn(3, 8), [0, 0, 0]),
        (torch.randn(3, 8), [0, 1, 2]),
        (torch.randn(5, 64), [0, 0, 1, 1, 1]),
        (torch.ones(6, 8), [0, 0, 0, 1, 1, 1]),
        (torch.zeros(2, 8), [0, 1]),
        (torch.randn(6, 8) * 1e-20, [0, 0, 0, 1, 1, 1]),
        (torch.randn(6, 8) * 1e15, [0, 0, 0, 1, 1, 1]),
    ],
    ids=["one image", "one class", "one image each", "more dimensions", "constant", "zero", "tiny", "huge"],
)
def test_every_corner_has_a_finite_answer(features: Tensor, labels: list[int]) -> None:
    head = head_of(features, torch.tensor(labels), max(labels) + 1)
    scores = head.scores(torch.cat([features, torch.randn(2, features.shape[1])]))
    assert scores.isfinite().all()
    assert scores.abs().max() <= 1 + 1e-5


def test_without_variation_it_is_the_centred_cosine() -> None:
    means = torch.randn(4, WIDTH, dtype=torch.float64)
    head = head_of(means, torch.arange(4), 4)
    queries = torch.randn(5, WIDTH, dtype=torch.float64)
    centre = means.mean(dim=0)
    expected = torch.nn.functional.cosine_similarity(
        (queries - centre)[:, None], (means - centre)[None], dim=-1
    )
    assert torch.allclose(head.scores(queries), expected.to(queries), atol=1e-5)


def test_a_single_class_is_scored_by_its_own_direction() -> None:
    features, labels = some(20, 1)
    scores = head_of(features, labels, 1).scores(
        torch.stack([features.mean(dim=0), -features.mean(dim=0)]).float()
    )
    assert scores[:, 0].tolist() == pytest.approx([1, -1], abs=1e-4)


def test_what_is_saved_is_fp32_and_half_of_the_matrix_and_goes_on_the_same() -> None:
    features, labels = some(30, 4)
    head = head_of(features[:20], labels[:20], 4)
    head.round_as_saved()
    state = head.state()
    assert state["scatter"].dtype == state["means"].dtype == torch.float32
    assert state["scatter"].numel() == WIDTH * (WIDTH + 1) // 2
    other = WhitenedHead(WIDTH)
    other.load_state(state, head.freedom)
    for each in (head, other):
        each.add(features[20:], labels[20:])
    assert torch.equal(head.scores(features.float()), other.scores(features.float()))


@pytest.mark.parametrize(
    "change", [{"means": torch.zeros(3, 6)}, {"scatter": torch.zeros(20)}, {"freedom": -1}]
)
def test_a_state_that_does_not_fit_is_refused(change: dict[str, Tensor | int]) -> None:
    head = head_of(*some(30, 4), 4)
    given = {**head.state(), "freedom": head.freedom, **change}
    freedom = given.pop("freedom")
    with pytest.raises(ValueError):
        WhitenedHead(WIDTH).load_state(given, freedom)  # type: ignore[arg-type]


def test_features_that_are_not_finite_are_refused_and_change_nothing() -> None:
    features, labels = some(30, 4)
    head = head_of(features, labels, 4)
    before = head.scatter.clone()
    with pytest.raises(EaseError, match="not finite"):
        head.add(torch.full((1, WIDTH), torch.nan), torch.tensor([0]))
    assert torch.equal(head.scatter, before)


def test_images_are_alike_from_a_cosine_that_unrelated_ones_hardly_reach() -> None:
    """Against cosines of deviations that were drawn, and not from their covariance."""
    features, labels = some(900, 3, width=64)
    features[:, 0] += 600 * labels  # classes are far apart, as seen from their deviations
    head = head_of(features, labels, 3)
    deviations = (features - head.means[labels]) @ head.whitening().matrix.double().mT
    units = torch.nn.functional.normalize(deviations, dim=1)
    cosines = (units @ units.mT)[torch.triu(torch.ones(900, 900), 1) > 0]
    assert head.alike_from() == pytest.approx(UNRELATED * float(cosines.std()), rel=0.05)


def test_images_need_not_be_more_alike_than_those_of_one_class() -> None:
    """In two dimensions any two images may be alike by chance."""
    features, labels = some(60, 3, width=2)
    head = head_of(features, labels, 3)
    found = head.whitening()
    spread = ((features - head.means[labels]) @ found.matrix.double().mT).square().sum() / head.freedom
    squares = found.lengths.double().square()
    assert head.alike_from() == pytest.approx(float((squares / (squares + spread)).mean()), rel=1e-4)


def test_one_image_per_class_says_nothing_of_chance() -> None:
    features, labels = some(4, 4)
    assert head_of(features, labels, 4).alike_from() == pytest.approx(0.5)
    assert WhitenedHead(3).alike_from() == 1.0
