"""Calibration: from logits to confidences, and to a score for images of unknown classes.

It is fitted on held-out images and, where a method provides them, on leave-one-out logits: the logits of a learned
image that a model without this image would give. No image is kept, only sums over many of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ease.errors import EaseError
from ease.streams.images import ImageSet, chosen_by_content
from ease.streams.intake.checks import FEW_IMAGES

HELD_OUT = 0.1
"""Share of the images of a class that are held out."""
ACCEPTED = 0.95
"""Share of the images of known classes that should be accepted as known."""
TEMPERATURES = (1e-3, 1e3)
"""Range of temperatures. Cosines need about .01 to .1, logits of trained heads about 1 to 10."""

OFFSET_WEIGHT = 0.25
"""Weight of the class offset: the part of the deviation of a class's mean own logit that is subtracted from a score."""
GRID = tuple(np.geomspace(*TEMPERATURES, 61).tolist())
"""Temperatures at which sums of confidences are kept."""
_TENTHS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHARES = (0.0, 0.01, 0.02, 0.03, 0.04, 1 - ACCEPTED, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15, *_TENTHS)
"""Quantiles at which the distribution of scores is kept, dense around the share that is rejected."""
ENOUGH_IMAGES = 100
"""Number of images from which the lowest 5 % of the scores can be estimated directly."""
MOST_CLASSES = 10**6
VERSION = 2
"""Version of what `Calibration.as_json` writes."""

_TAIL = 1.645
"""5 % of a normal distribution are more than this many standard deviations below the mean."""
_ABOVE = float(np.nextafter(np.float32(0.5), np.float32(1)))
"""The smallest float32 above 0.5."""


def hold_out(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """Split images into (to learn from, held out).

    A tenth of each class is held out, at least one image, but none of a class with fewer than `FEW_IMAGES`. The choice
    depends on the content of the images only, so that neither names nor the order of files matter, and equal files are
    on the same side. An image that occurs in two classes is never held out: its true class is not known.
    """
    digests = [images.digest(i) for i in range(len(images))]
    classes_of: dict[str, set[int]] = {}
    for digest, label in zip(digests, images.labels.tolist(), strict=True):
        classes_of.setdefault(digest, set()).add(label)
    held: set[str] = set()
    for label, count in Counter(images.labels.tolist()).items():
        if count >= FEW_IMAGES:
            own = [digest for digest, labels in classes_of.items() if labels == {label}]
            held |= chosen_by_content(own, HELD_OUT)
    is_held = np.array([digest in held for digest in digests], dtype=bool)
    return images.take(np.flatnonzero(~is_held)), images.take(np.flatnonzero(is_held))


@dataclass(frozen=True)
class Evidence:
    """Sums over the images that a calibration was fitted on. They contain nothing about a single image.

    Each image is weighted by the number of classes that the model had when it scored the image: the more classes, the
    more similar that model was to the present one.

    Attributes:
        weight: Sum of the weights of all images.
        right: Sum of the weights of the images that were recognised.
        classes: Largest number of classes of a model that scored them.
        confidences: Weighted sum of the images' confidences at each temperature of `GRID`.
        own: For each class the mean of its own logit over its own images, and their number.
        scores: Weighted quantiles, at `SHARES`, of the images' scores of being known.
    """

    weight: float
    right: float
    classes: int
    confidences: tuple[float, ...]
    own: Own
    scores: tuple[float, ...]

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, older: Evidence | None) -> Evidence:
        """Evidence from logits [N, C] in fp64, N > 0, and labels [N]; class offsets also use the older evidence."""
        classes = logits.shape[1]
        counts = torch.bincount(labels, minlength=classes)
        sums = torch.zeros(classes, dtype=logits.dtype).index_add_(
            0, labels, logits.gather(1, labels[:, None])[:, 0]
        )
        own = tuple(zip((sums / counts.clamp(min=1)).tolist(), counts.tolist(), strict=True))
        sure = [float((logits / t).softmax(dim=1).amax(dim=1).sum()) * classes for t in GRID]
        right = int((logits.argmax(dim=1) == labels).sum())
        known = _known(logits, _offsets(own if older is None else _both(older.own, own), classes))
        ranked = known.sort().values[[min(len(known) - 1, int(share * len(known))) for share in SHARES]]
        return cls(
            float(classes * len(labels)),
            float(classes * right),
            classes,
            tuple(sure),
            own,
            tuple(ranked.tolist()),
        )

    def __add__(self, newer: Evidence) -> Evidence:
        own = _both(self.own, newer.own)
        # Older scores are shifted to the present mean of the classes.
        moved = (
            OFFSET_WEIGHT * (_mean_own(own) - _mean_own(self.own))
            if any(count for _, count in self.own)
            else 0.0
        )
        weights = self.weight, newer.weight
        return Evidence(
            sum(weights),
            self.right + newer.right,
            max(self.classes, newer.classes),
            tuple(a + b for a, b in zip(self.confidences, newer.confidences, strict=True)),
            own,
            _mixed([score + moved for score in self.scores], newer.scores, weights),
        )

    def as_if(self, times: float, temperature: float, threshold: float) -> Evidence:
        """Evidence of `times` as many images that would have led to this temperature and threshold.

        It replaces what the first version of the format did not store.
        """
        sure = tuple(times * each for each in self.confidences)
        right = float(np.interp(math.log(temperature), np.log(GRID), sure))
        least = self.scores[SHARES.index(1 - ACCEPTED)]
        scores = tuple(score - least + threshold for score in self.scores)
        return Evidence(times * self.weight, right, self.classes, sure, (), scores)

    def temperature(self) -> float:
        """The temperature, within `TEMPERATURES`, at which the mean confidence is the share of images recognised.

        The share is Laplace's estimate (right + 1) / (images + 2), so that a few images that are all recognised do not
        lead to a confidence of 1.
        """
        gaps = np.array(self.confidences) - self.weight * (self.right + self.classes) / (
            self.weight + 2 * self.classes
        )
        if self.confidences[0] - self.confidences[-1] <= 1e-9 * self.weight:  # the same at any temperature
            return 1.0
        return float(np.exp(np.interp(0.0, -gaps, np.log(GRID))))

    def threshold(self, images: int, spread: float) -> float:
        """The threshold that accepts 95 % of the images.

        A few images do not determine the lowest 5 %. With fewer than `ENOUGH_IMAGES`, the threshold is therefore moved
        towards the one-sided 95 % prediction bound of a normal distribution (Student's t), if that is lower.

        Args:
            images: Number of images.
            spread: Standard deviation to assume if there is a single image.
        """
        least = self.scores[SHARES.index(1 - ACCEPTED)]
        mean, square = (float(np.trapezoid(np.power(self.scores, power), SHARES)) for power in (1, 2))
        if images > 1:
            deviation = math.sqrt(max(0.0, square - mean**2) * images / (images - 1) * (1 + 1 / images))
            deviations = _student(images - 1)
        else:
            deviation, deviations = spread, _TAIL
        trust = min(1.0, images / ENOUGH_IMAGES)
        return least - (1 - trust) * max(0.0, least - (mean - deviations * deviation))


