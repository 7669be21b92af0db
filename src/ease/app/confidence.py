"""How sure a prediction is, and whether an image is of no known class: pure functions on logits.

Held-out images say how far logits can be trusted. They are used once and forgotten, like all other images.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import ImageSet, chosen_by_content

HELD_OUT = 0.1
"""The share of a class that is not learned from."""
FEWEST = 5
"""A class with fewer images needs them all."""
ACCEPTED = 0.95
"""How many images of known classes should be taken as such."""
TEMPERATURES = (1e-3, 1e3)
"""Cosines need about .01 to .1, logits of trained heads about 1 to 10."""

_TAIL = 1.645
"""How many deviations below the mean a normal distribution has 5 % of its weight."""
_STEPS = 45
"""Halvings of the range of temperatures."""
_ABOVE = float(np.nextafter(np.float32(0.5), np.float32(1)))
"""The first number above a half."""


def hold_out(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """(to learn from, held out): a tenth of each class, at least one image; none of a class with under `FEWEST`.

    Chosen by content, so that neither names nor the order of files matter, and equal files are on the same side. An
    image that is in two classes is learned from: what it really shows is not known.
    """
    digests = [images.digest(i) for i in range(len(images))]
    classes_of: dict[str, set[int]] = {}
    for digest, label in zip(digests, images.labels.tolist(), strict=True):
        classes_of.setdefault(digest, set()).add(label)
    held: set[str] = set()
    for label, count in Counter(images.labels.tolist()).items():
        if count >= FEWEST:
            own = [digest for digest, labels in classes_of.items() if labels == {label}]
            held |= chosen_by_content(own, HELD_OUT)
    is_held = np.array([digest in held for digest in digests], dtype=bool)
    return images.take(np.flatnonzero(~is_held)), images.take(np.flatnonzero(is_held))


@dataclass(frozen=True)
class Calibration:
    """What held-out images taught about a model's logits.

    An image counts as known if its largest logit reaches the threshold. Of the scores one can take from logits this one
    told unknown classes apart best, keeps its meaning while classes are added, and works with a single class
    (`benchmarks/unknowns.py`).

    Attributes:
        temperature: logits are divided by it before the softmax.
        threshold: the largest logit of an image of a known class is hardly ever below it.
        images: how many are behind it; 0 means uncalibrated.
        ece_before: expected calibration error of the newest images at temperature 1; None where nothing was fitted to
            them, as with a single class.
        ece_after: the same at the temperature fitted to them.
    """

    temperature: float
    threshold: float
    images: int
    ece_before: float | None
    ece_after: float | None

    @classmethod
    def none(cls) -> Calibration:
        """Of a model that no image was held out from."""
        return cls(1.0, 0.0, 0, None, None)

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor) -> Calibration:
        """From held-out images; `none()` without any, or with a single number to go by.

        The temperature minimises the negative log-likelihood, which is convex in its inverse. A few images may all be
        right, and then ever colder is ever better; so it is clipped: n images vouch for no more than a mean confidence
        of (n + 1) / (n + 2), or for what the logits say by themselves.

        The threshold accepts 95 % of the images. A few of them do not show what the worst twentieth looks like, so it
        is no higher than it would be for a normal distribution with their mean and deviation.

        Args:
            logits: [N, C].
            labels: [N], below C.
        """
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or not logits.isfinite().all():
            raise ValueError(f"logits {list(logits.shape)} and labels {list(labels.shape)} do not fit")
        if logits.numel() < 2:
            return cls.none()
        logits, labels = logits.detach().double().cpu(), labels.detach().long().cpu()
        threshold = _threshold(logits)
        if logits.shape[1] == 1:  # nothing to be told apart from, so any temperature would do
            return cls(1.0, threshold, len(labels), None, None)
        temperature = _temperature(logits, labels)
        before, after = (
            expected_calibration_error((logits / t).softmax(dim=1), labels) for t in (1.0, temperature)
        )
        return cls(temperature, threshold, len(labels), before, after)

    def joined(self, newer: Calibration) -> Calibration:
        """Both together, after more classes were learned. Old held-out images are gone, so nothing can be fitted again.

        Means, weighted by the numbers of images: of the thresholds, and of the logarithms of the temperatures. A side
        without images, or without a temperature (see `ece_before`), has no say.
        """
        if not self.calibrated or not newer.calibrated:
            return newer if newer.calibrated else self
        images = self.images + newer.images
        share = newer.images / images
        threshold = (1 - share) * self.threshold + share * newer.threshold
        fitted = [side for side in (self, newer) if side.ece_before is not None] or [newer]
        logs = [math.log(side.temperature) for side in fitted]
        mean = logs[0] if len(logs) == 1 else (1 - share) * logs[0] + share * logs[1]
        newest = fitted[-1]
        return Calibration(_clipped(math.exp(mean)), threshold, images, newest.ece_before, newest.ece_after)

    @property
    def calibrated(self) -> bool:
        """Whether any image is behind it."""
        return self.images > 0

    def confidences(self, logits: Tensor) -> Tensor:
        """[N, C] -> probabilities [N, C]."""
        return (logits / self.temperature).softmax(dim=-1)

    def unknown(self, logits: Tensor) -> Tensor:
        """How likely an image is of no known class, [N, C] -> [N] in [0, 1]: above .5 exactly when it is rejected.

        Grows as the largest logit falls; NaN when uncalibrated.
        """
        best = logits.double().amax(dim=-1)
        if not self.calibrated:
            return torch.full_like(best, math.nan, dtype=torch.float32)
        score = torch.sigmoid((self.threshold - best) / self.temperature).float()
        return torch.where(best < self.threshold, score.clamp(min=_ABOVE), score.clamp(max=0.5))

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return asdict(self)

    @classmethod
    def of_json(cls, value: object) -> Calibration:
        """The inverse of `as_json`. A manifest may come from anywhere, so all of it is checked."""
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict) or set(value) != set(names):
            raise EaseError(f"the calibration is damaged: it must have exactly {', '.join(names)}")
        for name, (least, most) in _RANGES.items():
            number = value[name]
            if number is None and name.startswith("ece"):
                continue
            whole = type(number) is int
            if not (whole or (type(number) is float and name != "images")) or not least <= number <= most:
                raise EaseError(f"the calibration is damaged: {name} is {number!a:.40}")
        eces = [None if value[n] is None else float(value[n]) for n in ("ece_before", "ece_after")]
        found = cls(float(value["temperature"]), float(value["threshold"]), value["images"], *eces)
        if (found.ece_before is None) != (found.ece_after is None) or (
            not found.images and found != cls.none()
        ):
            raise EaseError("the calibration is damaged: its values contradict each other")
        return found


_RANGES = {
    "temperature": TEMPERATURES,
    "threshold": (-1e9, 1e9),
    "images": (0, 10**12),
    "ece_before": (0, 1),
    "ece_after": (0, 1),
}
"""What a stored calibration may hold; comparisons with NaN fail."""


def expected_calibration_error(
    probabilities: Tensor | npt.ArrayLike, labels: Tensor | npt.ArrayLike, bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over bins of equal width, weighted by the images in them.

    Args:
        probabilities: [N, C].
        labels: [N].
        bins: how many; a confidence on an edge belongs to the lower one.
    """
    confidence, guess = torch.as_tensor(probabilities).double().max(dim=1)
    if not len(guess):
        raise ValueError("there is no image to measure the calibration error on")
    right = (guess == torch.as_tensor(labels)).double()
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.bincount(bin_of, weights=confidence - right, minlength=bins)
    return float(gaps.abs().sum() / len(guess))


