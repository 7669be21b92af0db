"""Is a dataset on disk what it should be? Damage is one thing; a subset or another known split is none."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from ease.errors import EaseError, unknown
from ease.filesystem import explained, shown, what_is
from ease.streams.datasets.published import PUBLISHED, recognise
from ease.streams.datasets.registry import EXAMINERS, LOADERS, DamagedError, Request
from ease.streams.intake.decode import check_files
from ease.streams.intake.scan import FolderScan, some_of
from ease.streams.stream import Dataset

__all__ = ["Archive", "Findings", "Sizes", "Twins", "check_archive", "check_dataset"]

Bar = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Shows progress: (label, steps) -> a context whose value is called with the steps just made."""

_AT_ONCE = 64
"""Files between two moves of the bar."""

_MUCH = 0.5
"""Two classes that share this much of the smaller one are worth telling."""


@contextmanager
def _quiet(label: str, total: int) -> Iterator[Callable[[int], None]]:
    yield lambda steps: None


@dataclass(frozen=True)
class Sizes:
    """How many classes, train and test images."""

    classes: int
    train: int
    test: int

    def __str__(self) -> str:
        return f"{self.classes:,} classes, {self.train:,} train and {self.test:,} test images"


@dataclass(frozen=True)
class Archive:
    """An archive's MD5 beside the published one."""

    file: str
    md5: str
    published: str

    @property
    def matches(self) -> bool:
        return self.md5 == self.published


@dataclass(frozen=True)
class Twins:
    """Two classes that share images: `shared` of the `images` different ones the smaller class has."""

    first: str
    second: str
    shared: int
    images: int

    def __str__(self) -> str:
        return f"{self.first} and {self.second} ({self.shared:,} of {self.images:,})"


@dataclass
class Findings:
    """What a check found.

    Attributes:
        dataset: the name asked for.
        found: the name under which figures on it are reported; None where no images were looked at.
        folder: where the images are.
        sizes: what is there; `expected`: what was published.
        archive: the MD5 of the archive given.
        unreadable: files that cannot be used.
        duplicates: (test image, the same image in train).
        twins: classes that share much of their content.
        notes: what was recognised; no fault.
        warnings: odd, but figures can be made.
        damage: what must be mended.
    """

    dataset: str
    found: str | None = None
    folder: str | None = None
    sizes: Sizes | None = None
    expected: Sizes | None = None
    archive: Archive | None = None
    unreadable: list[str] = field(default_factory=list)
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    twins: list[Twins] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.damage

    def as_json(self) -> dict[str, Any]:
        """For a program to read."""
        archive = None if self.archive is None else {**asdict(self.archive), "matches": self.archive.matches}
        return {**asdict(self), "archive": archive, "good": self.good}

    def lines(self) -> list[str]:
        """For people to read."""
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
    name: str, root: Path | None = None, archive: Path | None = None, bar: Bar = _quiet
) -> Findings:
    """Look at everything a dataset has on disk.

    Args:
        name: one of `dataset_list()`.
        root: its folder; `$EASE_DATA/<name>` if left out.
        archive: a file to compare with the published MD5. Given without a root, only it is looked at.
        bar: shows progress.
    """
    if name not in LOADERS:
        raise unknown("dataset", name, LOADERS)
    findings = Findings(name)
    if name not in EXAMINERS:
        findings.notes.append(
            f"nothing to check: {name} is built in and drawn or read from the package itself"
        )
        return findings
    if archive is not None:
        findings.archive = check_archive(name, archive, bar)
        if not findings.archive.matches:
            findings.damage.append(
                f"MD5 of {archive} is {findings.archive.md5}, published was {findings.archive.published}: "
                "fetch it again"
            )
        if root is None:
            return findings
    try:
        content = EXAMINERS[name](Request(root, "skip"))
    except DamagedError as error:
        findings.damage.append(str(error))
        return findings
    if isinstance(content, Dataset):
        _check_arrays(findings, content, bar)
    else:
        _check_files(findings, content, bar)
    return findings


def check_archive(name: str, path: Path, bar: Bar = _quiet) -> Archive:
    """The MD5 of a file beside the published one of that name. Nothing is unpacked."""
    known = PUBLISHED[name].archives if name in PUBLISHED else {}
    if not known:
        raise EaseError(f"dataset '{name}' was not published as an archive: leave --archive out")
    what = what_is(path)
    if what != "file":
        reason = "does not exist" if what == "missing" else "is not a file"
        raise EaseError(f"archive '{shown(path)}' {reason}: check the path")
    with explained("read the archive", path):
        md5, size = hashlib.md5(usedforsecurity=False), path.stat().st_size
        with path.open("rb") as file, bar(f"MD5 of {path.name}", size) as advance:
            while block := file.read(2**20):
                md5.update(block)
                advance(len(block))
    found = md5.hexdigest()
    # A file that was renamed is still the right one.
    wanted = known.get(path.name) or (found if found in known.values() else " or ".join(known.values()))
    return Archive(path.name, found, wanted)