@dataclass(frozen=True)
class Calibration:
    """Function from a model's logits to confidences and unknown scores.

    The score of being known is an image's largest logit less an offset of that class, since some classes are far from
    all others and even a poor image of them has a high logit. An image counts as known if the score reaches the
    threshold.

    Attributes:
        temperature: Logits are divided by it before the softmax.
        threshold: Least score of an image that counts as known.
        images: Number of images it was fitted on; 0 means not calibrated.
        ece_before: Expected calibration error of the newest images at temperature 1; None if nothing was fitted on
            them, as with a single class.
        ece_after: The same at the fitted temperature.
        evidence: Sums that later images are added to; None in models of the first version.
    """

    temperature: float
    threshold: float
    images: int
    ece_before: float | None
    ece_after: float | None
    evidence: Evidence | None = None

    @classmethod
    def none(cls) -> Calibration:
        """The calibration of a model without any held-out image."""
        return cls(1.0, 0.0, 0, None, None)

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor) -> Calibration:
        """Fit on images of a model's first task, see `joined`; `none()` without images, or with a single logit."""
        return cls.none().joined(logits, labels)

    def joined(self, logits: Tensor, labels: Tensor) -> Calibration:
        """Add images that the model did not learn from, after it has learned more classes.

        Earlier images are gone, but the sums of their confidences at every temperature of `GRID` are kept. The
        temperature is fitted again: it is the one at which the mean confidence of all images is the share of them that
        was recognised. The threshold accepts 95 % of all images, given the kept quantiles of earlier scores.

        Args:
            logits: [N, C].
            labels: [N], below C.

        Returns:
            The new calibration; this one if there is nothing to fit.
        """
        if logits.ndim != 2 or labels.shape != logits.shape[:1] or not logits.isfinite().all():
            raise ValueError(f"logits {list(logits.shape)} and labels {list(labels.shape)} do not fit")
        if not len(labels) or (logits.numel() < 2 and not self.calibrated):
            return self
        logits, labels = logits.detach().double().cpu(), labels.detach().long().cpu()
        older = self.evidence
        newer = Evidence.of(logits, labels, older)
        if older is None and self.calibrated:
            fitted = newer.temperature() if self.ece_before is None else self.temperature
            older = newer.as_if(self.images / len(labels), fitted, self.threshold)
        both = newer if older is None else older + newer
        images = self.images + len(labels)
        threshold = both.threshold(images, float(logits.std()))
        temperature = both.temperature()
        if logits.shape[1] == 1:  # a single class has confidence 1 in any case
            before, after = self.ece_before, self.ece_after
        else:
            before, after = (
                expected_calibration_error((logits / t).softmax(dim=1), labels) for t in (1.0, temperature)
            )
        return Calibration(temperature, threshold, images, before, after, both)

    def without(self, position: int) -> Calibration:
        """The calibration after the class at this position was forgotten, without the sums over its images."""
        if self.evidence is None:
            return self
        own = self.evidence.own[:position] + self.evidence.own[position + 1 :]
        return replace(self, evidence=replace(self.evidence, own=own))

    @property
    def calibrated(self) -> bool:
        """Whether it was fitted on any image."""
        return self.images > 0

    def confidences(self, logits: Tensor) -> Tensor:
        """[N, C] -> probabilities [N, C]."""
        return (logits / self.temperature).softmax(dim=-1)

    def offsets(self, classes: int) -> Tensor:
        """Offset of each class, subtracted from the score of an image that is taken for it, [classes] in fp64."""
        return _offsets(() if self.evidence is None else self.evidence.own, classes)

    def unknown(self, logits: Tensor) -> Tensor:
        """Unknown scores, [N, C] -> [N] in [0, 1]: above 0.5 exactly when the image counts as unknown.

        The score is a decreasing function of the largest logit less the offset of its class; it is NaN if not
        calibrated. No branch depends on the logits, so that the function can be traced.
        """
        if not self.calibrated:
            return torch.full_like(logits[..., 0], math.nan, dtype=torch.float32)
        known = _known(logits.double(), self.offsets(logits.shape[-1]))
        score = torch.sigmoid((self.threshold - known) / self.temperature).float()
        return torch.where(known < self.threshold, score.clamp(min=_ABOVE), score.clamp(max=0.5))

    def as_json(self) -> dict[str, Any]:
        """The calibration as stored in a manifest."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def of_json(cls, value: object, classes: int | None = None) -> Calibration:
        """The inverse of `as_json`. Everything is checked, since a manifest may come from an untrusted source.

        Args:
            value: Value from a manifest. The first version has neither `version` nor `evidence`.
            classes: Number of classes of the model, if it is known.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict):
            raise EaseError("the calibration is damaged: it is not a JSON object")
        if "version" in value:
            if type(value["version"]) is not int or value["version"] != VERSION:
                raise EaseError(
                    f"the calibration is damaged or of another version of ease: version {value['version']!a:.40}"
                )
            names.append("version")
        else:
            names.remove("evidence")
        if set(value) != set(names):
            raise EaseError(f"the calibration is damaged: it must have exactly {', '.join(names)}")
        for name in ("temperature", "threshold", "images", "ece_before", "ece_after"):
            if value[name] is not None or not name.startswith("ece"):
                _check(name, value[name])
        before, after = (None if value[n] is None else float(value[n]) for n in ("ece_before", "ece_after"))
        evidence = None if value.get("evidence") is None else _evidence(value["evidence"], classes)
        found = cls(
            float(value["temperature"]), float(value["threshold"]), value["images"], before, after, evidence
        )
        if (found.ece_before is None) != (found.ece_after is None) or (
            not found.images and found != cls.none()
        ):
            raise EaseError("the calibration is damaged: its values contradict each other")
        return found


