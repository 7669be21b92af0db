"""Could a difference be chance? Across seeds, and across test images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FEW = 5
"""Below so many seeds no test can be trusted to say much."""
EXACT = 20
"""Up to so many seeds every flip of signs is tried: 2^20 sums."""


@dataclass(frozen=True)
class Paired:
    """Differences B - A of the same seeds, and how likely chance alone gives as much, two-sided."""

    count: int
    mean: float
    deviation: float
    t: float | None
    """None where all differences are equal: then the t-test says nothing."""
    t_p: float | None
    exact_p: float
    exact_test: str
    floor: float
    """The least `exact_p` that so many seeds can give."""


def paired(a: Sequence[float], b: Sequence[float]) -> Paired:
    """Paired t-test and an exact test of the values of A and B, seed by seed; at least two."""
    if len(a) != len(b) or len(a) < 2:
        raise ValueError(f"paired values must be two or more on both sides, not {len(a)} and {len(b)}")
    from scipy import stats  # a second to import

    differences = np.asarray(b, dtype=float) - np.asarray(a, dtype=float)
    deviation = float(differences.std(ddof=1))
    # Rounding leaves a trace of deviation between differences that are equal.
    spread = deviation > 1e-12 * max(1.0, float(np.abs(differences).max()))
    t, t_p = (float(x) for x in stats.ttest_rel(b, a)) if spread else (None, None)
    if len(differences) <= EXACT:
        exact, name = sign_flip(differences), "sign flips"
    else:
        exact, name = float(stats.wilcoxon(differences).pvalue) if differences.any() else 1.0, "Wilcoxon"
    floor = 2.0 ** (1 - len(differences))
    return Paired(len(differences), float(differences.mean()), deviation, t, t_p, exact, name, floor)


def sign_flip(differences: Sequence[float] | np.ndarray) -> float:
    """The share of all flips of signs whose sum is as far from 0 as the sum found."""
    # Half of the flips are the other half mirrored, so the first sign may stay.
    sums = np.array([float(differences[0])])
    for value in differences[1:]:
        sums = np.concatenate([sums + value, sums - value])
    found = abs(math.fsum(differences))
    return float(np.mean(np.abs(sums) >= found - 1e-9 * max(1.0, found)))


@dataclass(frozen=True)
class McNemar:
    """Two models on the same images: where they disagree, who is right, and how likely chance gives as much."""

    images: int
    only_a: int
    only_b: int
    p: float


def mcnemar(right_a: np.ndarray, right_b: np.ndarray) -> McNemar:
    """McNemar's exact test; `right_a[i]` says whether A is right about image i."""
    from scipy import stats  # a second to import

    only_a = int(np.count_nonzero(right_a & ~right_b))
    only_b = int(np.count_nonzero(right_b & ~right_a))
    either = only_a + only_b
    p = float(stats.binomtest(only_a, either, 0.5).pvalue) if either else 1.0
    return McNemar(len(right_a), only_a, only_b, p)


def wilson(right: int, count: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share, in percent: the shares that agree with `right` of `count`.

    Unlike the share plus or minus two standard errors it stays within 0 and 100 and holds for few images.

    Args:
        right: Number of images that were right.
        count: Number of images; at least one.

    Returns:
        Its lower and its upper end.

    Example:
        >>> from ease.reporting.significance import wilson
        >>> [round(end, 1) for end in wilson(10, 10)]
        [72.2, 100.0]
    """
    if not 0 <= right <= count or count < 1:
        raise ValueError(f"{right} of {count} is no share")
    z = 1.959963984540054
    share, weight = right / count, z * z / count
    middle = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return 100 * max(0.0, middle - half), 100 * min(1.0, middle + half)
