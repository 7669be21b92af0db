"""Tests of chance against hand counts and scipy."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from scipy import stats

from ease.reporting.significance import mcnemar, paired, sign_flip

A, B = [70.1, 71.4, 69.8, 70.9, 71.0], [71.3, 71.9, 71.0, 70.7, 72.5]


def test_the_paired_t_test_is_scipys() -> None:
    found = paired(A, B)
    t, p = stats.ttest_rel(B, A)
    assert (found.t, found.t_p) == (pytest.approx(t), pytest.approx(p))
    assert found.t is not None
    assert found.t > 0
    assert found.mean == pytest.approx(0.84)
    assert found.count == 5


def test_sign_flips_are_all_counted() -> None:
    differences = np.subtract(B, A)
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=5)]
    assert sign_flip(differences) == np.mean(np.array(sums) >= abs(differences.sum()) - 1e-9)
    # By hand: of the eight flips of 1, 1, 1 two are as far out; 1, -1 always sums to at least its 0.
    assert sign_flip([1, 1, 1]) == 0.25
    assert sign_flip([1, -1]) == 1.0


def test_few_seeds_cannot_give_a_small_exact_p() -> None:
    for count in (2, 3, 5):
        found = paired([0.0] * count, [10.0 + i for i in range(count)])
        assert found.exact_p == found.floor == 2 / 2**count


def test_equal_differences_leave_the_t_test_without_a_word() -> None:
    found = paired([70.1, 71.4, 69.8], [70.6, 71.9, 70.3])
    assert found.t is None
    assert found.t_p is None
    assert found.exact_p == 0.25
    assert paired([1.0, 2.0], [1.0, 2.0]).exact_p == 1.0


def test_many_seeds_are_ranked() -> None:
    draw = np.random.RandomState(0)
    a = draw.normal(70, 1, 25)
    b = a + draw.normal(1, 1, 25)
    found = paired(list(a), list(b))
    assert found.exact_test == "Wilcoxon"
    assert found.exact_p == pytest.approx(stats.wilcoxon(b - a).pvalue)


def test_mcnemar_looks_only_where_the_models_disagree() -> None:
    # A alone is right about 1 image, B alone about 5: two-sided, 2 (C(6,0) + C(6,1)) / 2^6.
    right_a = np.array([True] * 10 + [True] + [False] * 5 + [False] * 4)
    right_b = np.array([True] * 10 + [False] + [True] * 5 + [False] * 4)
    found = mcnemar(right_a, right_b)
    assert (found.images, found.only_a, found.only_b) == (20, 1, 5)
    assert found.p == pytest.approx(14 / 64)
    assert mcnemar(right_a, right_a).p == 1.0