def _evidence(value: object, classes: int | None) -> Evidence:
    """See `Calibration.of_json`."""
    names = [field.name for field in fields(Evidence)]
    if not isinstance(value, dict) or set(value) != set(names):
        raise EaseError(f"the calibration is damaged: its evidence must have exactly {', '.join(names)}")
    for name in ("weight", "right", "classes"):
        _check(name, value[name])
    for name, length in (("confidences", len(GRID)), ("scores", len(SHARES))):
        if not isinstance(value[name], (list, tuple)) or len(value[name]) != length:
            raise EaseError(f"the calibration is damaged: {name} must be {length} numbers")
        for each in value[name]:
            _check(name, each)
    own = value["own"]
    if not isinstance(own, (list, tuple)) or len(own) > MOST_CLASSES:
        raise EaseError("the calibration is damaged: own must be a list with one pair for each class")
    for pair in own:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise EaseError("the calibration is damaged: own must be a list with one pair for each class")
        _check("own", pair[0])
        _check("images", pair[1])
    found = Evidence(
        float(value["weight"]),
        float(value["right"]),
        value["classes"],
        tuple(float(each) for each in value["confidences"]),
        tuple((float(mean), count) for mean, count in own),
        tuple(float(each) for each in value["scores"]),
    )
    some = 1 + 1e-6  # for rounding
    falling = all(b <= a * some for a, b in zip(found.confidences, found.confidences[1:], strict=False))
    if (
        not falling
        or list(found.scores) != sorted(found.scores)
        or max(found.right, found.confidences[0]) > found.weight * some
    ):
        raise EaseError("the calibration is damaged: its values contradict each other")
    if classes is not None and len(found.own) > classes:
        raise EaseError(f"the calibration is damaged: it is for {len(found.own)} classes, not {classes}")
    return found


