"""CUB-200-2011 as Caltech gave it away: a folder of images, and lists that say which is which."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ease.errors import EaseError
from ease.filesystem import is_file, is_folder, is_inside, read_text, resolved
from ease.streams.datasets.registry import Unreadable
from ease.streams.intake.decode import EXTENSIONS
from ease.streams.intake.scan import FolderScan

LISTS = ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt")
_LARGEST = 2**26
"""Bytes of a list; the real ones have about one MB."""


def has_lists(folder: Path) -> bool:
    """Whether a folder looks like the official one."""
    return is_folder(folder / "images") and is_file(folder / LISTS[0])


def scan_lists(folder: Path, unreadable: Unreadable = "refuse") -> FolderScan:
    """The images by class and split as the lists say; classes in the order of their numbers."""
    folder = resolved(folder)
    scan = FolderScan(folder, unreadable)
    paths, labels, classes, splits = (_rows(folder / name) for name in LISTS)
    order = sorted(classes, key=lambda number: (len(number), number))
    if len(set(classes.values())) < len(classes):
        raise EaseError(f"'{folder / LISTS[2]}' names a class twice: give each class one line")
    scan.train = {classes[number]: [] for number in order}
    scan.test = {classes[number]: [] for number in order}
    for image, name in paths.items():
        label, side = labels.get(image), splits.get(image)
        if label not in classes or side not in ("0", "1"):
            missing = LISTS[1] if label not in classes else LISTS[3]
            raise EaseError(
                f"'{folder / missing}' has no valid line for image {image}: take the official file"
            )
        path = _inside(folder / "images", name)
        if path.suffix.lower() not in EXTENSIONS:
            scan.others.append(f"images/{name}")
        elif not is_file(path):
            line = f"image '{path}' is in {LISTS[0]} but does not exist: put it there"
            scan.refuse_or_skip(path, line)
        elif not is_inside(path, folder):
            scan.refuse_or_skip(
                path, f"image '{path}' is a link that leads out of '{folder}': put a copy there"
            )
        else:
            (scan.train if side == "1" else scan.test)[classes[label]].append(path)
    for part in (scan.train, scan.test):
        for own in part.values():
            own.sort()
    return scan


def _inside(folder: Path, name: str) -> Path:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
        raise EaseError(f"'{folder.parent / LISTS[0]}' names '{name}', which is not under images/: remove it")
    return folder / relative


def _rows(path: Path) -> dict[str, str]:
    """`<number> <value>` lines."""
    try:
        lines = read_text(path, _LARGEST).splitlines()
    except EaseError as error:
        raise EaseError(f"{error}; CUB's own layout needs it") from error
    rows: dict[str, str] = {}
    for at, line in enumerate(lines, start=1):
        number, _, value = line.strip().partition(" ")
        if not number:
            continue
        if not number.isascii() or not number.isdigit() or not value.strip() or number in rows:
            raise EaseError(f"'{path}' line {at} is no new '<number> <value>' line: take the official file")
        rows[number] = value.strip()
    return rows
