"""Files that were sent by others as a source of images: their names decide the classes, but never a path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ease.errors import EaseError
from ease.streams.intake.formats import IMAGE_EXTENSIONS
from ease.streams.intake.names import class_name, display_name, is_system_file
from ease.streams.intake.sources.candidates import Candidate, Candidates


@dataclass(frozen=True)
class NamedFile:
    """A file that was received.

    Attributes:
        name: The name that its sender gave it, such as CLASS/FILE.
        path: Where it is stored.
    """

    name: str
    path: Path

    @property
    def shown(self) -> str:
        """The name in a form that is safe in messages."""
        return display_name(self.name)


def from_uploads(files: Sequence[NamedFile], default_class: str | None = None) -> Candidates:
    """Sort received files into classes by their names.

    The class is the first folder in a name: CLASS/FILE or CLASS/FOLDER/FILE. One folder around all classes is
    ignored, and so are files that operating systems leave behind.

    Args:
        files: The files.
        default_class: The class of files whose name has no folder; such files are refused without it.

    Returns:
        The images, named as their senders named them; classes in the order in which they appear.

    Raises:
        EaseError: There is no image, or a name is not acceptable.
    """
    files = [file for file in files if not has_system_name(file.name)]
    parts = [_parts(file.name) for file in files]
    if not parts:
        raise EaseError("there is no image in the request: send parts named 'image', or a zip")
    has_outer_folder = len({own[0] for own in parts}) == 1 and all(len(own) > 2 for own in parts)
    labels: dict[str, int] = {}
    images = []
    for file, all_parts in zip(files, parts, strict=True):
        own = all_parts[has_outer_folder:]
        check_extension(file.name)
        if len(own) == 1 and default_class is None:
            raise EaseError(
                f"'{file.shown}' is in no class folder: call it CLASS/{display_name(own[0])}, "
                "or give the class as field 'name'"
            )
        name = class_name(own[0] if len(own) > 1 else default_class)
        images.append(Candidate(labels.setdefault(name, len(labels)), file.name, file.path))
    images.sort(key=lambda image: image.label)
    return Candidates(tuple(labels), images)


def move_to_class_folders(candidates: Candidates, folder: Path) -> dict[str, list[str]]:
    """Move the files of `from_uploads` to CLASS/FILE in a folder, under safe names similar to their own.

    Args:
        candidates: Images whose content is a path.
        folder: Where the class folders are made.

    Returns:
        Class name -> paths relative to `folder`, in the order of the images.
    """
    moved: dict[str, list[str]] = {}
    folders_taken: set[str] = set()
    for number, (name, images) in enumerate(candidates.by_class().items()):
        class_folder = _unused_name(_safe_name(name) or str(number), folders_taken)
        (folder / class_folder).mkdir(parents=True)
        files_taken: set[str] = set()
        for image in images:
            stem = _safe_name(Path(_parts(image.name)[-1]).stem) or "image"
            file = _unused_name(stem, files_taken, image.content.suffix)
            image.content.rename(folder / class_folder / file)
            moved.setdefault(name, []).append(f"{class_folder}/{file}")
    return moved


def has_system_name(name: str) -> bool:
    """Whether a part of a path is hidden or was left behind by an operating system."""
    parts = name.replace("\\", "/").split("/")
    return any(is_system_file(part) for part in parts if part not in (".", ".."))


def safe_suffix(name: str) -> str:
    """The ending of a file name if it is that of an image, else nothing."""
    suffix = Path(name.replace("\\", "/")).suffix.lower()
    return suffix if suffix in IMAGE_EXTENSIONS else ""


def check_extension(name: str, *, required: bool = False) -> None:
    """Raise an error if a file does not have the ending of an image.

    Args:
        name: The name that its sender gave it.
        required: Whether a name without an ending is refused; browsers call a picture of the camera `blob`.
    """
    suffix = Path(name.replace("\\", "/")).suffix.lower()
    if (suffix or required) and suffix not in IMAGE_EXTENSIONS:
        known = ", ".join(sorted(IMAGE_EXTENSIONS))
        raise EaseError(f"'{display_name(name)}' is not an image ({known}): leave it out")


def _parts(name: str) -> list[str]:
    parts = [part for part in name.replace("\\", "/").split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise EaseError(f"'{display_name(name)}' is not a name for an image: call it CLASS/FILE")
    return parts


def _safe_name(name: str) -> str:
    """Letters, digits and a few signs, short enough for any file system."""
    plain = re.sub(r"[^\w .()+-]", "_", name).strip(" .")
    return plain.encode()[:100].decode(errors="ignore")


def _unused_name(stem: str, taken: set[str], suffix: str = "") -> str:
    """A name that is not taken, not even in upper or lower case."""
    name, number = f"{stem}{suffix}", 1
    while name.casefold() in taken:
        number += 1
        name = f"{stem} ({number}){suffix}"
    taken.add(name.casefold())
    return name