_RANGES = {
    "temperature": TEMPERATURES,
    "threshold": (-1e9, 1e9),
    "images": (0, 10**12),
    "ece_before": (0, 1),
    "ece_after": (0, 1),
    "weight": (1, 1e18),
    "right": (0, 1e18),
    "classes": (1, MOST_CLASSES),
    "confidences": (0, 1e18),
    "own": (-1e9, 1e9),
    "scores": (-1e9, 1e9),
}
"""Allowed ranges of stored values; comparisons with NaN fail."""
_WHOLE = ("images", "classes")


def _check(name: str, number: Any) -> None:
    """Refuse a value that is not a number or is out of range."""
    least, most = _RANGES[name]
    right_type = type(number) is int or (type(number) is float and name not in _WHOLE)
    if not right_type or not least <= number <= most:
        raise EaseError(f"the calibration is damaged: {name} is {number!a:.40}")


def expected_calibration_error(
    probabilities: Tensor | npt.ArrayLike, labels: Tensor | npt.ArrayLike, bins: int = 15
) -> float:
    """Mean gap between confidence and accuracy over bins of equal width, weighted by their numbers of images.

    Args:
        probabilities: [N, C].
        labels: [N].
        bins: Number of bins; a confidence on an edge belongs to the lower bin.
    """
    confidence, guess = torch.as_tensor(probabilities).double().max(dim=1)
    if not len(guess):
        raise ValueError("there is no image to measure the calibration error on")
    right = (guess == torch.as_tensor(labels)).double()
    bin_of = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.bincount(bin_of, weights=confidence - right, minlength=bins)
    return float(gaps.abs().sum() / len(guess))


def auroc(known_scores: Tensor | npt.ArrayLike, unknown_scores: Tensor | npt.ArrayLike) -> float:
    """Area under the ROC curve: how often an unknown image has a higher score than a known one; ties count half.

    Scores are those of `Calibration.unknown`: high means unknown.
    """
    from sklearn.metrics import roc_auc_score  # seconds to import

    known, unknown = np.asarray(known_scores), np.asarray(unknown_scores)
    truth = np.repeat([0, 1], [len(known), len(unknown)])
    return float(roc_auc_score(truth, np.concatenate([known, unknown])))


Own = tuple[tuple[float, int], ...]
"""See `Evidence.own`."""


def _mean_own(own: Own) -> float:
    """Mean over the classes of the mean own logit; 0 without any class that has images."""
    means = [mean for mean, count in own if count]
    return sum(means) / len(means) if means else 0.0


def _both(older: Own, newer: Own) -> Own:
    """Combine both; a class may have images in each."""
    length = max(len(older), len(newer))
    padded = (side + ((0.0, 0),) * (length - len(side)) for side in (older, newer))
    return tuple(
        ((count * mean + more * other) / (count + more) if count + more else 0.0, count + more)
        for (mean, count), (other, more) in zip(*padded, strict=True)
    )


def _offsets(own: Own, classes: int) -> Tensor:
    """`OFFSET_WEIGHT` times the surplus of a class's own logit over that of the other classes, [classes] in fp64.

    It is shrunk towards 0 for classes with few images, and 0 for a class without any.
    """
    average = _mean_own(own)
    found = [OFFSET_WEIGHT * count / (count + 1) * (mean - average) for mean, count in own]
    return torch.tensor((found + [0.0] * classes)[:classes], dtype=torch.float64)


def _known(logits: Tensor, offsets: Tensor) -> Tensor:
    """The score of being known, see `Calibration`: [N, C] in fp64 -> [N]."""
    best, where = logits.max(dim=-1)
    return best - offsets.to(logits.device)[where]


def _student(freedom: int) -> float:
    """95 % quantile of Student's t distribution (Cornish-Fisher expansion)."""
    z = _TAIL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _mixed(
    first: Sequence[float], second: Sequence[float], weights: tuple[float, float]
) -> tuple[float, ...]:
    """Quantiles at `SHARES` of the mixture of two distributions, each given by its quantiles at `SHARES`."""
    steps = np.unique([*first, *second])
    # A distribution jumps where many scores are equal: it is evaluated just below and just above.
    values = np.sort(np.concatenate([np.nextafter(steps, -np.inf), np.nextafter(steps, np.inf)]))
    below = sum(
        weight * np.interp(values, side, SHARES)
        for side, weight in zip((first, second), weights, strict=True)
    )
    mixed = np.interp(SHARES, np.asarray(below) / sum(weights), values)
    return tuple(np.maximum.accumulate(mixed).tolist())  # despite rounding
