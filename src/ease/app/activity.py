"""What a model was asked day by day: counts of answers, kept beside the model, without photos and without names."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import date as Date
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ease.app.drift import AnswerSummary, Change, DriftWatch, Sum, Window
from ease.app.prediction import Prediction
from ease.errors import EaseError
from ease.filesystem import is_file
from ease.storage.contents import read_json, write_json
from ease.storage.manifest import Manifest

DAYS = 90
"""Days that are remembered."""
CLASSES_COUNTED = 1000
"""Classes of a day that have a count of their own; the others share one."""
CLASSES_SHOWN = 100
PERIOD = 30.0
"""Seconds between two writes: a killed server loses at most the counts of so many."""
FILE_BYTES = 64 * 2**20

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)


class DayCounts(BaseModel):
    """Sums over the answers of one day; classes by id, so that no name outlives its class."""

    model_config = ConfigDict(extra="forbid")

    images: int = Field(0, ge=0, le=10**12)
    judged: int = Field(0, ge=0, le=10**12)
    unknown: int = Field(0, ge=0, le=10**12)
    confidence: Sum = 0.0
    classes: dict[int, int] = Field(default_factory=dict, max_length=CLASSES_COUNTED)

    def add(self, answer: AnswerSummary) -> None:
        """Add a request."""
        self.images += answer.images
        self.judged += answer.judged
        self.unknown += answer.unknown
        self.confidence += answer.confidence
        for each, count in answer.classes.items():
            if each in self.classes or len(self.classes) < CLASSES_COUNTED:
                self.classes[each] = self.classes.get(each, 0) + count


class StoredActivity(BaseModel):
    """The file beside the model."""

    model_config = ConfigDict(extra="forbid")

    version: Literal[1] = 1
    days: dict[Date, DayCounts] = Field(default_factory=dict, max_length=DAYS)
    watch: DriftWatch = Field(default_factory=DriftWatch)


class ActivityOfDay(BaseModel):
    """The answers of one day."""

    date: str
    images: int
    unknown: float | None = Field(
        description="share of photos that look like no class; null if the model was not calibrated"
    )
    confidence: float = Field(description="mean confidence in the most likely class")
    classes: dict[str, float] = Field(
        description=f"share of photos taken for each class, the {CLASSES_SHOWN} most frequent ones"
    )
    others: float = Field(
        description="share of photos taken for other classes, or for classes since forgotten"
    )


class ActivityWindow(BaseModel):
    """The answers of a number of photos in succession."""

    first: str = Field(description="date of the first one")
    last: str = Field(description="date of the last one")
    images: int
    whole: bool = Field(description="whether it has enough photos to be compared")
    unknown: float | None
    confidence: float
    classes: dict[str, float]


class ActivityReport(BaseModel):
    """What the model was asked, and what has changed since it learned."""

    days: list[ActivityOfDay] = Field(description=f"the last {DAYS} days (UTC) with photos, the oldest first")
    reference: ActivityWindow | None = Field(description="the first photos since the model learned")
    recent: ActivityWindow | None = Field(description="the last photos, once there are enough of them")
    notes: list[str] = Field(description="what has left its range since the model learned")


class Activity:
    """Counts what a served model answers.

    `add` only adds numbers under a lock; a thread writes the file. If it cannot be written, counting goes on and the
    next attempt may succeed.

    Args:
        path: The file; it is not trusted, and begun anew if it is damaged.
        say: Called with one line if the file cannot be read or written.
        clock: The present time, in UTC.

    Example:
        >>> from datetime import datetime, timezone
        >>> from ease import Prediction
        >>> from ease.app.activity import Activity, summary
        >>> found = Prediction(classes=[{"name": "cat", "confidence": 0.9}], unknown=0.2, calibrated=True)
        >>> summary([found, found], {"cat": 7})
        AnswerSummary(images=2, judged=2, unknown=0, confidence=1.8, classes={7: 2})
    """

    def __init__(
        self,
        path: Path,
        say: Callable[[str], None] = lambda line: None,
        clock: Callable[[], datetime] = lambda: datetime.now(timezone.utc),
    ) -> None:
        self._path, self._say, self._clock = path, say, clock
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._stored = self._read()
        self._dirty, self._complained = False, False
        self._names: tuple[str, dict[str, int]] = ("", {})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write_often, name="activity", daemon=True)
        self.since_start = DayCounts()
        """Counts of this process, for the metrics."""

    def start(self) -> None:
        """Begin to write the file now and then."""
        self._thread.start()

    def stop(self) -> None:
        """Write what is not written yet, then end."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()
        self.write()

    # --- counting ---------------------------------------------------------------------------------

    def add(self, predictions: Sequence[Prediction], by: Manifest, current: Manifest) -> None:
        """Count the answers of one request.

        Args:
            predictions: The answers.
            by: The generation that gave them.
            current: The generation that answers now; answers of another one do not count for what changed since.
        """
        if not predictions:
            return
        today = self._clock().date()
        learned = learning_of(current)
        with self._lock:
            if self._names[0] != by.checksum:
                self._names = (by.checksum, {entry.name: entry.id for entry in by.classes})
            answer = summary(predictions, self._names[1])
            days = self._stored.days
            days.setdefault(today, DayCounts()).add(answer)
            for old in sorted(days)[: max(0, len(days) - DAYS)]:
                del days[old]
            self.since_start.add(answer)
            if self._stored.watch.learned != learned:
                self._stored.watch = DriftWatch(learned=learned)
            if by is current or learning_of(by) == learned:
                self._stored.watch.add(answer, today.isoformat())
            self._dirty = True

    # --- reporting --------------------------------------------------------------------------------

    def report(self, manifest: Manifest) -> ActivityReport:
        """What was counted, with the present names of the classes."""
        names = {entry.id: entry.name for entry in manifest.classes}
        stored = self._snapshot()
        days, watch = stored.days, stored.watch
        if watch.learned != learning_of(manifest):
            watch = DriftWatch()
        notes = [_note(change, since, watch, names) for change, since in watch.changes()]
        return ActivityReport(
            days=[_day(day, days[day], names) for day in sorted(days)],
            reference=_window(watch.reference, names),
            recent=None if watch.recent is None else _window(watch.recent, names),
            notes=notes,
        )

    def alarms(self, manifest: Manifest) -> int:
        """Number of figures that have left their range since this generation learned."""
        with self._lock:
            watch = self._stored.watch
            return len(watch.since) if watch.learned == learning_of(manifest) else 0

    def _snapshot(self) -> StoredActivity:
        """A copy, made quickly: answers wait for the lock. Only the counts of today can still change."""
        with self._lock:
            days = dict(self._stored.days)
            for day in sorted(days)[-2:]:  # around midnight, or when the clock is set, yesterday's too
                days[day] = days[day].model_copy(update={"classes": dict(days[day].classes)})
            return StoredActivity.model_construct(days=days, watch=self._stored.watch.snapshot())

    # --- the file ---------------------------------------------------------------------------------

    def _read(self) -> StoredActivity:
        if not is_file(self._path):
            return StoredActivity()
        try:
            return StoredActivity.model_validate(read_json(self._path, FILE_BYTES))
        except (EaseError, ValidationError, ValueError) as error:
            self._say(f"the counts of earlier days in {self._path.name} cannot be read: {str(error)[:200]}")
            return StoredActivity()

    def write(self) -> None:
        """Write the file, if there is anything new; a failure is said once, and tried again later."""
        with self._writing:
            with self._lock:
                if not self._dirty:
                    return
                self._dirty = False
            try:
                write_json(self._path, self._snapshot().model_dump(mode="json"))
                self._complained = False
            except (EaseError, OSError) as error:
                self._dirty = True
                if not self._complained:
                    self._complained = True
                    self._say(f"the counts of answers cannot be written: {error}")

    def _write_often(self) -> None:
        while not self._stopped.wait(PERIOD):
            self.write()


