"""Which files of a folder are the images of which class; nothing is decoded here."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from ease.errors import EaseError, showable
from ease.filesystem import (
    entries,
    explain,
    explained,
    is_folder,
    is_inside,
    resolved,
    shown,
    what_is,
)
from ease.streams.datasets.registry import Unreadable
from ease.streams.intake.decode import EXTENSIONS, FOREIGN, foreign

Classes = dict[str, list[Path]]
"""Class name -> its image files, both in the order of their names."""


@dataclass
class FolderScan:
    """What a folder holds, and what is to be said about it.

    Attributes:
        root: the folder, links resolved.
        unreadable: what to do with a file that cannot be used.
        split: only train/CLASS and test/CLASS count; without it, CLASS folders do too.
        keep_empty: a class folder without images is kept, to be reported, instead of refused.
        flat: every folder is a class, whatever it is called.
        train: the images to train on; all images where there is no test folder.
        test: the images to test on; None where the folder leaves the choice to us.
        notes: what a reader of the results should know.
        skipped: files that cannot be used, relative to the root -> why.
        others: files that are no images, relative to the root.
        hidden: files and folders that were not looked at, relative to the root.
    """

    root: Path
    unreadable: Unreadable = "refuse"
    split: bool = False
    keep_empty: bool = False
    flat: bool = False
    train: Classes = field(default_factory=dict)
    test: Classes | None = None
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)

    def refuse_or_skip(self, path: Path, line: str) -> None:
        """A file that cannot be used: an error, or a note where the user asked for that."""
        if self.unreadable == "refuse":
            raise EaseError(f"{line}, or skip unreadable files")
        self.skipped[self.short(path)] = line

    def left_out(self) -> list[str]:
        """One line each for the files that cannot be used and those that are no images."""
        lines = []
        if self.skipped:
            lines.append(f"skipped {some_of(list(self.skipped))}: cannot be read")
        if self.others:
            lines.append(f"left out {some_of(self.others)}: no image of a class")
        return lines

    def look(self) -> None:
        """Find the classes. A lone `train` folder is a class: CIFAR-100 has one of that name."""
        for beside in () if self.flat else ("test", "val"):
            if is_folder(self.root / "train") and is_folder(self.root / beside):
                self.train, self.test = self._classes(self.root / "train"), self._classes(self.root / beside)
                if beside == "val":
                    self.notes.append("no test/ found: val/ is used for testing")
                return
        self.train = self._classes(self.root / "train" if self.split else self.root)

    def _classes(self, folder: Path) -> Classes:
        classes: Classes = {}
        for entry in entries(folder):
            if self._is_hidden(entry):
                continue
            if not entry.is_dir():
                self.others.append(self.short(entry))
            elif not self._is_linked(entry):
                classes[entry.name] = self._images(entry)
        return classes

    def _images(self, folder: Path) -> list[Path]:
        found: list[Path] = []
        already = len(self.skipped)
        for here, folders, files in os.walk(folder, onerror=_give_up):
            folders[:] = sorted(f for f in folders if self._is_entered(Path(here) / f))
            for path in (Path(here) / file for file in sorted(files)):
                if self._is_hidden(path):
                    continue
                if path.suffix.lower() in FOREIGN:
                    self.refuse_or_skip(path, str(foreign(str(path))))
                elif path.suffix.lower() not in EXTENSIONS:
                    self.others.append(self.short(path))
                elif path.is_symlink() and not is_inside(path, self.root):
                    line = f"image '{path}' is a link that leads out of '{self.root}': put a copy there"
                    self.refuse_or_skip(path, line)
                else:
                    found.append(path)
        if not found and len(self.skipped) == already and not self.keep_empty:
            raise EaseError(f"class folder '{folder}' has no image in it: add some or remove the folder")
        return sorted(found)

    def _is_entered(self, folder: Path) -> bool:
        return not self._is_hidden(folder) and not self._is_linked(folder)

    def _is_hidden(self, path: Path) -> bool:
        """What systems and programs leave behind is nobody's photo."""
        if not (path.name.startswith(".") or path.name == "__MACOSX"):
            return False
        self.hidden.append(self.short(path))
        return True

    def _is_linked(self, folder: Path) -> bool:
        """Links to folders may lead out of the root or in circles, so none is followed."""
        if not folder.is_symlink():
            return False
        self.refuse_or_skip(folder, f"'{folder}' is a link to a folder: put the folder itself there")
        return True

    def short(self, path: Path) -> str:
        """A file as messages name it."""
        return showable(path.relative_to(self.root).as_posix())


def scan_folder(
    root: Path,
    unreadable: Unreadable = "refuse",
    *,
    split: bool = False,
    keep_empty: bool = False,
    flat: bool = False,
) -> FolderScan:
    """Look through `train/CLASS/**` and `test/CLASS/**` (or `val/`), or `CLASS/**`; see `FolderScan`."""
    found = what_is(root)
    if found != "folder":
        what = "does not exist" if found == "missing" else "is a file"
        raise EaseError(
            f"folder '{shown(root)}' {what}: give a folder that holds one folder of images per class"
        )
    scan = FolderScan(resolved(root), unreadable, split, keep_empty, flat)
    with explained("look through", scan.root):
        scan.look()
    return scan


def find_files(folder: Path, endings: Collection[str]) -> list[Path]:
    """Files with these endings in a folder at any depth, in the order of their names; hidden ones are left out.

    A folder that cannot be listed, or is a link, is refused: its images must not be missed unseen.
    """
    found: list[Path] = []
    for here, folders, files in os.walk(folder, onerror=_give_up):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for inner in (Path(here) / name for name in folders):
            if inner.is_symlink():
                raise EaseError(f"'{inner}' is a link to a folder: give the folder itself too")
        found += [
            Path(here) / name
            for name in files
            if not name.startswith(".") and os.path.splitext(name)[1].lower() in endings
        ]
    return sorted(found)


def _give_up(error: OSError) -> None:
    """A folder that cannot be listed must not vanish unseen."""
    raise explain("list the folder", error.filename, error) from error


def some_of(names: list[str], most: int = 5) -> str:
    """A list for one line: how many, and the first few."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} files ({', '.join(names[:most])}{more})" if len(names) > 1 else names[0]
