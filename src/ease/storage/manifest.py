"""The manifest of a model directory: a typed document, sealed with a checksum. It is encoded and decoded here only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, field_validator

from ease.documents import Count, Document, Text, cannot_be_shown, fault_of
from ease.errors import EaseError
from ease.storage.contents import (
    JSON_LIMIT,
    TENSORS_LIMIT,
    FileEntry,
    damaged,
    decode_json,
    encode_json,
    entry_of,
)

FORMAT = 1
LAST_GENERATION = 10**9
FILE_NAME = re.compile(r"(?!manifests/)[A-Za-z0-9_][A-Za-z0-9_-]{0,63}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Logical names of files, such as `subspaces/0003`."""
_PATH = re.compile(
    r"(?!manifests/)[A-Za-z0-9_][A-Za-z0-9_-]{0,63}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}\.safetensors"
)
MOST_CORRECTIONS = 2000
"""Photos that a person named and whose hashes are kept; the oldest are dropped."""
_DIGEST = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class ManifestPart(Document):
    """A part of a manifest. Keys that only a later version knows are left out when it is read."""

    model_config = ConfigDict(extra="ignore")


@dataclass(frozen=True)
class StoredFile(FileEntry):
    """Where a logical file of a generation lies, and what it must contain."""

    path: str


class ClassEntry(ManifestPart):
    """A class of a model, in the order of the logits.

    Attributes:
        id: never used again, not even after the class was forgotten.
        name: shown to people.
        task: index of the task that the class was learned in.
        count: number of images it was learned from.
    """

    id: Count
    name: Text
    task: Count
    count: Count


class BackboneEntry(ManifestPart):
    """The backbone that a model was learned on, and how it reads images."""

    name: Text
    weights_hash: Text
    input_size: Annotated[int, Field(ge=1, le=2**16)]
    mean: list[float]
    std: list[float]
    interpolation: Text


class HistoryEntry(ManifestPart):
    """One act of learning, as it was measured on its day.

    Attributes:
        generation: of the model, afterwards.
        date: when, in UTC.
        classes: names of the new classes.
        extended: names of known classes that were shown more images.
        images: number of images learned from.
        held_out: number of images kept apart for measuring.
        accuracy: on the held-out images in percent; None without any.
        notes: what the owner of the images should know.
    """

    generation: Count
    date: Text
    classes: list[Text]
    extended: list[Text]
    images: Count
    held_out: Count
    accuracy: float | None
    notes: list[Text] = Field(default_factory=list)


class StageProgress(ManifestPart):
    """What the newest task of an unfinished run has cost.

    Attributes:
        stage: number of the task, from 1.
        passes: forward passes by phase.
        seconds: seconds by phase.
        losses: mean loss of the first and the last epoch of each training.
        reused: training passes taken over from another run.
        waited: seconds in which the model waited for images.
        cpu: CPU seconds of learning the task.
        notes: what a reader of the results should know.
    """

    stage: Count
    passes: dict[str, Count]
    seconds: dict[str, float]
    losses: list[list[float]]
    reused: Count = 0
    waited: float = 0.0
    cpu: float = 0.0
    notes: list[Text] = Field(default_factory=list)


class ModelState(ManifestPart):
    """What the writer of a generation says about it, beside its files.

    Attributes:
        method: name of the learner's method.
        settings: of the method, which checks them itself.
        backbone: what the model was learned on.
        classes: in the order of the logits.
        passes_per_image: passes through the backbone for one prediction.
        learner: state of the method that is no tensor; the method checks it itself.
        precision: what the backbone computed in when the model last learned; None in models of versions that only
            knew 32-true, which is what it means.
        augmentation: what training images go through; only in models of the app, as all that follows.
        seed: random seed.
        next_id: id of the next new class.
        history: the acts of learning, the oldest first.
        kept_images: class id -> the file with its thumbnail.
        corrections: content hash of a photo that a person named and that was learned -> id of its class, the newest
            last; at most `MOST_CORRECTIONS`.
        calibration: see `ease.app.calibration.Calibration`, which checks it itself; None if it is not calibrated.
        progress: only in models of runs.
        clears_history: earlier generations must be removed, because they hold what was forgotten. A writer that finds
            such a generation current does it, if the writer of that generation was killed before it could.
    """

    method: Text
    settings: dict[str, Any]
    backbone: BackboneEntry
    classes: list[ClassEntry]
    passes_per_image: Count
    learner: dict[str, Any]
    precision: Text | None = None
    augmentation: Text | None = None
    seed: Count | None = None
    next_id: Count | None = None
    history: list[HistoryEntry] = Field(default_factory=list)
    kept_images: dict[str, Text] = Field(default_factory=dict)
    corrections: dict[str, Count] = Field(default_factory=dict)
    calibration: dict[str, Any] | None = None
    progress: StageProgress | None = None
    clears_history: bool = False

    @field_validator("classes")
    @classmethod
    def _classes_are_distinct(cls, classes: list[ClassEntry]) -> list[ClassEntry]:
        for entry in classes:
            if not entry.name.strip() or cannot_be_shown(entry.name):
                raise ValueError(f"the class name {entry.name[:60]!a} has characters that cannot be shown")
        for what, found in (
            ("name", Counter(c.name for c in classes)),
            ("id", Counter(c.id for c in classes)),
        ):
            twice = [each for each, count in found.items() if count > 1]
            if twice:
                raise ValueError(f"two classes have the {what} {twice[0]!a:.60}")
        return classes

    @field_validator("kept_images")
    @classmethod
    def _kept_images_are_of_classes(cls, kept: dict[str, str]) -> dict[str, str]:
        for number, name in kept.items():
            if not re.fullmatch("[0-9]{1,18}", number) or not FILE_NAME.fullmatch(name):
                raise ValueError(f"{number[:40]!a} is no class with an image")
        return kept

    @field_validator("corrections")
    @classmethod
    def _corrections_are_hashes(cls, corrections: dict[str, int]) -> dict[str, int]:
        if len(corrections) > MOST_CORRECTIONS:
            raise ValueError(f"it has more than {MOST_CORRECTIONS} corrections")
        for digest in corrections:
            if not _DIGEST.fullmatch(digest):
                raise ValueError(f"{digest[:40]!a} is no hash of a photo")
        return corrections

    def as_json(self) -> dict[str, Any]:
        """The state as JSON values; what was not given is left out, and so is what a directory adds to a state."""
        return self.model_dump(mode="python", include=set(ModelState.model_fields), exclude_unset=True)


