"""What every source gives: images by class, before they are decoded and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ease.errors import EaseError
from ease.streams.intake.scan import Unreadable

MAX_IMAGES = 10_000_000
"""Images that one source may list."""


@dataclass(frozen=True)
class Candidate:
    """One image that a source offers.

    Attributes:
        label: The class of the image: a position in `Candidates.class_names`.
        name: What messages call the image.
        content: The image: a path, or whatever else `as_image_set` accepts.
        full_name: What errors call the image, if that is more than its name.
    """

    label: int
    name: str
    content: Any
    full_name: str = ""


@dataclass
class Candidates:
    """The images that a source offers.

    Attributes:
        class_names: The classes. Each name has been checked.
        images: The images, class by class.
        notes: One line each for what people should know, such as files that were left out.
        skipped: Images that cannot be used: name -> (label or None, reason).
    """

    class_names: tuple[str, ...]
    images: list[Candidate]
    notes: list[str] = field(default_factory=list)
    skipped: dict[str, tuple[int | None, str]] = field(default_factory=dict)

    def by_class(self) -> dict[str, list[Candidate]]:
        """Class name -> its images."""
        classes: dict[str, list[Candidate]] = {name: [] for name in self.class_names}
        for image in self.images:
            classes[self.class_names[image.label]].append(image)
        return classes


class Gathered:
    """Images with the names of their classes, found one after the other; `candidates` puts them in order.

    Args:
        unreadable: `refuse` raises the error of an image that cannot be used; `skip` leaves it out with a note.
    """

    def __init__(self, unreadable: Unreadable = "refuse") -> None:
        self._unreadable = unreadable
        self._images: dict[str, list[tuple[str, Any, str]]] = {}
        self._skipped: dict[str, tuple[int | None, str]] = {}
        self._count = 0
        self.notes: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._images or self._skipped)

    def add(self, label: str, name: str, content: Any, full_name: str = "") -> None:
        """Add an image.

        Args:
            label: The name of its class, which has been checked.
            name: What messages call the image.
            content: The image, see `Candidate`.
            full_name: What errors call it.
        """
        self._count += 1
        if self._count > MAX_IMAGES:
            raise EaseError(f"there are more than {MAX_IMAGES:,} images: learn them in parts")
        self._images.setdefault(label, []).append((name, content, full_name))

    def leave_out(self, name: str, reason: str) -> None:
        """Leave out an image, or raise an error, as `unreadable` says."""
        if self._unreadable == "refuse":
            raise EaseError(f"{reason}, or skip unreadable files")
        self._skipped[name] = (None, reason)

    def candidates(self) -> Candidates:
        """All images, class by class, with the classes in the order of their names."""
        names = tuple(sorted(self._images))
        images = [Candidate(label, *own) for label, name in enumerate(names) for own in self._images[name]]
        return Candidates(names, images, self.notes, self._skipped)