def _check_arrays(findings: Findings, data: Dataset, bar: Bar) -> None:
    """Files that were compared with their MD5 while they were loaded; left are images that appear twice."""
    findings.found = data.name
    findings.folder = "torchvision's files"
    findings.sizes = Sizes(len(data.class_names), len(data.train), len(data.test))
    findings.expected = _published_sizes(findings.dataset)
    findings.notes += data.notes
    seen: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": []}
    with bar("looking for duplicates", len(data.train) + len(data.test)) as advance:
        for part, images in (("train", data.train), ("test", data.test)):
            for i, label in enumerate(images.labels.tolist()):
                seen[part].append((images.digest(i), data.class_names[label], f"{part} image {i}"))
                advance(1)
    _tell_duplicates(findings, seen["train"], seen["test"])


def _check_files(findings: Findings, scan: FolderScan, bar: Bar) -> None:
    name, test = findings.dataset, scan.test or {}
    train_sizes, test_sizes = ([len(p) for p in part.values()] for part in (scan.train, test))
    findings.found = name
    findings.folder = str(scan.root)
    findings.sizes = Sizes(len(scan.train), sum(train_sizes), sum(test_sizes))
    findings.expected = _published_sizes(name)
    findings.notes += scan.notes
    if name in PUBLISHED:
        findings.found, note = recognise(name, train_sizes, test_sizes)
        findings.notes += [] if note is None else [note]
        if scan.test is None:
            findings.damage.append(f"there is no test/ beside train/ in {scan.root}: put it there")
    elif scan.test is None:
        findings.notes.append("no test/ found: a fifth of each class, chosen by content, is for testing")
    if not scan.train:
        raise EaseError(f"folder '{scan.root}' has no class folder: make one folder of images for each class")
    if len(scan.train) == 1:
        findings.damage.append("there is only one class: at least 2 are needed")
    if scan.others:
        findings.notes.append(f"left out {some_of(scan.others)}: no image of a class")
    seen: dict[str, list[tuple[str, str, str]]] = {"train": [], "test": []}
    with bar("reading images", findings.sizes.train + findings.sizes.test) as advance:
        for part, classes in (("train", scan.train), ("test", test)):
            for own, paths in classes.items():
                for start in range(0, len(paths), _AT_ONCE):
                    here = paths[start : start + _AT_ONCE]
                    for path, checked in zip(here, check_files(here), strict=True):
                        if checked.fault is None:
                            seen[part].append((checked.digest, own, scan.short(path)))
                        else:
                            findings.unreadable.append(scan.short(path))
                    advance(len(here))
    findings.unreadable = [*scan.skipped, *findings.unreadable]
    if findings.unreadable:
        findings.damage.append(f"{some_of(findings.unreadable)} cannot be read: repair or remove")
    _tell_classes(findings, scan)
    _tell_duplicates(findings, seen["train"], seen["test"])


def _tell_classes(findings: Findings, scan: FolderScan) -> None:
    """Classes with nothing to learn from, or nothing to be tested on."""
    test = scan.test or {}
    empty = [f"train/{c}" for c, paths in scan.train.items() if not paths]
    empty += [f"test/{c}" for c, paths in test.items() if not paths]
    if empty:
        findings.damage.append(f"{_classes(empty)} without any image: add some or remove the folder")
    strangers = [c for c in test if c not in scan.train]
    if strangers:
        findings.damage.append(f"{_classes(strangers)} in test/ but not in train/: add or remove")
    untested = [c for c in scan.train if scan.test is not None and c not in test]
    if untested:
        findings.warnings.append(f"{_classes(untested)} in train/ but not in test/")


def _tell_duplicates(
    findings: Findings, train: list[tuple[str, str, str]], test: list[tuple[str, str, str]]
) -> None:
    """Images with equal content across train and test, and across classes. Entries: (digest, class, image)."""
    learned = {digest: image for digest, _, image in reversed(train)}
    findings.duplicates = [(image, learned[digest]) for digest, _, image in test if digest in learned]
    if findings.duplicates:
        pairs = _few([f"{image} = {same}" for image, same in findings.duplicates])
        findings.warnings.append(f"{len(findings.duplicates):,} test images are in train too: {pairs}")
    classes: dict[str, set[str]] = defaultdict(set)  # digest -> the classes it is in
    different: dict[str, set[str]] = defaultdict(set)
    for digest, own, _ in (*train, *test):
        classes[digest].add(own)
        different[own].add(digest)
    shared: dict[tuple[str, str], int] = defaultdict(int)
    for owners in classes.values():
        for pair in combinations(sorted(owners), 2):
            shared[pair] += 1
    for (first, second), count in sorted(shared.items()):
        images = min(len(different[first]), len(different[second]))
        if count >= _MUCH * images:
            findings.twins.append(Twins(first, second, count, images))
    if findings.twins:
        findings.warnings.append(f"classes with the same images: {_few([str(t) for t in findings.twins])}")


def _published_sizes(name: str) -> Sizes | None:
    published = PUBLISHED.get(name)
    return None if published is None else Sizes(published.classes, published.train, published.test)


def _classes(names: list[str]) -> str:
    return f"{len(names)} {'class' if len(names) == 1 else 'classes'} ({_few(names)})"


def _few(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
