"""Counts that an inbox keeps beside its photos: answers that people judged, and photos collected today."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from pydantic import ConfigDict, Field, ValidationError

from ease.documents import Count, Document, Text, whole_number
from ease.errors import EaseError
from ease.filesystem import is_file
from ease.storage.contents import read_json, write_json

FILE = "counts.json"
MOST_GENERATIONS = 200
"""Generations whose judged answers are counted separately; older ones are dropped."""
MOST_DROPPED = 1000
"""Photos that were collected and discarded, which are not collected again; hashes only."""
_BYTES = 2**20


@dataclass(frozen=True)
class Outcome:
    """How answers that people judged turned out.

    Attributes:
        right: Number of answers that were confirmed.
        wrong: Number of answers that were corrected.
        since: Date and time (UTC) of the first of them; None without any.

    Example:
        >>> Outcome(right=9, wrong=3, since="2026-03-01T10:00:00+00:00").count
        12
    """

    right: int = 0
    wrong: int = 0
    since: str | None = None

    @property
    def count(self) -> int:
        """Number of answers that people judged."""
        return self.right + self.wrong


class GenerationTally(Document):
    """The judged answers of one generation."""

    right: Count = 0
    wrong: Count = 0
    since: Text


class Counts(Document):
    """The content of `counts.json`. It has no photo and no name of a class.

    Attributes:
        day: The UTC day that `collected` is about.
        collected: Number of unsure photos that were collected on that day, including those discarded since.
        generations: Number of a generation -> how its judged answers turned out.
        dropped: Hashes of photos that were collected and discarded, the newest last.
    """

    model_config = ConfigDict(extra="ignore")

    day: Text = ""
    collected: Count = 0
    generations: dict[str, GenerationTally] = Field(default_factory=dict)
    dropped: list[Text] = Field(default_factory=list)

    def collected_on(self, day: str) -> int:
        """Number of photos that were collected on a day; 0 for any day but the last one."""
        return self.collected if day == self.day else 0

    def with_collected(self, day: str) -> Counts:
        """One more photo was collected on this day."""
        return self.model_copy(update={"day": day, "collected": self.collected_on(day) + 1})

    def with_dropped(self, digests: list[str]) -> Counts:
        """These photos were discarded."""
        kept = [digest for digest in self.dropped if digest not in digests]
        return self.model_copy(update={"dropped": [*kept, *digests][-MOST_DROPPED:]})

    def with_judged(self, generation: int, right: bool, change: int = 1) -> Counts:
        """One more answer of a generation was judged, or a judgement was taken back (`change=-1`)."""
        key = str(generation)
        before = self.generations.get(key)
        if before is None:
            if change < 0:
                return self
            before = GenerationTally(since=now())
        name = "right" if right else "wrong"
        after = before.model_copy(update={name: max(0, getattr(before, name) + change)})
        others = {each: tally for each, tally in self.generations.items() if each != key}
        entries = [*others.items(), *([(key, after)] if after.right or after.wrong else [])]
        return self.model_copy(update={"generations": dict(entries[-MOST_GENERATIONS:])})

    def outcome(self, since_generation: int = 0) -> Outcome:
        """The judged answers of this generation and later ones."""
        found = [
            tally
            for key, tally in self.generations.items()
            if (number := whole_number(key)) is not None and number >= since_generation
        ]
        return Outcome(
            sum(tally.right for tally in found),
            sum(tally.wrong for tally in found),
            min((tally.since for tally in found), default=None),
        )


def read_counts(folder: Path) -> Counts:
    """The counts of an inbox. They are worth less than its photos: a damaged file counts as none."""
    try:
        return Counts.model_validate(read_json(folder / FILE, _BYTES)) if is_file(folder / FILE) else Counts()
    except (EaseError, ValidationError):
        return Counts()


def write_counts(folder: Path, counts: Counts) -> None:
    """Replace the counts of an inbox."""
    write_json(folder / FILE, counts.as_json())


def now() -> str:
    """The present date and time in UTC, to the microsecond: in the order of text."""
    return datetime.now(timezone.utc).isoformat(timespec="microseconds")


def today() -> str:
    """The present day in UTC."""
    return f"{datetime.now(timezone.utc):%Y-%m-%d}"
