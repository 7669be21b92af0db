from __future__ import annotations

import numpy as np
import pytest

from ease.errors import EaseError
from ease.streams import dataset_list, load_dataset


def test_every_dataset_has_one_line() -> None:
    assert {"cifar100", "digits", "folder", "glyphs"} <= set(dataset_list())
    assert all(line and "\n" not in line for line in dataset_list().values())


def test_an_unknown_dataset_names_the_nearest() -> None:
    with pytest.raises(EaseError, match="did you mean 'digits'"):
        load_dataset("digit")


def test_a_limit_holds_for_train_and_test_and_is_noted() -> None:
    limited = load_dataset("digits", limit_per_class=7)
    for images in (limited.train, limited.test):
        assert np.bincount(images.labels).tolist() == [7] * 10
    assert "limited to 7" in limited.notes[-1]
    with pytest.raises(EaseError, match="limit per class is 0"):
        load_dataset("digits", limit_per_class=0)


def test_digits_are_all_there_balanced_and_in_full_range() -> None:
    digits = load_dataset("digits")
    assert digits.class_names == tuple("0123456789")
    assert len(digits.train) + len(digits.test) == 1797
    assert np.bincount(digits.train.labels).min() >= 110
    assert np.bincount(digits.test.labels).min() >= 55
    assert not set(digits.train.indices) & set(digits.test.indices)
    image = digits.train.image(0)
    assert image.shape == (3, 8, 8)
    assert (image[0] == image[2]).all()
    assert max(int(digits.train.image(i).max()) for i in range(9)) == 255
    assert not digits.augmentation.flip
    assert digits.augmentation.scale == (0.6, 1.0)


def test_digits_are_the_same_every_time() -> None:
    first, second = load_dataset("digits"), load_dataset("digits")
    assert np.array_equal(first.test.indices, second.test.indices)
    assert first.test.digest(5) == second.test.digest(5)
