"""A stream: a dataset cut into tasks whose classes arrive one task after the other."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ease.streams.images import ImageSet


@dataclass(frozen=True)
class Augmentation:
    """How training images are varied. It is a property of the data: letters must not be mirrored.

    Attributes:
        scale: Smallest and largest area of a random crop, as a fraction of the image.
        ratio: Smallest and largest width of a crop divided by its height.
        flip: Whether half of the images are mirrored.
    """

    scale: tuple[float, float] = (0.05, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: bool = True

    @classmethod
    def for_characters(cls) -> Augmentation:
        """No mirroring and mild crops, so that letters and digits stay recognisable."""
        return cls(scale=(0.6, 1.0), flip=False)


@dataclass(frozen=True)
class Dataset:
    """Train and test images of named classes.

    Attributes:
        name: The name under which results are reported, such as `glyphs`.
        class_names: The classes; labels are positions in it.
        train: Training images.
        test: Test images.
        augmentation: How training images are varied.
        keep_order: Whether the classes keep their order instead of being shuffled, as in VTAB.
        notes: One line each for what a reader of the results should know, such as skipped files or a subset.
    """

    name: str
    class_names: tuple[str, ...]
    train: ImageSet
    test: ImageSet
    augmentation: Augmentation = field(default_factory=Augmentation)
    keep_order: bool = False
    notes: tuple[str, ...] = ()

    def first_classes(self, count: int) -> Dataset:
        """The dataset with only its first classes.

        Args:
            count: How many classes to keep; all of them if there are no more.
        """
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
    """One step of a stream: some new classes with their images.

    Attributes:
        index: 0 for the first task.
        classes: Positions of its classes in the stream's class order: consecutive, after those of the previous task.
        names: The names of its classes.
        train: Training images; their labels are positions in the stream's class order.
        test: Test images, labelled in the same way.
    """

    index: int
    classes: range
    names: tuple[str, ...]
    train: ImageSet
    test: ImageSet


@dataclass(frozen=True)
class Stream:
    """The tasks of a dataset in the order in which they arrive. Made by `make_stream`.

    Attributes:
        dataset: Name of the dataset.
        protocol: How the classes were divided, such as `B0 Inc5`.
        class_order: Position in the stream -> label in the dataset.
        class_names: Position in the stream -> name of the class.
        tasks: The tasks.
        augmentation: How training images are varied.
    """

    dataset: str
    protocol: str
    class_order: tuple[int, ...]
    class_names: tuple[str, ...]
    tasks: tuple[Task, ...]
    augmentation: Augmentation

    def __len__(self) -> int:
        return len(self.tasks)
