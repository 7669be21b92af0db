"""Scores of images whose labels are in doubt: each is judged without itself, in the metric of other classes."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor

from ease.heads.whitened import WhitenedHead, whitening_matrix

FOLDS = 10
"""The classes are divided into at most this many parts; each is judged in the metric of the others."""


def class_left_out_scores(known: WhitenedHead, features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Scores of images by a head that has learned all of them, but for the image itself and the scatter of its class.

    The mean of a class is that of its other images, as in `left_out_scores`. The covariance is that of the images of
    other classes. Several images with the same wrong label would otherwise hide each other: they make their class
    scatter towards the class that they really belong to, and whitening takes away just that direction.

    Args:
        known: What was learned before; it is left unchanged.
        features: [N, K].
        labels: The class of each image, [N]; positions in `known`, or after them for new classes.
        classes: Number of known and new classes, C.

    Returns:
        Scores [N, C] in fp32; NaN for the only image of a class.

    Example:
        >>> draw = torch.Generator().manual_seed(0)
        >>> features = torch.randn(30, 8, generator=draw) + 4 * torch.eye(8)[:3].repeat(10, 1)
        >>> labels = torch.arange(3).repeat(10)
        >>> scores = class_left_out_scores(WhitenedHead(8), features, labels, classes=3)
        >>> bool((scores.argmax(dim=1) == labels).double().mean() > 0.9)
        True
    """
    whole = deepcopy(known)
    whole.grow(classes - known.classes)
    whole.add(features, labels)
    features, labels = features.detach().double().cpu(), labels.cpu()
    scores = torch.full((len(labels), classes), torch.nan)
    present = labels.unique()
    for fold in range(min(FOLDS, len(present))):
        own = torch.isin(labels, present[fold::FOLDS])
        matrix = whitening_matrix(_without(whole, features[own], labels[own]).covariance().sigma)
        scores[own] = _scores(whole, matrix, features[own], labels[own])
    return scores


def _without(whole: WhitenedHead, features: Tensor, labels: Tensor) -> WhitenedHead:
    """The scatter of a head without that of some of its classes, around their means."""
    part = WhitenedHead(whole.width, whole.parts)
    part.grow(whole.classes)
    part.add(features, labels)
    rest = WhitenedHead(whole.width, whole.parts)
    rest.scatter, rest.freedom = whole.scatter - part.scatter, whole.freedom - part.freedom
    return rest


def _scores(whole: WhitenedHead, matrix: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Scores [n, C] of images of these classes, each without itself, after whitening by `matrix` [K, K]."""
    means, counts = whole.means @ matrix.mT, whole.counts[labels].double()
    centre = means.mean(dim=0) if whole.classes > 1 else torch.zeros_like(means[0])
    means, images = means - centre, features @ matrix.mT - centre
    others = torch.where(counts > 1, counts - 1, torch.nan)
    # Without the image, the mean of its class and the centre of all classes move, and nothing else does.
    moved = (means[labels] - images) / others[:, None]
    shift = moved / whole.classes if whole.classes > 1 else torch.zeros_like(moved)
    images = images - shift
    product = images @ means.mT - (images * shift).sum(dim=1, keepdim=True)
    square = means.square().sum(dim=1) - 2 * shift @ means.mT + shift.square().sum(dim=1, keepdim=True)
    mine = means[labels] + moved - shift
    rows = torch.arange(len(labels))
    product[rows, labels], square[rows, labels] = (images * mine).sum(dim=1), mine.square().sum(dim=1)
    norm = (images.square().sum(dim=1, keepdim=True) * square).clamp(min=0).sqrt()
    return (product / norm.clamp(min=torch.finfo(torch.float64).tiny)).clamp(-1, 1).float()
