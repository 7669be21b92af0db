"""Whether what a model is asked has changed since it learned: sums over two windows of answers, and their comparison.

The reference window is what came first after the model learned; the recent one is what came last. Three kinds of
figures are compared: the share of unknown photos, the mean confidence, and the share of each class.

The test. The difference of two shares or means is divided by its standard error, which gives a z. Photos of one
request are often of one thing, so the standard error is computed from the sums of whole requests (as for a sample
of clusters); with one photo per request and windows of equal size it is the usual one of two proportions. The model
is asked again and again, and several figures are looked at each time: the level of 5 % is divided by their number and
by `LOOKS` looks (Bonferroni). Besides, a difference must be large enough to matter (`LEAST_CHANGE`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

Kind = Literal["unknown", "confidence", "class"]

BLOCK_IMAGES, BLOCK_REQUESTS = 50, 10
"""A block is complete once it has so many photos from so many requests."""
BLOCKS = 4
"""Blocks of a window: at least 200 photos from 40 requests."""
LEVEL, LOOKS = 0.05, 100
"""The chance of a false alarm in so many looks, if no photo depends on another one."""
LEAST_CHANGE: dict[Kind, float] = {"unknown": 0.1, "confidence": 0.1, "class": 0.15}
"""A smaller change is no news, however certain it is."""

Sum = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]


class RequestSums(NamedTuple):
    """Sums over requests of some quantity x, where a request has n photos."""

    total: Sum = 0.0
    squares: Sum = 0.0
    """Of x * x."""
    cross: Sum = 0.0
    """Of x * n."""

    def plus(self, x: float, n: int) -> RequestSums:
        """With one more request."""
        return RequestSums(self.total + x, self.squares + x * x, self.cross + x * n)

    def joined(self, other: RequestSums) -> RequestSums:
        """With the requests of another one."""
        return RequestSums(self.total + other.total, self.squares + other.squares, self.cross + other.cross)


class AnswerSummary(NamedTuple):
    """What one request was answered: sums over its photos."""

    images: int
    judged: int
    """Photos whose answer says how unknown they are: all, or none if the model is not calibrated."""
    unknown: int
    confidence: float
    classes: dict[int, int]
    """Class id -> number of photos taken for it; unknown ones are not counted."""


class Window(BaseModel):
    """Sums over consecutive requests; it contains no photo and no name.

    Example:
        >>> from ease.app.drift import AnswerSummary, Window
        >>> window = Window()
        >>> window.add(AnswerSummary(2, 2, 1, 1.5, {7: 1}), "2026-11-17")
        >>> window.images, window.share("unknown"), window.share("confidence"), window.share("class", 7)
        (2, 0.5, 0.75, 0.5)
    """

    model_config = ConfigDict(extra="forbid")

    images: int = Field(0, ge=0, le=10**12)
    requests: int = Field(0, ge=0, le=10**12)
    squares: Sum = 0.0
    judged: int = Field(0, ge=0, le=10**12)
    unknown: RequestSums = RequestSums()
    confidence: RequestSums = RequestSums()
    classes: dict[int, RequestSums] = Field(default_factory=dict, max_length=100_000)
    first: str = Field("", max_length=10)
    last: str = Field("", max_length=10)

    def add(self, answer: AnswerSummary, date: str) -> None:
        """Add a request, answered on this date."""
        n = answer.images
        self.images, self.requests, self.squares = self.images + n, self.requests + 1, self.squares + n * n
        self.judged += answer.judged
        self.unknown = self.unknown.plus(answer.unknown, n)
        self.confidence = self.confidence.plus(answer.confidence, n)
        for each, count in answer.classes.items():
            self.classes[each] = self.classes.get(each, RequestSums()).plus(count, n)
        self.first, self.last = self.first or date, date

    def tally(self, kind: Kind, each: int | None = None) -> RequestSums:
        """The sums of one kind of figure; of one class for `class`."""
        if kind == "class":
            return self.classes.get(-1 if each is None else each, RequestSums())
        return self.unknown if kind == "unknown" else self.confidence

    def share(self, kind: Kind, each: int | None = None) -> float:
        """A share or a mean over its photos, of which there is at least one."""
        return self.tally(kind, each).total / self.images

    def variance(self, kind: Kind, each: int | None, mean: float) -> float:
        """The squared standard error of `share`, around a mean."""
        t = self.tally(kind, each)
        return max(0.0, t.squares - 2 * mean * t.cross + mean * mean * self.squares) / self.images**2

    def snapshot(self) -> Window:
        """A copy that later requests do not change."""
        return self.model_copy(update={"classes": dict(self.classes)})

    @property
    def is_block(self) -> bool:
        """Whether it has the photos of a block."""
        return self.images >= BLOCK_IMAGES and self.requests >= BLOCK_REQUESTS

    @property
    def is_whole(self) -> bool:
        """Whether it has the photos of a window."""
        return self.images >= BLOCKS * BLOCK_IMAGES and self.requests >= BLOCKS * BLOCK_REQUESTS


def joined(windows: Iterable[Window]) -> Window:
    """All of these, which follow each other, as one."""
    found = Window()
    for one in windows:
        found.images, found.requests = found.images + one.images, found.requests + one.requests
        found.squares, found.judged = found.squares + one.squares, found.judged + one.judged
        found.unknown = found.unknown.joined(one.unknown)
        found.confidence = found.confidence.joined(one.confidence)
        for each, tally in one.classes.items():
            found.classes[each] = found.classes.get(each, RequestSums()).joined(tally)
        found.first, found.last = found.first or one.first, one.last or found.last
    return found


@dataclass(frozen=True)
class Change:
    """A figure that has left its range."""

    kind: Kind
    each: int | None
    """Id of the class, for shares of classes."""
    before: float
    now: float

    @property
    def key(self) -> str:
        """A name for it that stays the same while it lasts."""
        way = "up" if self.now > self.before else "down"
        return f"{self.kind}{'' if self.each is None else f' {self.each}'} {way}"


def changes(reference: Window, recent: Window) -> list[Change]:
    """The figures in which two windows differ by more than chance and by enough to matter, the largest first.

    Example:
        >>> from ease.app.drift import AnswerSummary, Window, changes
        >>> before, now = Window(), Window()
        >>> for i in range(200):
        ...     before.add(AnswerSummary(1, 1, int(i % 20 == 0), 0.9, {}), "2026-11-03")
        ...     now.add(AnswerSummary(1, 1, int(i % 3 == 0), 0.9, {}), "2026-11-17")
        >>> [(one.kind, one.before, one.now) for one in changes(before, now)]
        [('unknown', 0.05, 0.335)]
    """
    if not (reference.is_whole and recent.is_whole):
        return []
    figures = list(_figures(reference, recent))
    least = NormalDist().inv_cdf(1 - LEVEL / (2 * len(figures) * LOOKS))
    found = []
    for kind, each in figures:
        one = Change(kind, each, reference.share(kind, each), recent.share(kind, each))
        if abs(one.now - one.before) >= LEAST_CHANGE[kind] and abs(z_score(reference, recent, one)) > least:
            found.append(one)
    return sorted(found, key=lambda one: -abs(one.now - one.before))


def _figures(reference: Window, recent: Window) -> Iterator[tuple[Kind, int | None]]:
    yield "confidence", None
    if reference.judged == reference.images and recent.judged == recent.images:
        yield "unknown", None
    for each in sorted(reference.classes.keys() | recent.classes.keys()):
        yield "class", each


def z_score(reference: Window, recent: Window, one: Change) -> float:
    """The difference over its standard error: around the common share, or around each mean (Welch) for confidences."""
    means = (one.before, one.now)
    if one.kind != "confidence":
        both = reference.tally(one.kind, one.each).total + recent.tally(one.kind, one.each).total
        means = (both / (reference.images + recent.images),) * 2
    variance = sum(w.variance(one.kind, one.each, m) for w, m in zip((reference, recent), means, strict=True))
    return (one.now - one.before) / math.sqrt(max(variance, 1e-12))


class DriftWatch(BaseModel):
    """The windows since the model learned, and the figures that have left their range.

    Attributes:
        learned: Identifies what the model had learned; the windows begin anew when it changes.
        reference: The first photos since.
        blocks: The last ones; the newest block may be incomplete.
        since: What has changed -> the date from which on.
    """

    model_config = ConfigDict(extra="forbid")

    learned: str = Field("", max_length=100)
    reference: Window = Field(default_factory=Window)
    blocks: list[Window] = Field(default_factory=list, max_length=BLOCKS + 1)
    since: dict[str, str] = Field(default_factory=dict, max_length=100_000)

    def add(self, answer: AnswerSummary, date: str) -> None:
        """Add a request; at the end of a block the windows are compared."""
        if not self.reference.is_whole:
            self.reference.add(answer, date)
            return
        if not self.blocks or self.blocks[-1].is_block:
            self.blocks = [*self.blocks[-BLOCKS:], Window()]
        self.blocks[-1].add(answer, date)
        if self.blocks[-1].is_block:
            self.blocks = self.blocks[-BLOCKS:]
            self._compare()

    def snapshot(self) -> DriftWatch:
        """A copy that later requests do not change."""
        blocks = [one.snapshot() for one in self.blocks]
        return self.model_copy(update={"reference": self.reference.snapshot(), "blocks": blocks})

    def _compare(self) -> None:
        recent = self.recent
        found = [] if recent is None else changes(self.reference, recent)
        self.since = {one.key: self.since.get(one.key) or self._beginning(one) for one in found}

    def _beginning(self, one: Change) -> str:
        """The date of the first of the last blocks that are nearer to the new figure than to the old one."""
        date = self.blocks[-1].first
        for block in reversed(self.blocks):
            share = block.share(one.kind, one.each)
            if abs(share - one.now) > abs(share - one.before):
                break
            date = block.first
        return date

    @property
    def recent(self) -> Window | None:
        """The last complete blocks, once there are enough of them."""
        complete = [block for block in self.blocks if block.is_block][-BLOCKS:]
        return joined(complete) if len(complete) == BLOCKS else None

    def changes(self) -> list[tuple[Change, str]]:
        """What has changed, each with the date from which on."""
        recent = self.recent
        found = [] if recent is None else changes(self.reference, recent)
        return [(one, self.since.get(one.key) or self._beginning(one)) for one in found]
