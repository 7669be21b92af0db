"""The exemplar memory: old images that exemplar-based methods keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import ImageSet, IntArray, content_hash
from ease.training.randomness import permutation


class PixelSource:
    """An image source of decoded images, uint8 [3, H, W] each, of any sizes."""

    def __init__(self, images: list[Tensor]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> Tensor:
        return self.images[index]

    def digest(self, index: int) -> str:
        image = self.images[index]
        return content_hash(str(tuple(image.shape)).encode() + image.numpy().tobytes())


class JoinedSource:
    """An image source that concatenates several image sets."""

    def __init__(self, parts: Sequence[ImageSet]) -> None:
        self.parts = parts
        self._ends = np.cumsum([len(part) for part in parts])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def _locate(self, index: int) -> tuple[ImageSet, int]:
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part], index - int(self._ends[part]) + len(self.parts[part])

    def load(self, index: int) -> Tensor:
        part, position = self._locate(index)
        return part.image(position)

    def digest(self, index: int) -> str:
        part, position = self._locate(index)
        return part.digest(position)


def joined(*parts: ImageSet) -> ImageSet:
    """Concatenate image sets, such as a task's images and the exemplars. Labels must have the same meaning in all."""
    labels = np.concatenate([part.labels for part in parts])
    return ImageSet(JoinedSource(parts), np.arange(len(labels)), labels)


class Memory:
    """Exemplars of every old class, with a limit per class or in total.

    Args:
        per_class: Exemplars per class; None keeps all images, as the released code of EASE does for its upper bound.
        selection: `herding` keeps the images whose running mean stays closest to the class mean; `random` any.
        seed: Random seed, for `random`.
        total: A limit over all classes in place of `per_class`. Every class seen so far has an equal share. When new
            classes arrive, the old ones give up the exemplars that were chosen last.
    """

    def __init__(
        self,
        per_class: int | None = 20,
        selection: Literal["herding", "random"] = "herding",
        seed: int = 1993,
        *,
        total: int | None = None,
    ) -> None:
        if per_class is not None and per_class < 1:
            raise EaseError(f"a memory of {per_class} images is none: keep at least 1, or all")
        self.per_class = per_class
        self.selection = selection
        self.seed = seed
        self.total = total
        self._images: list[list[Tensor]] = []
        self._labels: list[list[int]] = []

    def __len__(self) -> int:
        return sum(len(labels) for labels in self._labels)

    @property
    def images(self) -> ImageSet:
        """All exemplars. Labels are positions in the stream's class order."""
        labels = np.array([label for task in self._labels for label in task], dtype=np.int64)
        source = PixelSource([image for task in self._images for image in task])
        return ImageSet(source, np.arange(len(labels)), labels)

    def remember(self, images: ImageSet, features: Tensor) -> None:
        """Select exemplars from the images of a task by their features [N, d]."""
        new = np.unique(images.labels)
        share = self._share(len(new))
        kept: list[Tensor] = []
        labels: list[int] = []
        for label in new:
            positions = np.flatnonzero(images.labels == label)
            for position in positions[self._choose(features[positions], int(label), share)]:
                kept.append(images.image(int(position)))
                labels.append(int(label))
        if self.total is not None and share is not None:
            self._reduce(share)
        self._images.append(kept)
        self._labels.append(labels)

    def _share(self, new: int) -> int | None:
        """Exemplars per class after `new` classes are added; None for all images."""
        if self.total is None:
            return self.per_class
        classes = new + len({label for task in self._labels for label in task})
        if self.total < classes:
            raise EaseError(
                f"a memory of {self.total} images in all cannot hold {classes} classes: allow at least {classes}"
            )
        return self.total // classes

    def _reduce(self, share: int) -> None:
        """Keep the first `share` exemplars of every class. They are in the order in which they were chosen."""
        for task, labels in enumerate(self._labels):
            keep = [i for i, label in enumerate(labels) if labels[:i].count(label) < share]
            self._labels[task] = [labels[i] for i in keep]
            self._images[task] = [self._images[task][i] for i in keep]

    def _choose(self, features: Tensor, label: int, share: int | None) -> IntArray:
        count = len(features) if share is None else min(share, len(features))
        if count == len(features) and self.total is None:
            return np.arange(count)
        if self.selection == "random":
            return permutation(len(features), self.seed, "memory", label)[:count]
        return herding(features, count)

    def state(self) -> dict[str, dict[str, Tensor]]:
        """The state as tensors by file, one file per task."""
        return {
            f"memory/{task:04d}": {
                "labels": torch.tensor(labels),
                **{f"image/{i:05d}": image for i, image in enumerate(images)},
            }
            for task, (images, labels) in enumerate(zip(self._images, self._labels, strict=True))
        }

    def load_state(self, files: dict[str, dict[str, Tensor]]) -> None:
        """Restore what `state` returned."""
        names = sorted(name for name in files if name.startswith("memory/"))
        self._labels = [files[name]["labels"].tolist() for name in names]
        self._images = [[files[n][i] for i in sorted(files[n]) if i.startswith("image/")] for n in names]


def herding(features: Tensor, count: int) -> IntArray:
    """Select images by herding (Welling, 2009) on L2-normalised features.

    Each choice brings the running mean as close as possible to the mean of all images.

    Args:
        features: [N, d].
        count: Number of images to select.

    Returns:
        The positions of the selected images, in the order of their selection.
    """
    points = F.normalize(features.double(), dim=-1)
    mean = points.mean(dim=0)
    total = torch.zeros_like(mean)
    free = torch.ones(len(points), dtype=torch.bool)
    chosen: list[int] = []
    for step in range(1, count + 1):
        distance = ((total + points) / step - mean).norm(dim=-1)
        distance[~free] = torch.inf
        best = int(distance.argmin())
        chosen.append(best)
        free[best] = False
        total += points[best]
    return np.array(chosen, dtype=np.int64)
