"""An audit as files: one HTML page with pictures, and JSON."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined

from ease.app.audit import Audit, Finding
from ease.storage.contents import encode_json
from ease.storage.files import write_all
from ease.streams.images import jpeg_thumbnail
from ease.streams.intake import LabelledImages

PARTS = {
    "like-other": (
        "Photos that look like another class",
        "The surest first. Beside each are photos of both classes.",
    ),
    "unlike": (
        "Photos that look like no class",
        "They are unlike the other photos of their class, and like no other class either.",
    ),
    "same-classes": (
        "Classes that look the same",
        "The same thing under two names, or a difference that this model does not see.",
    ),
    "duplicate": (
        "Photos that show the same picture",
        "Copies that were scaled, compressed again or made brighter; exact copies as well.",
    ),
}
MOST_SHOWN = 100
"""Findings of each kind that the page shows; the JSON file has all of them."""
EXAMPLES = 3
"""Photos of a class that are shown for comparison."""


@dataclass(frozen=True)
class _Row:
    """A finding as the page shows it."""

    kind: str
    sentence: str
    sure: float


def write_audit(audit: Audit, photos: LabelledImages, out: Path) -> list[Path]:
    """Write an HTML page with pictures, and everything as JSON; returns the paths.

    Args:
        audit: What was found.
        photos: The photos that it was found in.
        out: A folder; it is made if it does not exist.
    """
    contents = {
        "audit.html": _page(audit, photos).encode(),
        "audit.json": encode_json(audit.document()),
    }
    return write_all(out, contents)


def _page(audit: Audit, photos: LabelledImages) -> str:
    source = (files("ease.app") / "audit.html").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    pictures = _Pictures(audit, photos)
    parts = []
    for kind, (heading, about) in PARTS.items():
        found = [finding for finding in audit.findings if finding.kind == kind]
        rows = [(_row(f), pictures.of(f) if at < MOST_SHOWN else []) for at, f in enumerate(found)]
        if rows:
            parts.append((heading, about, rows))
    number = len(audit.findings)
    title = "No label stands out" if not number else f"{number} thing{'s' * (number > 1)} to look at"
    style = (files("ease.app") / "report.css").read_text(encoding="utf-8")
    return template.from_string(source).render(
        a=audit, title=title, parts=parts, most=MOST_SHOWN, style=style
    )


def _row(finding: Finding) -> _Row:
    within = finding.kind == "duplicate" and finding.other is None
    return _Row(finding.kind, finding.sentence, finding.score * (2 if within else 1))


class _Pictures:
    """Small pictures of the photos as data URIs, so that the page is a single file."""

    def __init__(self, audit: Audit, photos: LabelledImages) -> None:
        self._photos = photos
        names = getattr(photos.images.source, "names", ())
        self._at = {str(names[int(i)]): at for at, i in enumerate(photos.images.indices)} if names else {}
        self._named = {file for finding in audit.findings for file in finding.files}
        self._examples: dict[str, list[str]] = {}

    def of(self, finding: Finding) -> list[tuple[str, list[tuple[str, str]], bool]]:
        """Groups of pictures for a finding: caption, pictures with their texts, and whether they are asked about."""
        if finding.kind == "same-classes":
            both = [name for name in (finding.label, finding.other) if name]
            return [(f"'{name}'", self._shown(self._of_class(name)), False) for name in both]
        groups = [(", ".join(finding.files[:4]), self._shown(list(finding.files[:8])), True)]
        if finding.kind == "duplicate":
            return groups
        for name in (finding.label, finding.other):
            if name and (some := self._of_class(name)):
                groups.append((f"'{name}'", self._shown(some), False))
        return groups

    def _of_class(self, name: str) -> list[str]:
        """Some photos of a class that no finding names, if there are any."""
        if name not in self._photos.names:
            return []
        if name not in self._examples:
            label = self._photos.names.index(name)
            own = {int(at) for at in np.flatnonzero(self._photos.images.labels == label)}
            files = [file for file, at in self._at.items() if at in own]
            self._examples[name] = sorted(files, key=lambda file: file in self._named)[:EXAMPLES]
        return self._examples[name]

    def _shown(self, names: list[str]) -> list[tuple[str, str]]:
        return [(self._uri(self._at[name]), name) for name in names if name in self._at]

    def _uri(self, at: int) -> str:
        picture = jpeg_thumbnail(self._photos.images.image(at))
        return f"data:image/jpeg;base64,{base64.b64encode(picture).decode()}"
