"""Losses that several methods are made of. All are means over the batch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def cross_entropy_of_new(logits: Tensor, labels: Tensor, first: int) -> Tensor:
    """Cross-entropy among the new classes alone, so that images of new classes do not push old logits down.

    Args:
        logits: [N, C].
        labels: [N], all of them >= first.
        first: the first new class; 0 takes all logits.
    """
    return F.cross_entropy(logits[:, first:], labels - first)


def cosine_margin(logits: Tensor, labels: Tensor, scale: float, margin: float) -> Tensor:
    """CosFace: cross-entropy after the cosine of the right class was lowered by a margin.

    Args:
        logits: `scale * cos`, [N, C].
        labels: [N].
        scale: s, of the logits.
        margin: m; 0 gives plain cross-entropy.
    """
    if margin:
        logits = logits - scale * margin * F.one_hot(labels, logits.shape[1]).to(logits)
    return F.cross_entropy(logits, labels)


def distillation(
    student: Tensor, teacher: Tensor, temperature: float, weights: Tensor | None = None
) -> Tensor:
    """`KL(softmax(teacher / T) || softmax(student / T))`; zero where both agree.

    Public versions take the cross-entropy in place of the divergence: the gradient is the same. None of them
    multiplies by T^2.

    Args:
        student: [N, C].
        teacher: [N, C], no gradient flows into it.
        temperature: T.
        weights: [C], scales the teacher's probabilities, which then sum to one again (balanced distillation).
    """
    target = (teacher.detach() / temperature).softmax(dim=1)
    if weights is not None:
        target = target * weights
        target = target / target.sum(dim=1, keepdim=True)
    return F.kl_div((student / temperature).log_softmax(dim=1), target, reduction="batchmean")