def auroc(known_scores: Tensor | npt.ArrayLike, unknown_scores: Tensor | npt.ArrayLike) -> float:
    """How often an image of an unknown class has a higher score than one of a known class; ties count half.

    Scores are as `Calibration.unknown` gives them: high means unknown.
    """
    from sklearn.metrics import roc_auc_score  # seconds to import

    known, unknown = np.asarray(known_scores), np.asarray(unknown_scores)
    truth = np.repeat([0, 1], [len(known), len(unknown)])
    return float(roc_auc_score(truth, np.concatenate([known, unknown])))


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """See `Calibration.fit`."""
    if bool((logits == logits[:, :1]).all()):  # all the same at any temperature
        return 1.0
    own = logits.gather(1, labels[:, None])[:, 0]
    vouched = (len(labels) + 1) / (len(labels) + 2)

    def slope(inverse: float) -> float:
        """Of the negative log-likelihood; it rises with the inverse temperature."""
        expected = ((logits * inverse).softmax(dim=1) * logits).sum(dim=1)
        return float((expected - own).mean())

    def excess(inverse: float) -> float:
        """Of the mean confidence over what so many images vouch for."""
        return float((logits * inverse).softmax(dim=1).amax(dim=1).mean()) - vouched

    likeliest, humble = _crossing(slope), _crossing(excess)
    return max(likeliest, min(humble, 1.0))


def _crossing(rising: Callable[[float], float]) -> float:
    """The temperature at whose inverse a rising function crosses zero, within `TEMPERATURES`."""
    cold, hot = (math.log(t) for t in TEMPERATURES)
    for _ in range(_STEPS):
        middle = (cold + hot) / 2
        if rising(math.exp(-middle)) < 0:
            hot = middle
        else:
            cold = middle
    return _clipped(math.exp((cold + hot) / 2))


def _clipped(temperature: float) -> float:
    return min(max(temperature, TEMPERATURES[0]), TEMPERATURES[1])


def _threshold(logits: Tensor) -> float:
    """See `Calibration.fit`. One image does not vary; how its logits vary is then the only scale there is."""
    scores, count = logits.amax(dim=1).sort().values, len(logits)
    if count > 1:
        unbiased = (4 * count - 4) / (4 * count - 3)
        deviation = float(scores.std()) / unbiased
    else:
        deviation = float(logits.std())
    return min(float(scores[int((1 - ACCEPTED) * count)]), float(scores.mean()) - _TAIL * deviation)
