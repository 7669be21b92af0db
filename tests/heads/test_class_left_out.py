"""Scores without the image itself, in the metric of other classes: equal to heads that are really built so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.heads.class_left_out import FOLDS, class_left_out_scores
from ease.heads.left_out import left_out_scores
from ease.heads.whitened import WhitenedHead, whitening_matrix


def images(classes: int, each: int, width: int = 6, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat(each)
    means = 3 * torch.randn(classes, width, generator=draw)
    return means[labels] + torch.randn(len(labels), width, generator=draw), labels


def head_of(features: Tensor, labels: Tensor, classes: int, parts: int = 1) -> WhitenedHead:
    head = WhitenedHead(features.shape[1], parts)
    head.grow(classes)
    head.add(features, labels)
    return head


@settings(max_examples=20, deadline=None)
@given(
    classes=st.integers(2, FOLDS),
    each=st.integers(2, 6),
    seed=st.integers(0, 99),
    parts=st.sampled_from([1, 2]),
)
def test_scores_are_those_of_heads_without_the_image_and_its_class_scatter(
    classes: int, each: int, seed: int, parts: int
) -> None:
    features, labels = images(classes, each, seed=seed)
    found = class_left_out_scores(WhitenedHead(6, parts), features, labels, classes)
    for at, label in enumerate(labels.tolist()):
        elsewhere, rest = labels != label, torch.arange(len(labels)) != at
        matrix = whitening_matrix(
            head_of(features[elsewhere], labels[elsewhere], classes, parts).covariance().sigma
        )
        means = head_of(features[rest], labels[rest], classes).means
        centre = means.mean(dim=0)
        own, others = (features[at].double() - centre) @ matrix.mT, (means - centre) @ matrix.mT
        assert found[at].double().numpy() == pytest.approx(
            F.cosine_similarity(own[None], others).numpy(), abs=1e-4
        )


def test_known_classes_count_with_their_images_and_stay_as_they_were() -> None:
    features, labels = images(5, 6)
    old = labels < 3
    known = head_of(features[old], labels[old], 3)
    means, scatter = known.means.clone(), known.scatter.clone()
    found = class_left_out_scores(known, features[~old], labels[~old], 5)
    assert found.shape == (12, 5)
    assert bool((found.argmax(dim=1) == labels[~old]).all())
    assert known.classes == 3
    assert known.means.equal(means)
    assert known.scatter.equal(scatter)


def test_the_only_image_of_a_class_has_no_scores_and_the_others_do() -> None:
    features, labels = images(3, 4)
    keep = (labels != 2) | (torch.arange(12) < 3)
    found = class_left_out_scores(WhitenedHead(6), features[keep], labels[keep], 3)
    alone = labels[keep] == 2
    assert int(alone.sum()) == 1
    assert bool(found[alone].isnan().all())
    assert bool(found[~alone].isfinite().all())


def test_images_with_one_wrong_label_cannot_hide_each_other() -> None:
    """Five of twenty: they make their class scatter in the direction of their own."""
    features, labels = images(4, 20, width=40, seed=3)
    wrong = torch.nonzero(labels == 1)[:5, 0]
    given_labels = labels.clone()
    given_labels[wrong] = 0
    found = class_left_out_scores(WhitenedHead(40), features, given_labels, 4)
    plain = left_out_scores(head_of(features, given_labels, 4), features, given_labels)
    gap, plain_gap = ((scores[wrong, 1] - scores[wrong, 0]).mean() for scores in (found, plain))
    assert float(gap) > float(plain_gap)
    assert bool((found[wrong].argmax(dim=1) == 1).all())


def test_more_classes_than_folds_are_all_judged() -> None:
    features, labels = images(FOLDS + 3, 3)
    found = class_left_out_scores(WhitenedHead(6), features, labels, FOLDS + 3)
    assert bool(found.isfinite().all())
