"""Which files of a folder are the images of which class. Nothing is decoded here.

Links to files and folders are followed, because people link their datasets. A link that leads back to a folder above
it, or to nothing, is reported.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ease.errors import EaseError, showable
from ease.filesystem import explain, explained, is_file, is_folder, resolved, shown, what_is
from ease.streams.intake.formats import IMAGE_EXTENSIONS, UNSUPPORTED_EXTENSIONS, unsupported_format
from ease.streams.intake.names import is_system_file, list_files

Unreadable = Literal["skip", "refuse"]
"""What to do with an image that cannot be used: leave it out with a note, or raise an error."""

Layout = Literal["auto", "split", "flat"]
"""How a folder is organised.

`split`: train/CLASS and test/CLASS (or val/CLASS); a folder without test/ has training images only.
`flat`: CLASS folders, whatever they are called.
`auto`: `split` if there are train/ and test/ (or val/), otherwise `flat`.
"""

Classes = dict[str, list[Path]]
"""Class name -> its image files, both in the order of their names."""

MAX_FOLDERS = 1_000_000
"""Folders that one scan enters. Links to links can multiply a few folders without forming a cycle."""

FolderId = tuple[int, int]
"""Device and inode."""


@dataclass
class FolderScan:
    """What a folder holds.

    Attributes:
        root: The folder, with links resolved.
        unreadable: What to do with a file that cannot be used.
        train: The images to train on; all images where there is no test folder.
        test: The images to test on; None where there is no test folder.
        notes: One line each for what a reader of the results should know.
        skipped: Files that cannot be used, relative to the root -> why.
        other_files: Files that are not images of a class, relative to the root.
        hidden: Hidden files and folders, relative to the root.
    """

    root: Path
    unreadable: Unreadable = "refuse"
    train: Classes = field(default_factory=dict)
    test: Classes | None = None
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    other_files: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def refuse_or_skip(self, path: Path, reason: str) -> None:
        """Raise an error for a file that cannot be used, or record it as skipped, as `unreadable` says."""
        if self.unreadable == "refuse":
            raise EaseError(f"{reason}, or skip unreadable files")
        self.skipped[self.relative_name(path)] = reason

    def skipped_notes(self) -> list[str]:
        """One line each for the files that cannot be used and for those that are not images."""
        lines = []
        if self.skipped:
            lines.append(f"skipped {list_files(list(self.skipped))}: cannot be read")
        if self.other_files:
            lines.append(f"left out {list_files(self.other_files)}: not an image of a class")
        return lines

    def relative_name(self, path: Path) -> str:
        """The name of a file in messages: its path relative to the root."""
        return showable(path.relative_to(self.root).as_posix())


def scan_folder(
    root: Path, unreadable: Unreadable = "refuse", *, layout: Layout = "auto", keep_empty: bool = False
) -> FolderScan:
    """Find the image files of every class in a folder.

    Args:
        root: The folder. Folders inside a class folder belong to that class.
        unreadable: What to do with a file that cannot be used.
        layout: How the folder is organised, see `Layout`.
        keep_empty: Keep a class folder without images instead of raising an error.

    Returns:
        The files found; none of them has been opened.

    Raises:
        EaseError: The folder does not exist or cannot be listed, or a file cannot be used.
    """
    found = what_is(root)
    if found != "folder":
        problem = "does not exist" if found == "missing" else "is a file"
        raise EaseError(
            f"folder '{shown(root)}' {problem}: give a folder that holds one folder of images per class"
        )
    scan = FolderScan(resolved(root), unreadable)
    with explained("look through", scan.root):
        search = _Search(scan, keep_empty)
        for test in ("test", "val") if layout != "flat" else ():
            # A lone `train` folder is a class: CIFAR-100 has one of that name.
            if is_folder(scan.root / "train") and is_folder(scan.root / test):
                scan.train, scan.test = search.classes("train"), search.classes(test)
                if test == "val":
                    scan.notes.append("no test/ found: val/ is used for testing")
                return scan
        scan.train = search.classes("train" if layout == "split" else ".")
    return scan


def find_images(places: Sequence[Path | str]) -> list[Path]:
    """List image files.

    Args:
        places: Files, and folders that are searched at any depth.

    Returns:
        The files given and the images found in folders, in the order of their names.

    Raises:
        EaseError: A place does not exist, a folder has no image, or a link leads to nothing or back.
    """
    found: list[Path] = []
    for place in map(Path, places):
        if what_is(place) == "folder":
            own = list(walk_images(place))
            if not own:
                raise no_image(place)
            found += own
        else:
            found.append(existing(place))
    return found


def walk_images(
    folder: Path,
    more: frozenset[str] = frozenset(),
    problem: Callable[[Path, str], None] | None = None,
) -> Iterator[Path]:
    """The images of a folder at any depth, one after the other, in the order of their paths.

    Args:
        folder: The folder.
        more: Further endings of files to list, such as those of videos.
        problem: Called with a link that leads to nothing or back, and what is wrong; without it, that is an error.

    Raises:
        EaseError: A folder cannot be listed.
    """
    wanted = IMAGE_EXTENSIONS | UNSUPPORTED_EXTENSIONS | more
    with explained("look through", folder):
        for path in _walk(folder, _FolderCount(), problem or _refuse, _ignore):
            if path.suffix.lower() in wanted:
                yield path


def existing(place: Path) -> Path:
    """A place that something lies at, or an error."""
    if what_is(place) == "missing":
        raise EaseError(f"'{shown(place)}' does not exist: check the path")
    return place


def no_image(folder: Path) -> EaseError:
    """The error for a folder in which there is nothing to look at."""
    return EaseError(f"folder '{folder}' has no image in it: give one that has, or the images themselves")


class _Search:
    """Fills a scan with the classes below its root."""

    def __init__(self, scan: FolderScan, keep_empty: bool) -> None:
        self._scan, self._keep_empty = scan, keep_empty
        self._folders = _FolderCount()

    def classes(self, part: str) -> Classes:
        """The classes in the root (part `.`), in train/ or in test/."""
        folder = self._scan.root / part
        above = frozenset({_folder_id(self._scan.root), _folder_id(folder)})
        classes: Classes = {}
        for entry in _entries(folder):
            path = folder / entry.name
            if is_system_file(entry.name):
                self._hide(path)
            elif (kind := _kind(entry)) == "file":
                self._scan.other_files.append(self._scan.relative_name(path))
            elif kind == "dangling":
                self._scan.refuse_or_skip(path, _dangling(path))
            elif _folder_id(path) in above:
                self._scan.refuse_or_skip(path, _cycle(path))
            elif _is_of_model(path):
                self._scan.other_files.append(self._scan.relative_name(path))
            else:
                classes[entry.name] = self._images(path, above)
        return classes

    def _images(self, folder: Path, above: frozenset[FolderId]) -> list[Path]:
        scan, skipped = self._scan, len(self._scan.skipped)
        found: list[Path] = []
        for path in _walk(folder, self._folders, scan.refuse_or_skip, self._hide, above):
            if path.suffix.lower() in UNSUPPORTED_EXTENSIONS:
                scan.refuse_or_skip(path, str(unsupported_format(str(path))))
            elif path.suffix.lower() not in IMAGE_EXTENSIONS:
                scan.other_files.append(scan.relative_name(path))
            else:
                found.append(path)
        if not found and len(scan.skipped) == skipped and not self._keep_empty:
            raise EaseError(f"class folder '{folder}' has no image in it: add some or remove the folder")
        return sorted(found)

    def _hide(self, path: Path) -> None:
        self._scan.hidden.append(self._scan.relative_name(path))


class _FolderCount:
    """Counts the folders that a scan enters."""

    def __init__(self) -> None:
        self._count = 0

    def enter(self, folder: Path) -> None:
        """Raise an error if too many folders have been entered."""
        self._count += 1
        if self._count > MAX_FOLDERS:
            raise EaseError(
                f"'{folder}' is one of more than {MAX_FOLDERS:,} folders: check whether links repeat some of them"
            )


def _walk(
    folder: Path,
    folders: _FolderCount,
    problem: Callable[[Path, str], None],
    hide: Callable[[Path], None],
    above: frozenset[FolderId] = frozenset(),
) -> Iterator[Path]:
    """The files of a folder at any depth, in the order of their paths. No more than one folder's names are held
    for each level.

    Args:
        folder: Where to begin.
        folders: Counts the folders.
        problem: Called with a link that cannot be followed, and why.
        hide: Called with hidden files and folders, which are left out.
        above: Ids of the folders that contain it, as it was reached.
    """
    own = _enter(folder, folders)
    if own in above:
        problem(folder, _cycle(folder))
        return
    # One iterator for each folder on the way down, so that files come in the order of their paths.
    levels = [(folder, above | {own}, iter(_entries(folder)))]
    while levels:
        here, above, rest = levels[-1]
        entry = next(rest, None)
        if entry is None:
            levels.pop()
            continue
        path = here / entry.name
        if is_system_file(entry.name):
            hide(path)
        elif (kind := _kind(entry)) == "file":
            yield path
        elif kind == "dangling":
            problem(path, _dangling(path))
        elif (own := _enter(path, folders)) in above:
            problem(path, _cycle(path))
        else:
            levels.append((path, above | {own}, iter(_entries(path))))


def _enter(folder: Path, folders: _FolderCount) -> FolderId:
    folders.enter(folder)
    return _folder_id(folder)


def _folder_id(folder: Path) -> FolderId:
    """What identifies a folder, whatever path leads to it."""
    facts = os.stat(folder)
    return facts.st_dev, facts.st_ino


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The content of a folder by name. One that cannot be listed is an error: its images must not be missed."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise explain("list the folder", folder, error) from error


def _kind(entry: os.DirEntry[str]) -> Literal["file", "folder", "dangling"]:
    if not entry.is_symlink():
        return "folder" if entry.is_dir() else "file"
    try:
        os.stat(entry.path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return "dangling"
        raise explain("follow the link", entry.path, error) from error
    return "folder" if entry.is_dir() else "file"


def _is_of_model(folder: Path) -> bool:
    """Whether a folder is a model directory, or the photos or jobs kept beside one: people learn where they are."""
    model = folder.with_suffix("") if folder.suffix in (".inbox", ".jobs") else folder
    return is_file(model / "manifest.json") and is_folder(model / "manifests")


def _cycle(folder: Path) -> str:
    return f"folder '{folder}' is a link to '{os.path.realpath(folder)}', which contains it: remove the link"


def _dangling(path: Path) -> str:
    return f"link '{path}' leads to '{os.readlink(path)}', which does not exist: repair or remove the link"


def _refuse(path: Path, reason: str) -> None:
    raise EaseError(reason)


def _ignore(path: Path) -> None:
    pass
