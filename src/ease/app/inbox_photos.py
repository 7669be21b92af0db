"""What is noted of a photo in the inbox, and how the present generation of the model sees it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator

from ease.app.outcomes import now
from ease.app.prediction import ClassConfidence, Prediction
from ease.documents import Count, Document, Text
from ease.errors import EaseError
from ease.storage.manifest import Manifest
from ease.streams.intake.limits import ImageLimits
from ease.streams.intake.names import class_name, display_name

SUGGESTIONS = 5
"""Classes of the model's answer that are noted with a photo."""

State = Literal["corrected", "unsure", "named"]
"""`corrected`: a person said that the answer was wrong, and named it. `unsure`: collected because the model was unsure.
`named`: was unsure, and a person has named it since."""

_Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Known:
    """What a generation of a model knows, as far as the inbox needs it.

    Attributes:
        generation: Its number.
        classes: Class id -> name.
        corrections: Hash of a photo that was learned from the inbox -> id of its class.
        model: When the model first learned: all its generations have it, and a model that takes its place does not.
            None if that is not known.
    """

    generation: int
    classes: Mapping[int, str]
    corrections: Mapping[str, int]
    model: str | None = None

    @classmethod
    def of(cls, manifest: Manifest) -> Known:
        """What the generation of a manifest knows."""
        return cls(
            manifest.generation,
            {c.id: c.name for c in manifest.classes},
            manifest.corrections,
            manifest.history[0].date if manifest.history else None,
        )

    def id_of(self, name: str) -> int | None:
        """The id of the class with this name."""
        return next((number for number, own in self.classes.items() if own == name), None)


class Suggested(Document):
    """A class of the model's answer, by its id."""

    model_config = ConfigDict(extra="ignore")

    id: Count
    confidence: _Share


def _class_name(value: object) -> str:
    """A name from a file keeps the rules of any other: it may become a class."""
    try:
        return class_name(value)
    except EaseError as error:
        raise ValueError(str(error)) from error


class Facts(Document):
    """What is noted of a photo, in `ID.json`.

    Attributes:
        id: Never used for another photo.
        date: When it came, in UTC.
        changed: When it was last named, or its name was taken back.
        state: See `State`.
        digest: Content hash.
        size: Bytes of the photo.
        file: The name of its file, as far as it can be shown; empty if it had none.
        class_id: The class that a person named, if the model knew it.
        name: The name that the person gave; None if nobody has named it.
        suggestions: The model's answer, the best class first.
        unknown: The model's unknown score; None if it had none.
        generation: Of the model that gave the answer; 0 if there was none.
        judged: Whether the answer was counted as wrong when the photo came.
        model: The model that the ids and the answer are of, see `Known`; None in inboxes of earlier versions.
    """

    model_config = ConfigDict(extra="ignore")

    id: Text
    date: Text
    changed: Text
    state: State
    digest: Text
    size: Annotated[Count, Field(le=ImageLimits().bytes)]
    file: Text = ""
    class_id: Count | None = None
    name: Annotated[str, PlainValidator(_class_name)] | None = None
    suggestions: list[Suggested] = Field(default_factory=list)
    unknown: _Share | None = None
    generation: Count = 0
    judged: bool = False
    model: Text | None = None


@dataclass(frozen=True)
class InboxPhoto:
    """A photo in the inbox, as the present generation of the model sees it.

    Attributes:
        id: Its id, never used for another photo.
        date: When it came, in UTC.
        state: `corrected`, `unsure` or `named`.
        name: The class that a person named; None if nobody has.
        class_id: The id of that class; None if the model does not know it yet.
        file: The name of its file; empty if it had none.
        suggestions: What the model said, the best class first. Classes that are gone are left out.
        unknown: The model's unknown score; None if it had none.
        digest: Content hash.
        bytes: Size of the photo.
        path: Where the photo is.
    """

    id: str
    date: str
    state: State
    name: str | None
    class_id: int | None
    file: str
    suggestions: tuple[ClassConfidence, ...]
    unknown: float | None
    digest: str
    bytes: int
    path: Path


@dataclass(frozen=True)
class Correction:
    """The result of judging an answer.

    Attributes:
        id: Id of the photo in the inbox; None if it is not kept, because the answer was right.
        name: The name that the person gave.
        known: Whether the model knows a class of this name.
        confirmed: Whether the model's answer was this name already.
        similar: Known names that differ from a new name by a letter or two.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from ease import Classifier
        >>> images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 40, 80, 120, 200)]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     classifier = Classifier.create(f"{folder}/model", input_size=16)
        ...     _ = classifier.learn({"dark": images[:2], "bright": images[2:4]})
        ...     correction = classifier.correct(images[4], "snow")
        ...     _ = classifier.learn_inbox()
        ...     answer = classifier.predict(images[4])[0]
        >>> correction.known, answer.name, answer.corrected
        (False, 'snow', True)
    """

    id: str | None
    name: str
    known: bool
    confirmed: bool = False
    similar: tuple[str, ...] = ()


def new_facts(
    content: bytes, digest: str, state: State, answer: Prediction | None, known: Known, file: str
) -> Facts:
    when = datetime.now(timezone.utc)
    suggestions = []
    for each in () if answer is None else answer.classes[:SUGGESTIONS]:
        if (number := known.id_of(each.name)) is not None:
            suggestions.append(Suggested(id=number, confidence=each.confidence))
    return Facts(
        id=f"{when:%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}",
        date=when.isoformat(timespec="seconds"),
        changed=now(),
        state=state,
        digest=digest,
        size=len(content),
        file=display_name(Path(file.replace("\\", "/")).name),
        suggestions=suggestions,
        unknown=None if answer is None else answer.unknown,
        generation=0 if answer is None else known.generation,
        model=known.model,
    )


def of_model(facts: Facts, known: Known) -> Facts:
    """What holds for this model: ids and the answer of another one, which was here before, say nothing of it."""
    if facts.model is None or facts.model == known.model:
        return facts
    nothing: dict[str, Any] = {
        "class_id": None,
        "suggestions": [],
        "unknown": None,
        "generation": 0,
        "judged": False,
    }
    return facts.model_copy(update={**nothing, "model": known.model})


def renamed(facts: Facts, name: str | None, known: Known) -> Facts:
    state: State = facts.state
    class_id = None if name is None else known.id_of(name)
    if name is None:
        state = "unsure"
    elif state == "unsure":
        state = "named"
    changed: dict[str, Any] = {"name": name, "class_id": class_id, "state": state, "changed": now()}
    changed["model"] = known.model
    if name is None:
        changed["judged"] = False
    return facts.model_copy(update=changed)


def class_of(facts: Facts, known: Known) -> tuple[int | None, str | None]:
    """The id and the present name of the class that a person named; no id if it is not known (any more)."""
    if facts.name is None:
        return None, None
    if facts.class_id is not None and facts.class_id in known.classes:
        return facts.class_id, known.classes[facts.class_id]
    return known.id_of(facts.name), facts.name


def is_learned(facts: Facts, known: Known) -> bool:
    """Whether the model has learned this photo under this name: who learned it was killed before removing it."""
    class_id = class_of(facts, known)[0]
    return class_id is not None and known.corrections.get(facts.digest) == class_id


def rightly_unknown(answer: Prediction | None, class_id: int | None) -> bool:
    """Whether the model said that the photo shows none of its classes, and it does not."""
    return answer is not None and answer.is_unknown and class_id is None
