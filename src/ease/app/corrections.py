"""What people say about answers: kept in the inbox, looked up by content hash, and learned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ease.app.changes import Learned
from ease.app.inbox import Inbox
from ease.app.inbox_photos import Correction, InboxPhoto, Known
from ease.app.prediction import ClassConfidence, Prediction
from ease.app.unsure import is_unsure
from ease.errors import EaseError
from ease.progress import Progress
from ease.storage.manifest import MOST_CORRECTIONS
from ease.streams.images import png_file
from ease.streams.intake import LabelledImages, collect_images
from ease.streams.intake.checks import size_notes
from ease.streams.intake.decode import ImageContent, content_digest, read_bytes_of
from ease.streams.intake.sources import Candidate, Candidates
from ease.streams.intake.sources.memory import image_content

if TYPE_CHECKING:
    from ease.app.classifier import Classifier

LearnNamed = Callable[[LabelledImages, Mapping[str, str], Progress | None], Learned]


def as_named(
    predictions: list[Prediction], digests: Sequence[str], known: Known, inbox: Inbox
) -> list[Prediction]:
    """Replace the answers for photos that people have named.

    Args:
        predictions: What the model says.
        digests: Content hash of each image; empty if nothing shall be looked up.
        known: The generation that gave the predictions. Photos that it has learned are known by their hashes.
        inbox: Has photos that are not learned yet. Their names count if the model knows the class, and they count
            more than what was learned.
    """
    if not digests or not (known.corrections or inbox.on):
        return predictions
    named = {**known.corrections, **inbox.named(known)}
    return [
        _named(one, known.classes[named[digest]]) if named.get(digest) in known.classes else one
        for one, digest in zip(predictions, digests, strict=True)
    ]


def _named(prediction: Prediction, name: str) -> Prediction:
    others = [each.name for each in prediction.classes if each.name != name]
    classes = [
        ClassConfidence(name=name, confidence=1.0),
        *(ClassConfidence(name=other, confidence=0.0) for other in others),
    ]
    return prediction.model_copy(
        update={
            "classes": tuple(classes[: len(prediction.classes)]),
            "unknown": None if prediction.unknown is None else 0.0,
            "corrected": True,
        }
    )


def remembered(before: Mapping[str, int], named: Mapping[str, str], known: Known) -> dict[str, int]:
    """The learned corrections with those of some more photos (content hash -> class name); the oldest are dropped."""
    after = {digest: number for digest, number in before.items() if digest not in named}
    for digest, name in named.items():
        if (number := known.id_of(name)) is not None:
            after[digest] = number
    return dict(list(after.items())[-MOST_CORRECTIONS:])


def correct(classifier: Classifier, image: Any, name: str, *, confirm: bool = False) -> Correction:
    """See `Classifier.correct`."""
    known, inbox = classifier.known, classifier.inbox
    if not known.generation:
        raise EaseError(f"the model in {classifier.path} is not written yet: learn some classes first")
    inbox.check_name(name, known, confirm=confirm)
    content = image_content(image, "image")
    # Also refuses an image that cannot be decoded, before anything is kept.
    answer = classifier.predict([image])[0] if known.classes else None
    if answer is None:
        collect_images({"image": [image]})
    return inbox.judge(
        as_file(content),
        content_digest(content),
        name,
        answer,
        known,
        confirm=confirm,
        file=content.name if isinstance(content, Path) else "",
    )


def as_file(content: ImageContent) -> bytes:
    """The bytes of an image file as they are; pixels without a file as PNG."""
    if isinstance(content, Tensor):
        return png_file(content)
    return read_bytes_of(content, "image")


def learn_inbox(
    classifier: Classifier, learn: LearnNamed, only: Sequence[str] | None, progress: Progress | None
) -> Learned:
    """See `Classifier.learn_inbox`; `learn` writes a new generation."""
    inbox = classifier.inbox
    inbox.settle()
    photos = inbox.to_learn(classifier.known, only)
    if not photos:
        raise EaseError(
            f"there is nothing to learn in the inbox of {classifier.path}: correct an answer (ease correct), "
            "or name a photo of the inbox (ease inbox --name ID=NAME)"
        )
    images = _about_new(collect_images(candidates(photos), progress=progress), classifier.classes)
    learned = learn(images, {photo.digest: str(photo.name) for photo in photos}, progress)
    inbox.settle(photos)
    return learned


def _about_new(images: LabelledImages, known: Sequence[str]) -> LabelledImages:
    """Without the remark that a known class has few images here: it has others."""
    counts = np.bincount(images.images.labels, minlength=len(images.names)).tolist()
    sizes = dict(zip(images.names, counts, strict=True))
    new = {name: count for name, count in sizes.items() if name not in known}
    notes = [note for note in images.notes if note not in size_notes(sizes)]
    return replace(images, notes=(*notes, *(size_notes(new) if new else ())))


def collect(
    classifier: Classifier, images: Sequence[Any], predictions: Sequence[Prediction], per_day: int
) -> int:
    """Keep those images in the inbox that the model is unsure of; returns how many were kept.

    Args:
        classifier: The model.
        images: As in `Classifier.predict`.
        predictions: What it says about them.
        per_day: Images that are collected at most on a UTC day.
    """
    inbox, known, kept = classifier.inbox, classifier.known, 0
    inbox.open()
    for image, prediction in zip(images, predictions, strict=True):
        if is_unsure(prediction) and inbox.collected_today() < per_day:
            content = image_content(image, "image")
            file = content.name if isinstance(content, Path) else ""
            digest = content_digest(content)
            found = inbox.collect(as_file(content), digest, prediction, known, per_day=per_day, file=file)
            kept += found is not None
    return kept


def names_of(photos: Sequence[InboxPhoto]) -> dict[str, list[str]]:
    """The names that people gave, each with the ids of its photos."""
    names: dict[str, list[str]] = {}
    for photo in photos:
        if photo.name is not None:
            names.setdefault(photo.name, []).append(photo.id)
    return names


def candidates(photos: Sequence[InboxPhoto]) -> Candidates:
    """Named photos as a source of labelled images; notes call them by the names of their files."""
    labels: dict[str, int] = {}
    images = [
        Candidate(
            labels.setdefault(str(photo.name), len(labels)),
            photo.file or photo.id,
            photo.path,
            full_name=f"{photo.id} ({photo.file})" if photo.file else photo.id,
        )
        for photo in photos
    ]
    return Candidates(tuple(labels), sorted(images, key=lambda image: image.label))
