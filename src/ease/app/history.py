"""What each generation of a model did: found by comparing its manifest with the one it was made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from ease.errors import EaseError
from ease.reporting.significance import wilson
from ease.storage.manifest import HistoryEntry, Manifest
from ease.storage.model_directory import ModelDirectory

NAMES_SHOWN = 5
"""Number of names that a sentence lists; the lists beside it have all of them."""
HELD_OUT = (
    "photos of the new classes that were held out on that day: neither later photos nor the older classes"
)


class Measured(BaseModel):
    """How many answers were right, with the 95 % Wilson interval of the share.

    Example:
        >>> from ease.app.history import Measured
        >>> few = Measured.of(9, 10, "held-out photos")
        >>> few.percent, few.low, few.high
        (90.0, 59.6, 98.2)
    """

    model_config = ConfigDict(frozen=True)

    right: int = Field(description="number of right answers")
    count: int = Field(description="number of photos")
    percent: float = Field(description="share of right answers in percent")
    low: float = Field(description="lower end of the 95 % Wilson interval of the share, in percent")
    high: float = Field(description="upper end of that interval, in percent")
    about: str = Field(description="what was measured, and what was not")

    @classmethod
    def of(cls, right: int, count: int, about: str) -> Measured:
        """The figures of `right` answers out of `count`."""
        low, high = wilson(right, count)
        share = 100 * right / count
        return cls(
            right=right,
            count=count,
            percent=round(share, 1),
            low=round(low, 1),
            high=round(high, 1),
            about=about,
        )


class RenamedClass(BaseModel):
    """A class that got another name."""

    model_config = ConfigDict(frozen=True)

    old: str
    new: str


class EarlierAct(BaseModel):
    """An act of learning whose generation is not kept any more."""

    model_config = ConfigDict(frozen=True)

    generation: int
    date: str
    what: str = Field(description="what it did, in one sentence")
    classes: list[str] = Field(description="new classes, under their present names")
    extended: list[str] = Field(description="classes that were given more photos")
    measured: Measured | None = Field(description="accuracy of that day; null if no photo was held out")


class GenerationEntry(EarlierAct):
    """One generation of a model, and what it did to the one before it."""

    current: bool = Field(description="whether it is the one that answers now")
    undone: bool = Field(
        description="whether somebody went back behind it: the current one was not made from it"
    )
    base: int | None = Field(description="the generation it was made from; null if that is not kept")
    renamed: list[RenamedClass]
    forgotten: int = Field(description="number of classes that were forgotten; their names are not kept")
    total: int = Field(description="number of classes afterwards")
    bytes: int = Field(description="size of its files")


class ModelHistory(BaseModel):
    """What happened to a model.

    Attributes:
        current: Number of the generation that answers now.
        generations: Those that can be gone back to, the oldest first.
        earlier: Acts of learning before these, as far as the model still knows what they taught.
    """

    model_config = ConfigDict(frozen=True)

    current: int
    generations: list[GenerationEntry]
    earlier: list[EarlierAct]


@dataclass(frozen=True)
class _Known:
    """What is remembered of a manifest that was read."""

    version: tuple[int, int, int]
    learned: tuple[int, int, str]
    entry: GenerationEntry


class HistoryReader:
    """Reads the history of a model directory; a manifest that did not change is not read again.

    A manifest does not say which generation it was made from. It is the newest earlier one that had learned the same,
    or the same but for what this one learned: an act of learning is known by its number and date, and none is taken
    out of the list by other changes. So each manifest is compared with one other, whatever their number.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> from ease.app.history import HistoryReader
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model = Classifier.create(f"{folder}/model", input_size=16)
        ...     _ = model.learn({"dark": images[:2], "bright": images[2:]})
        ...     model.rename("dark", "night")
        ...     found = HistoryReader(f"{folder}/model").read()
        >>> [one.what for one in found.generations]
        ['Created without classes.', 'Learned dark and bright from 4 photos.', 'Renamed dark to night.']
    """

    def __init__(self, path: Path | str) -> None:
        self._directory = ModelDirectory(path)
        self._known: dict[int, _Known] = {}
        self._last: Manifest | None = None

    def read(self) -> ModelHistory:
        """The history as it is on disk now; generations whose manifest is damaged are left out."""
        current = self._directory.manifest()
        known: dict[int, _Known] = {}
        newest: dict[tuple[int, int, str], int] = {}
        for number in self._directory.generations():
            found = self._one(number, known, newest)
            if found is not None:
                known[number] = found
                newest[found.learned] = number
        self._known, self._last = known, None
        return ModelHistory(
            current=current.generation,
            generations=_marked([one.entry for one in known.values()], current.generation),
            earlier=[
                EarlierAct(
                    generation=act.generation,
                    date=act.date,
                    what=_learned(act.classes, act.extended, act.images),
                    classes=act.classes,
                    extended=act.extended,
                    measured=measured(act),
                )
                for act in current.history
                if act.generation not in known
            ],
        )

    def _one(
        self, number: int, known: dict[int, _Known], newest: dict[tuple[int, int, str], int]
    ) -> _Known | None:
        version = self._directory.version(number)
        before = self._known.get(number)
        if before is not None and before.version == version:
            return before
        manifest = self._read(number)
        if version is None or manifest is None:
            return None
        same = _acts(manifest.history)
        own = bool(manifest.history) and manifest.history[-1].generation == number
        base = newest.get(_acts(manifest.history[:-1]) if own else same)
        parent = None if base is None else self._read(base)
        self._last = manifest
        return _Known(version, same, _compared(manifest, parent, own))

    def _read(self, number: int) -> Manifest | None:
        """A manifest; the one that was read last is the base of the next one, most of the time."""
        if self._last is not None and self._last.generation == number:
            return self._last
        try:
            return self._directory.manifest(number)
        except EaseError:  # damaged, or removed meanwhile
            return None


def measured(act: HistoryEntry) -> Measured | None:
    """The accuracy of the day on which something was learned; None if no photo was held out."""
    if act.accuracy is None or act.held_out < 1:
        return None
    right = min(act.held_out, max(0, round(act.accuracy * act.held_out / 100)))
    return Measured.of(right, act.held_out, HELD_OUT)


def _acts(history: Sequence[HistoryEntry]) -> tuple[int, int, str]:
    """What identifies a list of acts of learning: their number, and the last of them."""
    return (len(history), history[-1].generation, history[-1].date) if history else (0, 0, "")


def _compared(manifest: Manifest, parent: Manifest | None, own: bool) -> GenerationEntry:
    """What a generation did, given the one that it was made from."""
    act = manifest.history[-1] if own else None
    before = {} if parent is None else {entry.id: entry.name for entry in parent.classes}
    now = {entry.id: entry.name for entry in manifest.classes}
    renamed = [
        RenamedClass(old=name, new=now[each]) for each, name in before.items() if now.get(each, name) != name
    ]
    gone = sum(each not in now for each in before)
    if act is not None:
        new, extended = list(act.classes), list(act.extended)
    else:  # the model of a run has no list of acts
        new = [name for each, name in now.items() if each not in before] if parent is not None else []
        extended = []
    return GenerationEntry(
        generation=manifest.generation,
        date=manifest.created,
        current=False,
        undone=False,
        base=None if parent is None else parent.generation,
        what=_sentence(manifest, parent, act, new, renamed, gone),
        classes=new,
        extended=extended,
        renamed=renamed,
        forgotten=gone,
        total=len(now),
        bytes=manifest.bytes,
        measured=None if act is None else measured(act),
    )


def _sentence(
    manifest: Manifest,
    parent: Manifest | None,
    act: HistoryEntry | None,
    new: list[str],
    renamed: list[RenamedClass],
    gone: int,
) -> str:
    after = ""
    if parent is not None and parent.generation != manifest.generation - 1:
        after = f" This was made from generation {parent.generation}."
    if act is not None:
        return _learned(act.classes, act.extended, act.images) + after
    if parent is None:
        return _first(manifest)
    did = []
    if new:
        did.append(f"learned {_listed(new)}")
    if renamed:
        did.append("renamed " + _listed([f"{one.old} to {one.new}" for one in renamed]))
    if gone:
        did.append(f"forgot {gone} {'class' if gone == 1 else 'classes'}")
    if not did:
        did.append(_rewritten(manifest, parent))
    text = " and ".join(did)
    return f"{text[0].upper()}{text[1:]}.{after}"


def _first(manifest: Manifest) -> str:
    """The sentence for a generation without anything to compare it with."""
    if manifest.clears_history:
        skipped = (manifest.next_id or 0) > len(manifest.classes)
        why = "a class was forgotten, or the history was to be cleared" if skipped else "as it was asked for"
        return f"Removed all earlier generations: {why}."
    if manifest.generation == 1 and not manifest.classes:
        return "Created without classes."
    return "What it did is not known: the generation before it is not kept."


def _rewritten(manifest: Manifest, parent: Manifest) -> str:
    before, after = parent.bytes, manifest.bytes
    if (parent.learner, parent.files, parent.settings) == (
        manifest.learner,
        manifest.files,
        manifest.settings,
    ):
        return "wrote the same model again"
    sizes = f"from {before / 1e6:.2f} MB to {after / 1e6:.2f} MB"
    if parent.passes_per_image != manifest.passes_per_image:
        sizes += f", from {parent.passes_per_image} to {manifest.passes_per_image} passes per photo"
    return f"compacted the model {sizes}" if after < before else f"rewrote the model {sizes}"


def _learned(new: Sequence[str], extended: Sequence[str], images: int) -> str:
    what = [_listed(new)] * bool(new) + [f"more of {_listed(extended)}"] * bool(extended)
    photos = f"{images} {'photo' if images == 1 else 'photos'}"
    return f"Learned {', and '.join(what) or 'classes that were forgotten since'} from {photos}."


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence, the first few of them."""
    if len(names) > NAMES_SHOWN:
        return f"{', '.join(names[:NAMES_SHOWN])} and {len(names) - NAMES_SHOWN} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _marked(entries: list[GenerationEntry], current: int) -> list[GenerationEntry]:
    """Say which one answers, and which ones it was not made from though they came after what it was made from."""
    bases = {entry.generation: entry.base for entry in entries}
    kept, at = set(), current
    while at in bases:
        kept.add(at)
        below = bases[at]
        if below is None or below in kept:
            break
        at = below
    first = min(kept, default=current)
    return [
        entry.model_copy(
            update={
                "current": entry.generation == current,
                "base": entry.base if entry.base in bases else None,
                "undone": entry.generation not in kept and entry.generation > first,
            }
        )
        for entry in entries
    ]
