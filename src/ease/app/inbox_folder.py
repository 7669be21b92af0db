"""The folder of an inbox: two files for each photo, one writer at a time, bounds of number and size.

`ID.photo` has the bytes as they came and `ID.json` one line of facts. A photo is there once its facts are. Classes are
noted by their ids, so that names follow when a class is renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError

from ease.app.companions import companion
from ease.app.inbox_photos import Facts, Known, class_of, of_model
from ease.app.names import plain_form
from ease.app.outcomes import read_counts, write_counts
from ease.errors import EaseError
from ease.filesystem import is_file, is_folder, resolved
from ease.storage import files as durable
from ease.storage.contents import read_json, write_json
from ease.storage.lock import BusyError, WriterLock
from ease.storage.model_directory import ModelDirectory
from ease.streams.intake.names import display_name

MOST_IMAGES = 500
"""Photos that an inbox holds at most."""
MOST_BYTES = 200_000_000
"""Bytes that its photos have at most together."""
LOCK_SECONDS = 10.0
"""How long a change waits for the change of another process; each takes milliseconds."""

_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9]{6}-[0-9a-f]{4}")
_FACTS_BYTES = 64 * 1024
_FORGETTING = "forgetting.json"


class InboxOffError(EaseError):
    """There is no inbox."""


class InboxFullError(EaseError):
    """There is no room for a correction."""


class NoPhotoError(EaseError):
    """There is no photo with this id."""


class InboxFolder:
    """The files of an inbox. Reading takes no lock; one process changes it at a time, and others wait for it.

    Args:
        model: The model directory; the inbox is the folder beside it whose name ends in `.inbox`.
        most_images: Photos that it holds at most.
        most_bytes: Bytes that its photos have at most together.
    """

    def __init__(
        self, model: Path | str, *, most_images: int = MOST_IMAGES, most_bytes: int = MOST_BYTES
    ) -> None:
        self.model = resolved(model)
        self.path = companion(self.model, "inbox")
        self.most_images, self.most_bytes = most_images, most_bytes
        self._lock = WriterLock(self.path)
        self._seen: dict[str, tuple[tuple[int, int, int], Facts]] = {}

    @property
    def on(self) -> bool:
        """Whether there is an inbox. One that leads elsewhere was not made by ease, and nothing is written there."""
        if self.path.is_symlink():
            raise EaseError(f"the inbox {self.path} is a link: remove the link, ease makes the folder itself")
        return is_folder(self.path)

    def known(self) -> Known:
        """What the model's current generation knows."""
        return Known.of(ModelDirectory(self.model).manifest())

    @property
    def total_bytes(self) -> int:
        """Size of all photos together."""
        return sum(facts.size for facts in self._facts())

    def __len__(self) -> int:
        return len(self._facts())

    def open(self) -> None:
        """Make the folder, if it is not there."""
        if not self.on:
            durable.make_folder(self.path)

    @contextlib.contextmanager
    def forgetting(self, class_id: int, known: Known, names: Collection[str] = ()) -> Iterator[None]:
        """Around the writing of a generation without this class: afterwards no photo of the class is here.

        If the process is killed inside, the next one that changes the inbox or the model finishes it.

        Args:
            class_id: The class that is forgotten.
            known: What the model knows until then.
            names: Names that the class had before: they leave the inbox with the present one.
        """
        if not self.on:
            yield
            return
        every = {known.classes[class_id], *names}
        shown = [plain_form(display_name(name)) for name in every]  # as the name of a file is noted
        with self._writing():
            own = []
            for facts in self._facts(known):
                number, present = class_of(facts, known)
                file = "" if any(name in plain_form(facts.file) for name in shown) else facts.file
                if number == class_id:
                    own.append(facts.id)
                elif file != facts.file or (facts.name in every and number is not None):
                    self._write(facts.model_copy(update={"file": file, "name": present}))
            write_json(self.path / _FORGETTING, {"class": class_id, "photos": own})
            try:
                yield
            finally:
                self._finish_forgetting()

    def finish_forgetting(self) -> None:
        """Finish what a `forget` began whose process was killed."""
        if is_file(self.path / _FORGETTING):
            with self._writing():
                pass

    def _finish_forgetting(self) -> None:
        marker = self.path / _FORGETTING
        if not is_file(marker):
            return
        known, wanted = self.known(), None
        with contextlib.suppress(EaseError):  # a damaged marker is of no use
            wanted = read_json(marker, 2**20)
        if isinstance(wanted, dict) and wanted.get("class") not in known.classes:
            for photo_id in wanted.get("photos", []):
                if isinstance(photo_id, str) and _ID.fullmatch(photo_id):
                    self._remove(photo_id)
        durable.remove(marker)

    # --- files ------------------------------------------------------------------------------------

    def _is_off(self) -> InboxOffError:
        return InboxOffError(
            f"the model in {self.model} has no inbox: correct an answer first (ease correct), "
            "or start the server with --inbox"
        )

    @contextlib.contextmanager
    def _writing(self, *, make: bool = False) -> Iterator[None]:
        """Hold the lock, after a while of waiting for it if need be, and remove what a killed writer left.

        Args:
            make: Whether the folder is made if it is not there; it is gone afterwards if nothing was written.
        """
        if not (self.on or make):
            raise self._is_off()
        until = time.monotonic() + LOCK_SECONDS
        with contextlib.ExitStack() as held:
            while True:
                try:
                    held.enter_context(self._lock.hold())
                    break
                except BusyError:
                    if time.monotonic() > until:
                        raise
                    time.sleep(0.02)
            self._finish_forgetting()
            durable.sweep(self.path)
            for path in self.path.glob("*.photo"):
                if not is_file(path.with_suffix(".json")):
                    durable.remove(path)
            yield

    def _facts(self, known: Known | None = None) -> list[Facts]:
        """What is noted of all photos, the oldest first. A file is read again only if it has changed.

        Args:
            known: With it, only what holds for this model.
        """
        seen: dict[str, tuple[tuple[int, int, int], Facts]] = {}
        if not self.on:
            return []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as entries:
            for entry in entries:
                name = entry.name.removesuffix(".json")
                if name == entry.name or not _ID.fullmatch(name):
                    continue
                with contextlib.suppress(
                    OSError, EaseError, ValidationError
                ):  # removed meanwhile, or damaged
                    facts = entry.stat(follow_symlinks=False)
                    version = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                    before = self._seen.get(name)
                    seen[name] = (
                        before
                        if before is not None and before[0] == version
                        else (version, _read(self.path / entry.name, name))
                    )
        self._seen = seen
        found = [seen[name][1] for name in sorted(seen)]
        return found if known is None else [of_model(facts, known) for facts in found]

    def _one(self, photo_id: str, known: Known | None = None) -> Facts:
        for facts in self._facts(known):
            if facts.id == photo_id:
                return facts
        raise NoPhotoError(f"there is no photo {photo_id[:60]!a} in the inbox: list them with 'ease inbox'")

    def _photo(self, photo_id: str) -> Path:
        return self.path / f"{photo_id}.photo"

    def _add(self, facts: Facts, content: bytes) -> None:
        durable.write_atomic(self._photo(facts.id), content)
        try:
            self._write(facts)
        except BaseException:
            with contextlib.suppress(EaseError):
                durable.remove(self._photo(facts.id))
            raise

    def _write(self, facts: Facts) -> None:
        line = json.dumps(facts.as_json(), allow_nan=False) + "\n"
        durable.write_atomic(self.path / f"{facts.id}.json", line.encode())

    def _remove(self, photo_id: str) -> None:
        durable.remove(self.path / f"{photo_id}.json")  # first: without it the photo is not there
        durable.remove(self._photo(photo_id))

    def _drop(self, found: Sequence[Facts]) -> None:
        unsure = [facts.digest for facts in found if facts.state != "corrected"]
        if unsure:
            write_counts(self.path, read_counts(self.path).with_dropped(unsure))
        for facts in found:
            self._remove(facts.id)

    def _make_room(self, size: int) -> None:
        """Make room for a correction: photos that nobody has named give way, the oldest first."""
        found = self._facts()
        count, taken = len(found), sum(facts.size for facts in found)
        leaving: list[Facts] = []
        for facts in (facts for facts in found if facts.state == "unsure"):
            if count < self.most_images and taken + size <= self.most_bytes:
                break
            leaving.append(facts)
            count, taken = count - 1, taken - facts.size
        if count >= self.most_images or taken + size > self.most_bytes:
            raise InboxFullError(
                f"the inbox is full ({len(found)} photos, {sum(f.size for f in found) / 1e6:.1f} MB): "
                "learn its photos (ease learn --inbox) or discard some (ease inbox --discard ID)"
            )
        self._drop(leaving)


def _read(path: Path, photo_id: str) -> Facts:
    facts = Facts.model_validate(read_json(path, _FACTS_BYTES))
    if facts.id != photo_id:
        raise EaseError(f"{path} holds the facts of another photo: remove it")
    return facts