def summary(predictions: Sequence[Prediction], ids: Mapping[str, int]) -> AnswerSummary:
    """Sums over the answers of one request; `ids` is name -> id of a class."""
    known = Counter(ids[one.name] for one in predictions if not one.is_unknown and one.name in ids)
    return AnswerSummary(
        images=len(predictions),
        judged=sum(one.unknown is not None for one in predictions),
        unknown=sum(one.is_unknown for one in predictions),
        confidence=sum(one.confidence for one in predictions),
        classes=dict(known),
    )


def learning_of(manifest: Manifest) -> str:
    """Identifies what a generation has learned: its last act of learning, and its classes by id. A name is no part."""
    last = [f"{act.generation} {act.date}" for act in manifest.history[-1:]]
    ids = sorted(entry.id for entry in manifest.classes)
    return hashlib.sha256(json.dumps([last, ids]).encode()).hexdigest()[:16]


def _shares(counts: Mapping[int, float], images: int, names: Mapping[int, str]) -> dict[str, float]:
    """Name -> share, the most frequent first."""
    kept = sorted((each for each in counts if each in names), key=lambda each: (-counts[each], each))
    return {names[each]: round(counts[each] / images, 4) for each in kept[:CLASSES_SHOWN]}


def _day(day: Date, counts: DayCounts, names: Mapping[int, str]) -> ActivityOfDay:
    images = max(1, counts.images)
    shares = _shares(counts.classes, images, names)
    rest = 1 - counts.unknown / images - sum(shares.values())
    return ActivityOfDay(
        date=day.isoformat(),
        images=counts.images,
        unknown=round(counts.unknown / counts.judged, 4) if counts.judged else None,
        confidence=round(counts.confidence / images, 4),
        classes=shares,
        others=round(max(0.0, rest), 4) if rest > 1e-3 else 0.0,
    )


def _window(window: Window, names: Mapping[int, str]) -> ActivityWindow | None:
    if not window.images:
        return None
    return ActivityWindow(
        first=window.first,
        last=window.last,
        images=window.images,
        whole=window.is_whole,
        unknown=round(window.share("unknown"), 4) if window.judged == window.images else None,
        confidence=round(window.share("confidence"), 4),
        classes=_shares({each: t.total for each, t in window.classes.items()}, window.images, names),
    )


def _note(change: Change, since: str, watch: DriftWatch, names: Mapping[int, str]) -> str:
    """A changed figure in words."""
    day = Date.fromisoformat(since)
    begin = f"Since {_WEEKDAYS[day.weekday()]}, {day.day} {_MONTHS[day.month - 1]} {day.year},"
    before = (
        f"in the first {watch.reference.images} photos after it learned it was {100 * change.before:.0f} %"
    )
    now = f"{100 * change.now:.0f} %"
    more = change.now > change.before
    if change.kind == "unknown":
        advice = " Look at some of them: perhaps there is something new to teach." if more else ""
        few = "" if more else "only "
        return f"{begin} {few}{now} of the photos look like nothing the model knows; {before}.{advice}"
    if change.kind == "confidence":
        how = "surer" if more else "less sure"
        advice = "" if more else " Perhaps the camera, the light or what the photos show has changed."
        return f"{begin} the model is {how} of its answers: its mean confidence is {now}; {before}.{advice}"
    name = names.get(-1 if change.each is None else change.each, "a class that is no longer known")
    few = "" if more else "only "
    return f"{begin} {few}{now} of the photos are taken for {name}; {before}."