class Manifest(ModelState):
    """A generation of a model.

    Attributes:
        format: version of the document.
        generation: counts the commits of the directory, from 1.
        created: when it was written, in UTC.
        files: logical name -> where the file lies, with checksum and size.
        checksum: SHA-256 of everything else.
    """

    format: int
    generation: Annotated[int, Field(ge=1, le=LAST_GENERATION)]
    created: Text
    files: dict[str, StoredFile]
    checksum: Text

    @property
    def bytes(self) -> int:
        """Size of the generation's files together."""
        return sum(entry.size for entry in self.files.values())

    @property
    def learned_in(self) -> str:
        """The precision that the model last learned in."""
        return self.precision or "32-true"

    @property
    def class_names(self) -> list[str]:
        """Names of the classes in the order of the logits."""
        return [entry.name for entry in self.classes]


def manifest_copy(generation: int) -> str:
    """Where, in a model directory, the manifest of a generation is kept besides being the current one."""
    return f"manifests/{generation:04d}.json"


def encode_manifest(number: int, state: ModelState, stored: Mapping[str, StoredFile]) -> bytes:
    """The content of a manifest file."""
    manifest = {
        "format": FORMAT,
        "generation": number,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **state.as_json(),
        "files": {
            name: {"path": entry.path, "sha256": entry.sha256, "size": entry.size}
            for name, entry in sorted(stored.items())
        },
    }
    raw = sealed(manifest)
    if len(raw) > JSON_LIMIT or number > LAST_GENERATION:
        raise EaseError(
            f"generation {number} is too large for one manifest: clear the history, keep less in it"
        )
    return raw


def sealed(body: Mapping[str, Any]) -> bytes:
    """The bytes of a manifest: its values, and the checksum of their encoding."""
    plain = encode_json(dict(body))
    checksum = entry_of(plain).sha256
    if "checksum" in body or not body:
        return encode_json({**body, "checksum": checksum})
    # The same bytes as encoding everything once more, which takes most of the time of a long manifest.
    return plain.removesuffix(b"\n}\n") + f',\n "checksum": "{checksum}"\n}}\n'.encode()


def decode_manifest(raw: bytes, path: Path) -> Manifest:
    """The manifest in a file's content, or an `EaseError` that says what is wrong.

    Args:
        raw: is not trusted; a right checksum does not show who wrote it.
        path: named in the error.
    """
    values = _unsealed(raw, path)
    try:
        return Manifest.model_validate({**values, "files": _stored_files(values, path)})
    except ValidationError as error:
        where, message = fault_of(error)
        raise damaged(path, f"{where}: {message}" if where else message) from None


def _unsealed(raw: bytes, path: Path) -> dict[str, Any]:
    values = decode_json(raw, path)
    if not isinstance(values, dict) or type(values.get("format")) is not int:
        raise damaged(path, "it is not a manifest")
    # Before the checksum: a later format may compute it in another way.
    if values["format"] > FORMAT:
        raise EaseError(
            f"{path} has format {values['format']}, this version reads up to {FORMAT}: upgrade ease-cil"
        )
    body = {key: value for key, value in values.items() if key != "checksum"}
    try:
        # Byte for byte, so that not even a repeated key or a different spelling of a number passes.
        whole = sealed(body)
    except ValueError as error:
        raise damaged(path, "it is not a manifest") from error
    if whole != raw:
        raise damaged(path, "its checksum differs")
    if type(values.get("generation")) is not int or not 1 <= values["generation"] <= LAST_GENERATION:
        raise damaged(path, "it has no generation")
    return values


def _stored_files(values: Mapping[str, Any], path: Path) -> dict[str, StoredFile]:
    """The file table of a manifest."""
    table = values.get("files")
    if not isinstance(table, dict):
        raise damaged(path, "it names no files")
    stored = {}
    for name, entry in table.items():
        if not FILE_NAME.fullmatch(name) or not isinstance(entry, dict):
            raise damaged(path, f"its entry '{name}' is no entry")
        where, sha256, size = entry.get("path"), entry.get("sha256"), entry.get("size")
        if not isinstance(where, str) or not _PATH.fullmatch(where):
            raise damaged(path, f"the path of '{name}' is not one inside the model directory")
        if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
            raise damaged(path, f"the checksum of '{name}' is none")
        if type(size) is not int or not 0 < size <= TENSORS_LIMIT:
            raise damaged(path, f"the size of '{name}' is out of bounds")
        stored[name] = StoredFile(sha256, size, where)
    return stored
