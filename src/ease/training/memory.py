"""Old images that exemplar-based methods keep. Exemplar-free methods are never given one."""

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
    """Decoded images of any sizes, uint8 [3, H, W] each."""

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
    """Images of several sets, one set after the other."""

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
    """One set of several, such as a task's images and the memory's; labels must mean the same in all of them."""
    labels = np.concatenate([part.labels for part in parts])
    return ImageSet(JoinedSource(parts), np.arange(len(labels)), labels)


class Memory:
    """Some images of every old class: so many of each, or so many in all.

    Args:
        per_class: None keeps everything (the paper's upper bound as its code has it).
        selection: `herding` keeps those whose running mean stays closest to the class mean; `random` any.
        seed: for `random`.
        total: a budget over all classes in place of `per_class`. Each class seen so far has an equal share of it; when
            new ones arrive the old ones give up those that were chosen last.
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
        """All that is kept, labels are positions in the stream's class order."""
        labels = np.array([label for task in self._labels for label in task], dtype=np.int64)
        source = PixelSource([image for task in self._images for image in task])
        return ImageSet(source, np.arange(len(labels)), labels)

    def remember(self, images: ImageSet, features: Tensor) -> None:
        """Choose from a task's images by their features [N, d]."""
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
        """Images per class once `new` more classes are in; None for all."""
        if self.total is None:
            return self.per_class
        classes = new + len({label for task in self._labels for label in task})
        if self.total < classes:
            raise EaseError(
                f"a memory of {self.total} images in all cannot hold {classes} classes: allow at least {classes}"
            )
        return self.total // classes

    def _reduce(self, share: int) -> None:
        """Keep the first `share` of every class: images stand in the order they were chosen."""
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
        """Tensors by file, one file per task."""
        return {
            f"memory/{task:04d}": {
                "labels": torch.tensor(labels),
                **{f"image/{i:05d}": image for i, image in enumerate(images)},
            }
            for task, (images, labels) in enumerate(zip(self._images, self._labels, strict=True))
        }

    def load_state(self, files: dict[str, dict[str, Tensor]]) -> None:
        """Become the memory that gave this state."""
        names = sorted(name for name in files if name.startswith("memory/"))
        self._labels = [files[name]["labels"].tolist() for name in names]
        self._images = [[files[n][i] for i in sorted(files[n]) if i.startswith("image/")] for n in names]


def herding(features: Tensor, count: int) -> IntArray:
    """Welling's herding on L2-normalised features [N, d]: each choice brings the running mean closest to the mean."""
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
