"""Which photos a person should look at, and which of them look alike."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ease.app.inbox_photos import InboxPhoto
from ease.app.prediction import UNKNOWN_THRESHOLD, Prediction
from ease.errors import EaseError
from ease.methods import ComparesImages, Learner

if TYPE_CHECKING:
    from ease.app.classifier import Classifier

UNSURE_CONFIDENCE = 0.5
"""An answer with less confidence than this is unsure: by the calibration it is more likely wrong than right.

Held-out training photos of photos-42 (flowers), embedded backbone, a fifth of the classes left out: 77 % of the wrong
answers are collected, 26 % of the right ones, and 68 % of the photos of classes that were left out. With 0.7 it would
be 91, 45 and 86 %: almost every second right answer for a person to look at. With 0.3: 50, 11 and 44 %. See
`python -m benchmarks.unsure`, and docs/how-to/inbox.md for test photos."""
NEAR_UNKNOWN = 0.4
"""An unknown score above this is near enough to `UNKNOWN_THRESHOLD` for a person to look at the photo.

The same command: 0.5 in its place collects 1 % fewer photos of known glyphs and 3 % fewer of those left out, with
DeiT-tiny on the flowers 2 % and 5 %; 0.3 adds 1 % and 3 %, and 1 % and 6 %."""
SMALLEST_GROUP = 3
"""Photos that a group has at least: two may be alike by chance."""
GROUP_SECONDS = 5.0
"""Seconds that computing groups may take at a time. Photos that are not reached are in no group until the next look."""
_BATCH = 8


def is_unsure(prediction: Prediction) -> bool:
    """Whether a person should look at the photo: the answer may be wrong, or the class may be a new one.

    Confidences that are not calibrated say nothing of that, and a photo that a person has named needs no other look.

    Args:
        prediction: What the model says.

    Example:
        >>> is_unsure(Prediction(classes=[{"name": "cat", "confidence": 0.3}], unknown=0.2, calibrated=True))
        True
    """
    if prediction.corrected or not prediction.calibrated or prediction.unknown is None:
        return False
    return prediction.confidence < UNSURE_CONFIDENCE or prediction.unknown > NEAR_UNKNOWN


def groupable(photos: Sequence[InboxPhoto]) -> list[InboxPhoto]:
    """The photos that may form groups: nobody has named them. None if they are too few, or if all are like a class.

    Those that are least like a class come first.
    """
    found = [photo for photo in photos if photo.name is None]
    if len(found) < SMALLEST_GROUP or not any(_is_unknown(photo) for photo in found):
        return []
    return sorted(found, key=lambda photo: -(photo.unknown or 0.0))


def _is_unknown(photo: InboxPhoto) -> bool:
    return (photo.unknown or 0.0) > UNKNOWN_THRESHOLD


class Groups:
    """Finds photos of the inbox that look alike and may be of a new class. Features are computed once.

    Photos are grouped by average linkage on the cosine of the features that the method compares images by, as far as
    they are more alike than by chance. Of a class that is new to the model, some photos are like no class and others
    are taken for one, but without confidence: so all photos that nobody has named take part, and a group counts if at
    least one of its photos is like no class. Methods that do not compare images (`ComparesImages`) have no groups.
    """

    def __init__(self, seconds: float = GROUP_SECONDS) -> None:
        self._seconds = seconds
        self._features: dict[tuple[str, str], Tensor] = {}
        self._found: tuple[tuple[object, ...], list[list[str]]] = ((), [])
        self._lock = threading.Lock()

    @property
    def last(self) -> list[list[str]]:
        """The groups that were found at the last look."""
        return self._found[1]

    def of(self, classifier: Classifier, photos: Sequence[InboxPhoto]) -> list[list[str]]:
        """Groups of ids, the most telling one first.

        Args:
            classifier: The model that has the features.
            photos: The photos of the inbox. Only those that nobody has named are grouped.
        """
        asked, learner = groupable(photos), classifier.learner
        if not asked or not isinstance(learner, ComparesImages) or not classifier.classes:
            return []
        with self._lock:
            features = self._read(classifier, asked)
            reached = [photo for photo in asked if photo.digest in features]
            key = (classifier.path, classifier.generation, *(photo.id for photo in reached))
            if self._found[0] != key:
                directions = learner.directions(torch.stack([features[p.digest] for p in reached], dim=1))
                unknown = torch.tensor([_is_unknown(photo) for photo in reached])
                groups = look_alikes(directions, unknown, learner.alike_from())
                ids = [[reached[at].id for at in group] for group in groups]
                self._found = (key, ids)
            return self._found[1]

    def _read(self, classifier: Classifier, photos: Sequence[InboxPhoto]) -> dict[str, Tensor]:
        """Features [S, d] by content hash, of as many photos as there is time for."""
        learner, until = classifier.learner, time.monotonic() + self._seconds
        subspaces = ",".join(str(subspace.hash) for subspace in learner.subspaces())
        wanted = {(subspaces, photo.digest): photo for photo in photos}
        self._features = {key: value for key, value in self._features.items() if key in wanted}
        missing = [(key, photo.path) for key, photo in wanted.items() if key not in self._features]
        for start in range(0, len(missing), _BATCH):
            if start and time.monotonic() > until:
                break
            self._compute(classifier, missing[start : start + _BATCH])
        return {digest: features for (_, digest), features in self._features.items()}

    def _compute(self, classifier: Classifier, missing: Sequence[tuple[tuple[str, str], Path]]) -> None:
        pixels, keys = [], []
        for key, path in missing:
            try:
                pixels.append(classifier.pixels([path]))
                keys.append(key)
            except EaseError:  # discarded meanwhile, or damaged
                continue
        if keys:
            for key, features in zip(keys, _features(classifier.learner, torch.cat(pixels)), strict=True):
                self._features[key] = features


def _features(learner: Learner, pixels: Tensor) -> Tensor:
    """Pixels [N, 3, s, s] -> features [N, S, d] of all subspaces."""
    tunings = [subspace.tuning for subspace in learner.subspaces()]
    with torch.no_grad():
        return learner.engine.features_of_pixels(pixels, tunings, learner.reading).cpu().transpose(0, 1)


def look_alikes(directions: Tensor, unknown: Tensor, least: float) -> list[list[int]]:
    """Groups of vectors that may be a new class: at least `SMALLEST_GROUP` of them, one of which is like no class.

    Args:
        directions: Vectors of length 1, [N, K].
        unknown: Which of them are like no class, bool [N].
        least: Mean cosine between two groups from which they are joined.

    Returns:
        Positions of each group in ascending order. Groups are in the order of c sqrt(n - 1), the largest first: n
        vectors with the mean cosine c. Three photos have to be far more alike than ten to say as much.
    """
    from sklearn.cluster import AgglomerativeClustering  # seconds to import

    if len(directions) < SMALLEST_GROUP:
        return []
    cosines = (directions @ directions.T).double()
    clustering = AgglomerativeClustering(
        n_clusters=None, metric="precomputed", linkage="average", distance_threshold=1 - least
    )
    groups: dict[int, list[int]] = {}
    for position, label in enumerate(clustering.fit_predict((1 - cosines).clamp(min=0).numpy()).tolist()):
        groups.setdefault(label, []).append(position)
    found = [g for g in groups.values() if len(g) >= SMALLEST_GROUP and bool(unknown[g].any())]

    def telling(group: list[int]) -> float:
        count, own = len(group), cosines[group][:, group]
        return float(own.sum() - own.trace()) / (count * (count - 1) ** 0.5)

    return sorted(found, key=lambda group: (-telling(group), group))
