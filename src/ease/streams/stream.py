"""A stream: a dataset cut into tasks whose classes arrive one task after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ease.streams.images import ImageSet


@dataclass(frozen=True)
class Augmentation:
    """What training images go through besides resizing; a property of the data (letters must not be flipped)."""

    scale: tuple[float, float] = (0.05, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True


@dataclass(frozen=True)
class Dataset:
    """Train and test images of named classes. Labels index `class_names`.

    Attributes:
        name: how it was asked for, e.g. `glyphs`.
        keep_order: the classes come in their own order (VTAB) and are never shuffled.
        notes: one line each for what a reader of the results should know (skipped files, subset found).
    """

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    augmentation: Augmentation = field(default_factory=Augmentation)
    keep_order: bool = False
    notes: tuple[str, ...] = ()

    def first_classes(self, count: int) -> Dataset:
        """Only its first classes, in its own order; all of them if there are no more."""
        if count >= len(self.class_names):
            return self
        kept = range(count)
        return replace(
            self,
            class_names=self.class_names[:count],
            train=self.train.of_classes(kept),
            test=self.test.of_classes(kept),
            notes=(*self.notes, f"limited to the first {count} of {len(self.class_names)} classes"),
        )


@dataclass(frozen=True)
class Task:
    """One increment. Classes and labels are positions in the stream's class order.

    Attributes:
        index: 0 for the first task.
        classes: the positions of its classes: consecutive, following the previous task's.
        names: their names.
    """

    index: int
    classes: range
    names: tuple[str, ...]
    train: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class Stream:
    """Tasks in the order they arrive."""

    dataset: str
    protocol: str
    class_order: tuple[int, ...]
    class_names: tuple[str, ...]
    tasks: tuple[Task, ...]
    augmentation: Augmentation

    def __len__(self) -> int:
        return len(self.tasks)
