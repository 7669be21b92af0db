"""Facts about published datasets, and which variant of one a folder contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

import yaml


@dataclass(frozen=True)
class SplitInfo:
    """Another well-known split of the same images into train and test.

    Attributes:
        title: What messages call it.
        train: Number of training images.
        test: Number of test images.
    """

    title: str
    train: int
    test: int


@dataclass(frozen=True)
class DatasetInfo:
    """A dataset as it was published.

    Attributes:
        title: Its name in print.
        classes: Number of classes.
        train: Number of training images.
        test: Number of test images.
        archives: File name -> MD5.
        folders: What the archives unpack to, where that differs from the name of the archive.
        splits: Other splits that people may have, by short name.
        keep_order: Whether its classes are never shuffled.
        source: Where it was published, for messages.
    """

    title: str
    classes: int
    train: int
    test: int
    archives: dict[str, str]
    folders: tuple[str, ...]
    splits: dict[str, SplitInfo]
    keep_order: bool
    source: str

    @property
    def summary(self) -> str:
        """Title and size in one line."""
        return f"{self.title}, {self.classes} classes, {self.train:,} train / {self.test:,} test"


def _info(entry: dict[str, object]) -> DatasetInfo:
    values: dict = {"keep_order": False, **entry}
    values["folders"] = tuple(values.get("folders", ()))
    values["splits"] = {short: SplitInfo(**split) for short, split in values.get("splits", {}).items()}
    return DatasetInfo(**values)


DATASET_INFO: dict[str, DatasetInfo] = {
    name: _info(entry)
    for name, entry in yaml.safe_load(
        (files(__package__) / "dataset_info.yaml").read_text(encoding="utf-8")
    ).items()
}
"""Every dataset that has a published form, by the name under which it is loaded."""


def identify_variant(name: str, train: Sequence[int], test: Sequence[int]) -> tuple[str, str | None]:
    """Decide which variant of a published dataset was found: all of it, another split, or a subset.

    Results on a subset are not results on the benchmark, so they get another name.

    Args:
        name: A name in `DATASET_INFO`.
        train: Number of training images of each class.
        test: Number of test images of each class.

    Returns:
        The name under which results are reported, and a note if it is not the published dataset itself.

    Example:
        >>> identify_variant("cifar100", [20] * 100, [5] * 100)[0]
        'cifar100-20'
    """
    info = DATASET_INFO[name]
    found, wanted = (len(train), sum(train), sum(test)), (info.classes, info.train, info.test)
    if found == wanted:
        return name, None
    for short, split in info.splits.items():
        if found == (info.classes, split.train, split.test):
            return f"{name}-{short}", (
                f"{split.title} was found ({split.train:,} train / {split.test:,} test), not the one of the benchmark "
                f"({info.train:,} / {info.test:,}): results are reported as {name}-{short}"
            )
    if any(have > want for have, want in zip(found, wanted, strict=True)):
        kind, variant = "not the published", f"{name}-other"
    elif len(set(train)) == 1 and len(train) == info.classes:
        kind, variant = "a subset of", f"{name}-{train[0]}"
    else:
        kind, variant = "a subset of", f"{name}-subset"
    counts = [f"{have:,} of {want:,}" for have, want in zip(found, wanted, strict=True)]
    return variant, (
        f"{kind} {info.title}: {counts[0]} classes, {counts[1]} train and {counts[2]} test images; "
        f"results on it are not results on {info.title}, so they are reported as {variant}"
    )
