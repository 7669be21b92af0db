"""Leave-one-out scores of learned images: how a head would score images that it has not seen."""

from __future__ import annotations

import torch
from torch import Tensor

from ease.errors import EaseError
from ease.heads.whitened import Covariance, WhitenedHead

AT_ONCE = 256
"""Images processed at a time; each takes K numbers for every token."""


def left_out_scores(head: WhitenedHead, features: Tensor, labels: Tensor) -> Tensor:
    """Scores of images that a head was computed from, each as the head without that image would give them.

    Leaving out image i of class y moves the mean of y and the centre along d = h_i - mu_y, and removes from the
    covariance one rank-one term for the whole feature and one for each of its tokens. All inner products of the smaller
    head follow from those of the whole one (Woodbury, 1950), so that no other head has to be computed. The shares of
    the shrinkage are those of the whole head, which one image hardly changes; everything else is exact.

    Plain scores of learned images would be far too high: with more dimensions than images, every image has a direction
    of the covariance almost to itself.

    Args:
        head: A head computed from these images, and possibly from others.
        features: [N, K].
        labels: The class of each image, [N].

    Returns:
        Scores [N, C] in fp32; NaN for the only image of a class.
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
    # Without the image, the centre moves by -step d and the mean of its class by -d / (n - 1).
    step = torch.where(head.counts[labels] > 1, 1 / (others * head.classes), torch.nan)
    moved = step[:, None].expand(-1, head.classes).clone()
    moved[torch.arange(len(labels)), labels] -= 1 / others
    if head.classes == 1:  # with a single class the centre is zero
        step, moved = torch.zeros_like(step), -1 / others[:, None]
    along, image_along, mean_along = apart.square().sum(dim=1), (image * apart).sum(dim=1), apart @ means.mT
    product = image @ means.mT + moved * (image_along + step * along)[:, None] + step[:, None] * mean_along
    image_square = image.square().sum(dim=1) + 2 * step * image_along + step.square() * along
    mean_square = lengths.square() + 2 * moved * mean_along + moved.square() * along[:, None]

    # Each term that the covariance loses is e e^T; E [n, terms, K] are these, whitened.
    lost = _lost_terms(matrix, features - head.means[labels], apart, covariance)
    lost = lost * (count / others.clamp(min=1) / max(1, head.freedom)).sqrt()[:, None, None]
    try:
        values, vectors = torch.linalg.eigh(lost @ lost.mT)
    except torch.linalg.LinAlgError as error:
        raise EaseError(
            "the learned features are of too different sizes to compute with: are the model's files those it was "
            "saved with?"
        ) from error
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
    """The terms that Sigma loses, [n, 1 + tokens, K]: d whitened as a whole, and each of its tokens alone.

    Args:
        matrix: The whitening matrix, [K, K].
        distance: d, [n, K].
        apart: d whitened, [n, K].
        covariance: The covariance of the head.
    """
    width = matrix.shape[0] // len(covariance.own)
    terms = [covariance.whole**0.5 * apart]
    for at, share in enumerate(covariance.own):
        token = slice(at * width, (at + 1) * width)
        terms.append(share**0.5 * (distance[:, token] @ matrix[:, token].mT))
    return torch.stack(terms, dim=1)
