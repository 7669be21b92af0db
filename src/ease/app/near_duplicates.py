"""Photos that show the same picture: copies that were scaled, compressed again, or made a little brighter.

Two photos are compared by the correlation of their grey thumbnails. How close is close depends on the folder: drawings
on white paper all resemble each other, so two of them must be much closer than a photo usually is to its nearest one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

THUMBNAIL = 16
"""Side length of a thumbnail, in pixels."""
CLOSE = 0.015
"""Largest distance (1 - correlation) of two versions of one photo.

On 40 photos: JPEG of quality 60 at 70 % of the size at most .009, 20 % brighter at most .013. Of 1,050 photos of
flowers, the two nearest that are no versions of each other were .08 apart."""
BLANK = 0.01
"""A photo of which no part differs more than this from its mean, in standardised pixels, is no picture."""
OUTSTANDING = 0.1
"""Largest distance relative to the usual (median) distance of a photo from its nearest one."""
ROWS_AT_ONCE = 1024
"""Photos that are compared with all others at a time."""


def thumbnails(pixels: Tensor) -> Tensor:
    """Images [N, 3, s, s] -> grey thumbnails [N, THUMBNAIL^2], each with mean 0 and length 1, or 0 if it is blank."""
    grey = F.adaptive_avg_pool2d(pixels.mean(dim=1, keepdim=True), THUMBNAIL).flatten(1)
    centred = grey - grey.mean(dim=1, keepdim=True)
    plain = centred.abs().amax(dim=1, keepdim=True) < BLANK  # what is left of it is rounding
    return F.normalize(centred.masked_fill(plain, 0), dim=1)


def near_duplicates(small: Tensor) -> list[tuple[list[int], float]]:
    """Groups of photos that show the same picture, the closest group first.

    Args:
        small: Thumbnails [N, D] of `thumbnails`.

    Returns:
        Positions of each group in ascending order, and the correlation of its closest two.

    Example:
        >>> import torch
        >>> pixels = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        >>> pixels[7] = pixels[3] * 0.9
        >>> [group for group, _ in near_duplicates(thumbnails(pixels))]
        [[3, 7]]
    """
    if len(small) < 2:
        return []
    blocks = [(start, _others(small, start)) for start in range(0, len(small), ROWS_AT_ONCE)]
    nearest = torch.cat([1 - block.max(dim=1).values for _, block in blocks])
    limit = min(CLOSE, OUTSTANDING * float(nearest.median()))
    # With many copies the usual distance is that between copies.
    limit = max(limit, 1e-5)
    parent = list(range(len(small)))
    closest: dict[int, float] = {}

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    for start, block in blocks:
        for row, column in torch.nonzero(1 - block <= limit).tolist():
            first, second = sorted((root(start + row), root(column)))
            likeness = max(float(block[row, column]), closest.get(first, -1.0), closest.get(second, -1.0))
            parent[second] = first
            closest[first] = likeness
    groups: dict[int, list[int]] = {}
    for at in range(len(small)):
        groups.setdefault(root(at), []).append(at)
    found = [(members, min(1.0, closest[head])) for head, members in groups.items() if len(members) > 1]
    return sorted(found, key=lambda group: -group[1])


def _others(small: Tensor, start: int) -> Tensor:
    """Correlations of some photos with all, [n, N]; that of a photo with itself, and of blank photos, is -1."""
    block = small[start : start + ROWS_AT_ONCE] @ small.mT
    rows = torch.arange(len(block))
    block[rows, rows + start] = -1
    blank = small.norm(dim=1) < 0.5  # a photo of one colour correlates with nothing
    block[blank[start : start + ROWS_AT_ONCE]] = -1
    block[:, blank] = -1
    return block
