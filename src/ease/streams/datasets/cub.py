"""CUB-200: class folders like the other benchmarks, or the official folder with lists of images."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from ease.errors import EaseError
from ease.filesystem import is_file, is_folder, read_text, resolved
from ease.streams.datasets.benchmarks import Benchmark
from ease.streams.intake.formats import IMAGE_EXTENSIONS
from ease.streams.intake.scan import FolderScan, Unreadable

LISTS = ("images.txt", "image_class_labels.txt", "classes.txt", "train_test_split.txt")
"""The files of the official folder that say which image belongs to which class and part."""

_MAX_LIST_BYTES = 2**26
"""Bytes of a list; the real ones have about one MB."""


class Cub200(Benchmark):
    """`cub200`, in the split of the benchmark or in the official one."""

    def __init__(self) -> None:
        super().__init__("cub200")

    def _has_images(self, folder: Path) -> bool:
        return super()._has_images(folder) or (is_folder(folder / "images") and is_file(folder / LISTS[0]))

    def _scan_images(self, folder: Path, unreadable: Unreadable, keep_empty: bool) -> FolderScan:
        if super()._has_images(folder):
            return super()._scan_images(folder, unreadable, keep_empty)
        return scan_lists(folder, unreadable)

    def _other_layout(self) -> str:
        return ", or the official CUB_200_2011 folder"


def scan_lists(folder: Path, unreadable: Unreadable = "refuse") -> FolderScan:
    """Find the images that the lists of the official folder name. Classes come in the order of their numbers.

    Args:
        folder: CUB_200_2011.
        unreadable: What to do with an image that is listed but not there.
    """
    folder = resolved(folder)
    scan = FolderScan(folder, unreadable)
    paths, labels, classes, splits = (_read_list(folder / name) for name in LISTS)
    order = sorted(classes, key=lambda number: (len(number), number))
    if len(set(classes.values())) < len(classes):
        raise EaseError(f"'{folder / LISTS[2]}' names a class twice: give each class one line")
    scan.train = {classes[number]: [] for number in order}
    scan.test = {classes[number]: [] for number in order}
    for image, name in paths.items():
        label, is_train = labels.get(image), splits.get(image)
        if label not in classes or is_train not in ("0", "1"):
            missing = LISTS[1] if label not in classes else LISTS[3]
            raise EaseError(
                f"'{folder / missing}' has no valid line for image {image}: use the official file"
            )
        path = _image_path(folder / "images", name)
        if path.suffix.lower() not in IMAGE_EXTENSIONS:
            scan.other_files.append(f"images/{name}")
        elif not is_file(path):
            problem = f"image '{path}' is in {LISTS[0]} but does not exist: put it there"
            scan.refuse_or_skip(path, problem)
        else:
            (scan.train if is_train == "1" else scan.test)[classes[label]].append(path)
    for part in (scan.train, scan.test):
        for own in part.values():
            own.sort()
    return scan


def _image_path(folder: Path, name: str) -> Path:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name or "\0" in name:
        raise EaseError(f"'{folder.parent / LISTS[0]}' names '{name}', which is not under images/: remove it")
    return folder / relative


def _read_list(path: Path) -> dict[str, str]:
    """The lines `<number> <value>` of a file."""
    try:
        lines = read_text(path, _MAX_LIST_BYTES).splitlines()
    except EaseError as error:
        raise EaseError(f"{error}; the official layout of CUB needs it") from error
    rows: dict[str, str] = {}
    for at, line in enumerate(lines, start=1):
        number, _, value = line.strip().partition(" ")
        if not number:
            continue
        if not number.isascii() or not number.isdigit() or not value.strip() or number in rows:
            raise EaseError(f"'{path}' line {at} is not a new '<number> <value>' line: use the official file")
        rows[number] = value.strip()
    return rows
