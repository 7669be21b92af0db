"""A folder on this machine as a source of images."""

from __future__ import annotations

from pathlib import Path

from ease.errors import EaseError
from ease.filesystem import expanded
from ease.streams.intake.names import class_names, list_files
from ease.streams.intake.scan import Unreadable, scan_folder
from ease.streams.intake.sources.candidates import Candidate, Candidates

_PARTS = {"train", "test", "val", "valid", "validation"}
"""Folders of a dataset that is split into parts; they are not classes."""


def from_folder(root: Path, unreadable: Unreadable = "refuse") -> Candidates:
    """List the images of a folder with one folder of images per class.

    Args:
        root: The folder. Folders inside a class folder belong to that class, and links are followed.
        unreadable: What to do with files that cannot be used.

    Returns:
        The images; classes in the order of their names.
    """
    scan = scan_folder(expanded(root), unreadable, layout="flat")
    if not scan.train:
        loose = f" but {len(scan.other_files)} loose files" if scan.other_files else ""
        raise EaseError(
            f"folder '{scan.root}' has no class folder{loose}: make one folder of images per class"
        )
    depths = {len(path.relative_to(scan.root).parts) for paths in scan.train.values() for path in paths}
    if "train" in scan.train and len(scan.train) > 1 and set(scan.train) <= _PARTS and 2 not in depths:
        raise EaseError(f"folder '{scan.root}' holds {', '.join(scan.train)}: give '{scan.root / 'train'}'")
    folders = dict(sorted(zip(class_names(scan.train), scan.train.items(), strict=True)))
    images = [
        Candidate(label, scan.relative_name(path), path, str(path))
        for label, (_, paths) in enumerate(folders.values())
        for path in paths
    ]
    label_of = {folder: label for label, (folder, _) in enumerate(folders.values())}
    skipped = {name: (label_of.get(name.split("/")[0]), reason) for name, reason in scan.skipped.items()}
    notes = [f"left out {list_files(scan.other_files)}: not an image of a class"] if scan.other_files else []
    notes += [f"left out {list_files(scan.hidden)}: hidden"] if scan.hidden else []
    return Candidates(tuple(folders), images, notes, skipped)
