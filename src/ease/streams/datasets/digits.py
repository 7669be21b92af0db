"""`digits`: scikit-learn's handwritten digits, real data that needs no download."""

from __future__ import annotations

import numpy as np

from ease.streams.datasets.registry import DatasetLoader, DatasetRequest
from ease.streams.images import ImageSet
from ease.streams.stream import Augmentation, Dataset

TEST_EVERY = 3
"""Of each class the 3rd, 6th, ... image in file order is a test image."""


class Digits(DatasetLoader):
    """8 x 8 grey images of ten classes, as RGB."""

    name = "digits"
    about = "scikit-learn's handwritten digits, 8x8 grey, 10 classes, 1,201 train / 596 test; built in"

    def load(self, request: DatasetRequest) -> Dataset:
        """Values 0..16 become round(v * 255 / 16), so that 16 is white (255)."""
        from sklearn.datasets import load_digits

        data = load_digits()
        grey = np.rint(data.images * (255 / 16)).astype(np.uint8)
        images = ImageSet.of_arrays(np.repeat(grey[..., None], 3, axis=-1), data.target)
        rank = np.empty(len(images), dtype=np.int64)  # of each image within its class
        for c in range(10):
            own = np.flatnonzero(images.labels == c)
            rank[own] = np.arange(len(own))
        is_test = rank % TEST_EVERY == TEST_EVERY - 1
        return Dataset(
            name=self.name,
            class_names=tuple(str(c) for c in range(10)),
            train=images.take(np.flatnonzero(~is_test)),
            test=images.take(np.flatnonzero(is_test)),
            augmentation=Augmentation.for_characters(),
        )
