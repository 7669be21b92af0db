"""`ease datasets check`: is a dataset on disk complete and undamaged?

A subset or another well-known split is recognised and reported; only files that must be repaired are damage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ease.errors import EaseError
from ease.filesystem import explained, shown, what_is
from ease.progress import Progress, Quiet
from ease.streams.datasets.dataset_info import DATASET_INFO, identify_variant
from ease.streams.datasets.registry import DamagedError, DatasetRequest, find_dataset
from ease.streams.intake.checks import (
    CHECKED_AT_ONCE,
    LabelledDigest,
    check_images,
    find_duplicates,
    size_notes,
)
from ease.streams.intake.names import class_names, list_files, list_names
from ease.streams.intake.scan import Classes, FolderScan
from ease.streams.stream import Dataset

_MOSTLY_SHARED = 0.5
"""Two classes are reported if they share at least this much of the smaller one."""


@dataclass(frozen=True)
class DatasetSizes:
    """The numbers of classes, training images and test images."""

    classes: int
    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.classes:,} classes, {self.train:,} train and {self.test:,} test images"


@dataclass(frozen=True)
class ArchiveChecksum:
    """The MD5 of an archive and the one that was published.

    Attributes:
        file: Name of the archive.
        md5: Its checksum.
        published: The published checksum.
    """

    file: str
    md5: str
    published: str

    @property
    def matches(self) -> bool:
        """Whether the archive is the published one."""
        return self.md5 == self.published


@dataclass(frozen=True)
class SharedImages:
    """Two classes with many images in common.

    Attributes:
        first: Name of a class.
        second: Name of another class.
        shared: How many different images both have.
        images: How many different images the smaller class has.
    """

    first: str
    second: str
    shared: int
    images: int

    def __str__(self) -> str:
        return f"{self.first} and {self.second} ({self.shared:,} of {self.images:,})"


@dataclass
class DatasetCheck:
    """What a check found.

    Attributes:
        dataset: The name asked for.
        found: The name under which results on it are reported; None where no images were examined.
        folder: Where the images are.
        sizes: The sizes found.
        expected: The published sizes.
        archive: The checksum of the archive given.
        unreadable: Files that cannot be used.
        duplicates: (test image, training image with the same content).
        twins: Classes that share much of their content.
        notes: Remarks that need no action.
        warnings: Oddities that may affect results.
        damage: What must be repaired.
    """

    dataset: str
    found: str | None = None
    folder: str | None = None
    sizes: DatasetSizes | None = None
    expected: DatasetSizes | None = None
    archive: ArchiveChecksum | None = None
    unreadable: list[str] = field(default_factory=list)
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    twins: list[SharedImages] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        """Whether nothing must be repaired."""
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        """All findings as JSON values."""
        archive = None if self.archive is None else {**asdict(self.archive), "matches": self.archive.matches}
        return {**asdict(self), "archive": archive, "good": self.good}

    def lines(self) -> list[str]:
        """The findings as lines of text."""
        lines = []
        if self.archive is not None and self.archive.matches:
            lines.append(f"archive {self.archive.file}: MD5 as published")
        if self.sizes is not None:
            lines.append(f"{self.found} in {self.folder}: {self.sizes}")
            if self.expected not in (None, self.sizes):
                lines.append(f"published as {self.dataset}: {self.expected}")
            lines.append("every file can be read" if not self.unreadable else "")
            lines.append(
                "no image is in both train and test" if self.sizes.test and not self.duplicates else ""
            )
        lines += [f"note: {line}" for line in self.notes]
        lines += [f"warning: {line}" for line in self.warnings]
        lines += [f"damage: {line}" for line in self.damage]
        return [line for line in lines if line]


def check_dataset(
    name: str, root: Path | None = None, archive: Path | None = None, progress: Progress | None = None
) -> DatasetCheck:
    """Check the files of a dataset.

    Args:
        name: One of `dataset_list()`.
        root: Its folder; `$EASE_DATA/<name>` if left out.
        archive: A file to compare with the published MD5. Without a root, only this file is checked.
        progress: Shows how many images have been checked.

    Returns:
        What was found.

    Raises:
        EaseError: The name is unknown or there are no files; damage is reported in the result instead.
    """
    loader = find_dataset(name)
    progress = progress or Quiet()
    check = DatasetCheck(name)
    if archive is not None:
        check.archive = check_archive(name, archive, progress)
        if not check.archive.matches:
            check.damage.append(
                f"MD5 of {archive} is {check.archive.md5}, but the published one is {check.archive.published}: "
                "download it again"
            )
        if root is None:
            return check
    try:
        content = loader.content_to_check(DatasetRequest(root, "skip"))
    except DamagedError as error:
        check.damage.append(str(error))
        return check
    if content is None:
        check.notes.append(f"nothing to check: {name} has no files of its own")
    elif isinstance(content, Dataset):
        _check_loaded(check, content, progress)
    else:
        _check_files(check, content, progress)
    return check


def check_archive(name: str, path: Path, progress: Progress) -> ArchiveChecksum:
    """Compare the MD5 of a file with the published one. Nothing is unpacked.

    Args:
        name: Name of the dataset.
        path: The archive.
        progress: Shows how many bytes have been read.
    """
    known = DATASET_INFO[name].archives if name in DATASET_INFO else {}
    if not known:
        raise EaseError(f"dataset '{name}' was not published as an archive: leave --archive out")
    kind = what_is(path)
    if kind != "file":
        reason = "does not exist" if kind == "missing" else "is not a file"
        raise EaseError(f"archive '{shown(path)}' {reason}: check the path")
    with explained("read the archive", path):
        md5, size = hashlib.md5(usedforsecurity=False), path.stat().st_size
        if not size:  # files of the system that say so may never end
            raise EaseError(f"archive '{shown(path)}' is empty: check the path")
        with path.open("rb") as file, progress.bar(f"MD5 of {path.name}", size) as advance:
            while block := file.read(2**20):
                md5.update(block)
                advance(len(block))
    found = md5.hexdigest()
    # A file that was renamed is still the right one.
    wanted = known.get(path.name) or (found if found in known.values() else " or ".join(known.values()))
    return ArchiveChecksum(path.name, found, wanted)


def _check_loaded(check: DatasetCheck, data: Dataset, progress: Progress) -> None:
    """Images whose files were compared with their MD5 while they were loaded: look for duplicates."""
    check.found = data.name
    check.folder = "torchvision's files"
    check.sizes = DatasetSizes(len(data.class_names), len(data.train), len(data.test))
    check.expected = _published_sizes(check.dataset)
    check.notes += data.notes
    facts: dict[str, list[LabelledDigest]] = {"train": [], "test": []}
    order = sorted(data.class_names)
    position = {name: i for i, name in enumerate(order)}
    with progress.bar("looking for duplicates", len(data.train) + len(data.test)) as advance:
        for part, images in (("train", data.train), ("test", data.test)):
            for i, label in enumerate(images.labels.tolist()):
                own = position[data.class_names[label]]
                facts[part].append(LabelledDigest(images.digest(i), own, f"{part} image {i}"))
                advance(1)
    _report_duplicates(check, order, facts)


def _check_files(check: DatasetCheck, scan: FolderScan, progress: Progress) -> None:
    name, test = check.dataset, scan.test or {}
    sizes = [[len(paths) for paths in part.values()] for part in (scan.train, test)]
    check.found = name
    check.folder = str(scan.root)
    check.sizes = DatasetSizes(len(scan.train), sum(sizes[0]), sum(sizes[1]))
    check.expected = _published_sizes(name)
    check.notes += scan.notes
    if name in DATASET_INFO:
        check.found, note = identify_variant(name, *sizes)
        check.notes += [] if note is None else [note]
        if scan.test is None:
            check.damage.append(f"there is no test/ beside train/ in {scan.root}: put it there")
    elif scan.test is None:
        check.notes.append("no test/ found: a fifth of each class, chosen by content, is used for testing")
    if not scan.train:
        raise EaseError(f"folder '{scan.root}' has no class folder: make one folder of images for each class")
    if len(scan.train) == 1:
        check.damage.append("there is only one class: at least 2 are needed")
    if scan.other_files:
        check.notes.append(f"left out {list_files(scan.other_files)}: not an image of a class")
    order = sorted({*scan.train, *test})
    position = {name: i for i, name in enumerate(order)}
    facts: dict[str, list[LabelledDigest]] = {"train": [], "test": []}
    with progress.bar("reading images", check.sizes.train + check.sizes.test) as advance:
        for part, classes in (("train", scan.train), ("test", test)):
            for own, paths in classes.items():
                for start in range(0, len(paths), CHECKED_AT_ONCE):
                    batch = paths[start : start + CHECKED_AT_ONCE]
                    for path, image in zip(batch, check_images(batch), strict=True):
                        file = scan.relative_name(path)
                        if image.fault is None:
                            facts[part].append(LabelledDigest(image.digest, position[own], file))
                        else:
                            check.unreadable.append(file)
                    advance(len(batch))
    check.unreadable = [*scan.skipped, *check.unreadable]
    if check.unreadable:
        check.damage.append(f"{list_files(check.unreadable)} cannot be read: repair or remove")
    _report_classes(check, scan.train, scan.test)
    _report_duplicates(check, order, facts)
    if name not in DATASET_INFO:
        _report_names_and_sizes(check, scan.train)


def _report_classes(check: DatasetCheck, train: Classes, test: Classes | None) -> None:
    """Classes without images to learn from, or without images to be tested on."""
    empty = [f"train/{c}" for c, paths in train.items() if not paths]
    empty += [f"test/{c}" for c, paths in (test or {}).items() if not paths]
    if empty:
        check.damage.append(f"{_list_classes(empty)} without any image: add some or remove the folder")
    unknown = [c for c in test or {} if c not in train]
    if unknown:
        check.damage.append(f"{_list_classes(unknown)} in test/ but not in train/: add or remove")
    untested = [c for c in train if test is not None and c not in test]
    if untested:
        check.warnings.append(f"{_list_classes(untested)} in train/ but not in test/")


def _report_duplicates(
    check: DatasetCheck, names: list[str], facts: Mapping[str, list[LabelledDigest]]
) -> None:
    """Images that are in train and in test, and classes that share many images."""
    found = find_duplicates(facts["train"], facts["test"])
    check.duplicates = found.between_parts
    if check.duplicates:
        pairs = list_names([f"{image} = {same}" for image, same in check.duplicates])
        check.warnings.append(f"{len(check.duplicates):,} test images are in train too: {pairs}")
    for (first, second), shared in sorted(found.between_classes.items()):
        smaller = min(found.distinct[first], found.distinct[second])
        if len(shared) >= _MOSTLY_SHARED * smaller:
            check.twins.append(SharedImages(names[first], names[second], len(shared), smaller))
    if check.twins:
        check.warnings.append(
            f"classes with the same images: {list_names([str(pair) for pair in check.twins])}"
        )


def _report_names_and_sizes(check: DatasetCheck, train: Classes) -> None:
    """What `ease learn` would say about a folder of one's own: names that it refuses, and class sizes."""
    try:
        class_names(train)
    except EaseError as error:
        check.warnings.append(str(error))
    sizes = {name: len(paths) for name, paths in train.items() if paths}
    check.notes += size_notes(sizes) if sizes else []


def _published_sizes(name: str) -> DatasetSizes | None:
    info = DATASET_INFO.get(name)
    return None if info is None else DatasetSizes(info.classes, info.train, info.test)


def _list_classes(names: list[str]) -> str:
    return f"{len(names)} {'class' if len(names) == 1 else 'classes'} ({list_names(names)})"
