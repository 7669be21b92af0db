"""What every source gives: images by class, before they are decoded and checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


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
