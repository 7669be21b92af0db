"""The daily loop of the stand-in for `ease serve`: inbox, explanations, label audit, history and activity."""

from __future__ import annotations

import hashlib
import math
from typing import Any


class Refused(Exception):  # noqa: N818
    """An error answer: status and sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


def folded(name: str) -> str:
    """What is left of a name without case and spaces."""
    return "".join(name.lower().split())


class Daily:
    """Answers of the daily loop, with the levers tests pull.

    Attributes:
        optional: Whether there are routes for the daily loop at all; an older server answers 404.
        collecting: Whether the inbox is on.
        findings: What the label audit answers.
        days: What the activity answers.
        drift: Sentences of the activity.
    """

    classes: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    generation: int

    def __init__(self) -> None:
        self.optional = True
        self.collecting = True
        self.photos: list[dict[str, Any]] = []
        self.pictures: dict[str, tuple[bytes, str]] = {}
        self.groups: list[dict[str, Any]] = []
        self.learned: dict[str, str] = {}
        self.looked: list[bool] = []
        self.findings: list[dict[str, Any]] = []
        self.days: list[dict[str, Any]] = []
        self.drift: list[str] = []
        self.past: list[dict[str, Any]] = []
        self._next = 1

    @property
    def names(self) -> list[str]:
        """Names of the known classes."""
        return [entry["name"] for entry in self.classes]

    def wait(self, content: bytes, *, state: str = "unsure", name: str | None = None) -> dict[str, Any]:
        """Put a photo into the inbox."""
        number = f"p{self._next:04d}"
        self._next += 1
        start = sum(content) % max(1, len(self.classes))
        order = (self.names[start:] + self.names[:start])[:3]
        self.pictures[number] = (content, "image/png" if content.startswith(b"\x89PNG") else "image/jpeg")
        photo = {
            "id": number,
            "date": "2026-11-17T08:05:00+00:00",
            "state": state,
            "name": name,
            "file": f"{number}.png",
            "image": f"inbox/{number}/image",
            "suggestions": [
                {"name": each, "confidence": share}
                for each, share in zip(order, (0.44, 0.3, 0.11), strict=False)
            ],
            "unknown": 0.41,
            "group": None,
        }
        self.photos.append(photo)
        return photo

    def photo(self, number: str) -> dict[str, Any]:
        for photo in self.photos:
            if photo["id"] == number:
                return photo
        raise Refused(404, f"there is no photo {number} in the inbox: ask /inbox for those there are")

    def inbox(self) -> dict[str, Any]:
        there = {photo["id"] for photo in self.photos}
        return {
            "on": self.collecting,
            "most_images": 500,
            "most_bytes": 200_000_000,
            "bytes": sum(len(self.pictures[number][0]) for number in there),
            "per_day": 20,
            "today": len(self.photos),
            "photos": self.photos if self.collecting else [],
            "groups": [group for group in self.groups if there.issuperset(group["photos"])],
        }

    def feedback(self, content: bytes, name: str, confirm: bool) -> dict[str, Any]:
        """A person's word on an answer."""
        if not self.collecting:
            raise Refused(409, "the inbox is off: start the server with 'ease serve --inbox'")
        self._refuse_like(name, confirm)
        start = sum(content) % max(1, len(self.classes))
        right = bool(self.classes) and self.names[start] == name and self.told(content) is None
        self.looked.append(right)
        photo = None if right else self.wait(content, state="corrected", name=name)
        return {"id": photo and photo["id"], "name": name, "known": name in self.names, "confirmed": right}

    def name(self, number: str, name: str | None, confirm: bool) -> dict[str, Any]:
        photo = self.photo(number)
        if name is not None:
            self._refuse_like(name, confirm)
        photo.update(name=name, state="unsure" if name is None else "named")
        return photo

    def _refuse_like(self, name: str, confirm: bool) -> None:
        for other in self.names:
            if folded(other) == folded(name) and other != name and not confirm:
                raise Refused(
                    409, f"'{name}' is written almost like the class '{other}': use that, or confirm"
                )

    def discard(self, number: str) -> dict[str, Any]:
        self.photos.remove(self.photo(number))
        return {"removed": 1}

    def named_counts(self) -> dict[str, int]:
        """How many photos of each name wait to be learned."""
        counts: dict[str, int] = {}
        for photo in self.photos:
            if photo["name"]:
                counts[photo["name"]] = counts.get(photo["name"], 0) + 1
        if not counts:
            raise Refused(409, "no photo in the inbox has a name: name some first")
        return counts

    def empty(self) -> None:
        """The named photos have been learned."""
        for photo in self.photos:
            if photo["name"]:
                content = self.pictures[photo["id"]][0]
                self.learned[hashlib.sha256(content).hexdigest()] = photo["name"]
        self.photos = [photo for photo in self.photos if not photo["name"]]

    def told(self, content: bytes) -> str | None:
        """What a person said about exactly this photo."""
        for photo in self.photos:
            if self.pictures[photo["id"]][0] == content and photo["name"] in self.names:
                return str(photo["name"])
        return self.learned.get(hashlib.sha256(content).hexdigest())

    def explain(self, prediction: dict[str, Any], name: str | None) -> dict[str, Any]:
        """A blob of heat that speaks for the answer, and a corner that speaks against it."""

        def blob(row: float, column: float) -> list[list[float]]:
            return [
                [
                    round(
                        math.exp(-((r - row) ** 2 + (c - column) ** 2) / 8)
                        - 0.6 * math.exp(-((r - 12) ** 2 + (c - 2) ** 2) / 6),
                        3,
                    )
                    for c in range(14)
                ]
                for r in range(14)
            ]

        answer = name or prediction["classes"][0]["name"]
        others = [entry for entry in prediction["classes"] if entry["name"] != answer][:3]
        return {
            "generation": self.generation,
            "prediction": prediction,
            "method": "Each field says how much that part of the photo adds to the answer.",
            "rows": 14,
            "columns": 14,
            "heat": blob(5, 7),
            "nearest": [
                {
                    "name": entry["name"],
                    "score": entry["confidence"],
                    "difference": 0.1 * (at + 1),
                    "heat": blob(4 + 2 * at, 9 - 2 * at),
                }
                for at, entry in enumerate(others)
            ],
            "class_picture": False,
        }

    def check(self, files: list[str]) -> dict[str, Any]:
        """The label audit: what the test put there, as far as its files were sent."""
        sent = set(files)
        return {
            "images": len(files),
            "classes": len({file.rpartition("/")[0] for file in files}),
            "findings": [found for found in self.findings if sent.issuperset(found["files"])],
            "notes": [],
        }

    def history(self) -> dict[str, Any]:
        count, right = len(self.looked), sum(self.looked)
        return {
            "current": self.generation,
            "generations": self.past,
            "corrections": {"right": right, "count": count, "low": 46.8, "high": 91.1, "since": "2026-11-10"}
            if count
            else None,
        }

    def activity(self) -> dict[str, Any]:
        return {"days": self.days, "reference": None, "notes": self.drift}
