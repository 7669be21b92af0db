"""Scores of learned images as if each had been left out: what a head makes of images it has not seen, without any."""

from __future__ import annotations

import torch
from torch import Tensor

from ease.heads.whitened import Covariance, WhitenedHead

AT_ONCE = 256
"""Images that are worked on side by side: each takes K numbers for every token."""


def left_out_scores(head: WhitenedHead, features: Tensor, labels: Tensor) -> Tensor:
    """Scores [N, C] of images that the head was made of, each as the head without that one image would give them.

    Leaving out image i of class y moves the mean of y and the centre along d = h_i - mu_y, and takes from the
    covariance one rank-one term for the whole feature and one for each of its tokens. All inner products of the smaller
    head then follow from those of the whole one (Woodbury, 1950), so that no head is made anew. The shares of the
    shrinkage are those of the whole head, which one image hardly changes; the rest is exact.

    Without it a learned image would look far too much like its class: with more dimensions than images it has a
    direction of the covariance nearly to itself.

    Args:
        head: what was made of these images, and maybe of others.
        features: [N, K].
        labels: [N], each image's class.

    Returns:
        fp32; NaN for the only image of a class, without which there would be no such class.
    """
    covariance = head.covariance()
    parts = zip(features.split(AT_ONCE), labels.split(AT_ONCE), strict=True)
    return torch.cat([_some_left_out(head, covariance, *part) for part in parts])


def _some_left_out(head: WhitenedHead, covariance: Covariance, features: Tensor, labels: Tensor) -> Tensor:
    whitening, labels = head.whitening(), labels.cpu()
    matrix, lengths = whitening.matrix.double(), whitening.lengths.double()
    means = whitening.directions.double() * lengths[:, None]
    features = features.detach().double().cpu()
    image = (features - whitening.centre.double()) @ matrix.mT
    apart = image - means[labels]  # d, whitened
    count = head.counts[labels].double()
    others = count - 1
    # Without the image the centre is at -step d and the mean of its class at -d / (n - 1), seen from where they are.
    step = torch.where(head.counts[labels] > 1, 1 / (others * head.classes), torch.nan)
    moved = step[:, None].expand(-1, head.classes).clone()
    moved[torch.arange(len(labels)), labels] -= 1 / others
    if head.classes == 1:  # a single class is seen from zero
        step, moved = torch.zeros_like(step), -1 / others[:, None]
    along, image_along, mean_along = apart.square().sum(dim=1), (image * apart).sum(dim=1), apart @ means.mT
    product = image @ means.mT + moved * (image_along + step * along)[:, None] + step[:, None] * mean_along
    image_square = image.square().sum(dim=1) + 2 * step * image_along + step.square() * along
    mean_square = lengths.square() + 2 * moved * mean_along + moved.square() * along[:, None]

    # Each term that the covariance loses is e e^T; E [n, terms, K] are these, whitened.
    lost = _lost_terms(matrix, features - head.means[labels], apart, covariance)
    lost = lost * (count / others.clamp(min=1) / max(1, head.freedom)).sqrt()[:, None, None]
    values, vectors = torch.linalg.eigh(lost @ lost.mT)
    turned = vectors.mT @ lost
    gain = 1 / (1 - values).clamp(
        min=torch.finfo(torch.float32).eps
    )  # (1 - E E^T)^-1, which lengthens along E
    seen_apart = (turned @ apart[:, :, None])[:, :, 0]
    seen_image = (turned @ image[:, :, None])[:, :, 0] + step[:, None] * seen_apart
    seen_means = turned @ means.mT + moved[:, None, :] * seen_apart[:, :, None]
    product += ((gain * seen_image)[:, :, None] * seen_means).sum(dim=1)
    image_square += (gain * seen_image.square()).sum(dim=1)
    mean_square += (gain[:, :, None] * seen_means.square()).sum(dim=1)

    norm = (image_square[:, None] * mean_square).clamp(min=0).sqrt()
    scores = (product / norm.clamp(min=torch.finfo(torch.float64).tiny)).clamp(-1, 1)
    return torch.where((others > 0)[:, None], scores, torch.nan).float()


def _lost_terms(matrix: Tensor, distance: Tensor, apart: Tensor, covariance: Covariance) -> Tensor:
    """[n, 1 + tokens, K]: d whitened as a whole, and each of its tokens alone, by how much of it is in Sigma.

    Args:
        matrix: what whitens, [K, K].
        distance: d, [n, K].
        apart: d whitened, [n, K].
        covariance: of the head.
    """
    width = matrix.shape[0] // len(covariance.own)
    terms = [covariance.whole**0.5 * apart]
    for at, share in enumerate(covariance.own):
        token = slice(at * width, (at + 1) * width)
        terms.append(share**0.5 * (distance[:, token] @ matrix[:, token].mT))
    return torch.stack(terms, dim=1)
