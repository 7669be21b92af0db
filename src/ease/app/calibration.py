"""How sure a prediction is, and whether an image is of no known class: pure functions on logits.

Images that a model did not learn from say how far its logits can be trusted: those held out, and, where a method can
tell, each learned image as a model without it would have judged it. They are used once and forgotten like all others;
what stays are sums over many of them.
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
"""The share of a class that is not learned from."""
ACCEPTED = 0.95
"""How many images of known classes should be taken as such."""
TEMPERATURES = (1e-3, 1e3)
"""Cosines need about .01 to .1, logits of trained heads about 1 to 10."""

NOVELTY = 0.25
"""How much of what a class's own images have more than others is taken from the score of an image."""
GRID = tuple(np.geomspace(*TEMPERATURES, 61).tolist())
"""Temperatures at which confidences are summed."""
_TENTHS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
SHARES = (0.0, 0.01, 0.02, 0.03, 0.04, 1 - ACCEPTED, 0.06, 0.07, 0.08, 0.1, 0.12, 0.15, *_TENTHS)
"""Where the distribution of scores is written down: closely around the share that is rejected."""
MANY = 100
"""So many images show what the worst twentieth of all looks like."""
MOST_CLASSES = 10**6
VERSION = 2
"""Of what `Calibration.as_json` writes."""

_TAIL = 1.645
"""How many deviations below the mean a normal distribution has 5 % of its weight."""
_ABOVE = float(np.nextafter(np.float32(0.5), np.float32(1)))
"""The first number above a half."""


def hold_out(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """(to learn from, held out): a tenth of each class, at least one image; none of a class with under `FEW_IMAGES`.

    Chosen by content, so that neither names nor the order of files matter, and equal files are on the same side. An
    image that is in two classes is learned from: what it really shows is not known.
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
    """Sums over judged images that later ones are added to; no image, and nothing of a single one.

    Each image counts as often as there were classes to choose from when it was judged: the more there were, the more
    the model was like the one of today.

    Attributes:
        weight: the images, so weighed.
        right: those that were recognised, so weighed.
        classes: the most there were to choose from.
        confidences: the sum of their confidences at each temperature of `GRID`, so weighed.
        own: of each class the mean logit that its own images had for it, and how many they were.
        scores: how known the images were, so weighed: at `SHARES` of them the score that so many are below.
    """

    weight: float
    right: float
    classes: int
    confidences: tuple[float, ...]
    own: Own
    scores: tuple[float, ...]

    @classmethod
    def of(cls, logits: Tensor, labels: Tensor, older: Evidence | None) -> Evidence:
        """From logits [N, C] in fp64, N > 0, of images whose classes are `labels` [N].

        What classes usually have is taken from the older images too.
        """
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
        # The older scores are moved to what is usual now.
        moved = NOVELTY * (_usual(own) - _usual(self.own)) if any(count for _, count in self.own) else 0.0
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
        """What so many times as many images would be, if they were like these but had led to these two numbers.

        It stands for what the first version did not write down.
        """
        sure = tuple(times * each for each in self.confidences)
        right = float(np.interp(math.log(temperature), np.log(GRID), sure))
        least = self.scores[SHARES.index(1 - ACCEPTED)]
        scores = tuple(score - least + threshold for score in self.scores)
        return Evidence(times * self.weight, right, self.classes, sure, (), scores)

    def temperature(self) -> float:
        """At which the mean confidence is the share of images recognised, within `TEMPERATURES`.

        The share is Laplace's (right + 1) / (images + 2): a few images that are all right do not make a model certain.
        """
        gaps = np.array(self.confidences) - self.weight * (self.right + self.classes) / (
            self.weight + 2 * self.classes
        )
        if self.confidences[0] - self.confidences[-1] <= 1e-9 * self.weight:  # the same at any temperature
            return 1.0
        return float(np.exp(np.interp(0.0, -gaps, np.log(GRID))))

    def threshold(self, images: int, spread: float) -> float:
        """Accepts 95 % of the images.

        A few images do not show what the worst twentieth looks like, so for less than `MANY` it is drawn to what the
        next image of a normal distribution would be above 19 times in 20, if that is lower (Student's t).

        Args:
            images: how many there were.
            spread: the deviation to assume of a single one.
        """
        least = self.scores[SHARES.index(1 - ACCEPTED)]
        mean, square = (float(np.trapezoid(np.power(self.scores, power), SHARES)) for power in (1, 2))
        if images > 1:
            deviation = math.sqrt(max(0.0, square - mean**2) * images / (images - 1) * (1 + 1 / images))
            deviations = _student(images - 1)
        else:
            deviation, deviations = spread, _TAIL
        trust = min(1.0, images / MANY)
        return least - (1 - trust) * max(0.0, least - (mean - deviations * deviation))


@dataclass(frozen=True)
class Calibration:
    """What images that were not learned from taught about a model's logits.

    An image is as known as its largest logit is high, seen from what that class's own images usually have: some classes
    lie apart from all others, and even a poor image of them scores high. `benchmarks/unknowns.py` compares it with
    other scores. It counts as known if that reaches the threshold.

    Attributes:
        temperature: logits are divided by it before the softmax.
        threshold: the score of an image of a known class is hardly ever below it.
        images: how many are behind it; 0 means uncalibrated.
        ece_before: expected calibration error of the newest images at temperature 1; None where nothing was fitted to
            them, as with a single class.
        ece_after: the same at the temperature that was found.
        evidence: what later images are added to; None in models of the first versions, which had none.
    """

    temperature: float
    threshold: float
    images: int
    ece_before: float | None
    ece_after: float | None
    evidence: Evidence | None = None

    @classmethod
    def none(cls) -> Calibration:
        """Of a model that no image was held out from."""
        return cls(1.0, 0.0, 0, None, None)

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor) -> Calibration:
        """From images of a model's first task, see `joined`; `none()` without any, or with a single number to go by."""
        return cls.none().joined(logits, labels)

    def joined(self, logits: Tensor, labels: Tensor) -> Calibration:
        """With more images, judged by a model that did not learn from them, after it has learned more classes.

        Old images are gone, but the mean confidence that they had at every temperature is not; so the temperature is
        found anew: the one at which the mean confidence of all images is the share of them that was recognised.

        The threshold accepts 95 % of all images; of old ones it is known how their scores were distributed.

        Args:
            logits: [N, C].
            labels: [N], below C.
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
        if logits.shape[1] == 1:  # nothing to be told apart from
            before, after = self.ece_before, self.ece_after
        else:
            before, after = (
                expected_calibration_error((logits / t).softmax(dim=1), labels) for t in (1.0, temperature)
            )
        return Calibration(temperature, threshold, images, before, after, both)

    def without(self, position: int) -> Calibration:
        """After the class at this position was forgotten: what its own images had is gone with it."""
        if self.evidence is None:
            return self
        own = self.evidence.own[:position] + self.evidence.own[position + 1 :]
        return replace(self, evidence=replace(self.evidence, own=own))

    @property
    def calibrated(self) -> bool:
        """Whether any image is behind it."""
        return self.images > 0

    def confidences(self, logits: Tensor) -> Tensor:
        """[N, C] -> probabilities [N, C]."""
        return (logits / self.temperature).softmax(dim=-1)

    def offsets(self, classes: int) -> Tensor:
        """What the score of an image that is taken for a class is lowered by, [classes] in fp64."""
        return _offsets(() if self.evidence is None else self.evidence.own, classes)

    def unknown(self, logits: Tensor) -> Tensor:
        """How likely an image is of no known class, [N, C] -> [N] in [0, 1]: above .5 exactly when it is rejected.

        Grows as the largest logit, less the offset of its class, falls; NaN when uncalibrated. No branch depends on the
        logits, so it can be traced.
        """
        if not self.calibrated:
            return torch.full_like(logits[..., 0], math.nan, dtype=torch.float32)
        known = _known(logits.double(), self.offsets(logits.shape[-1]))
        score = torch.sigmoid((self.threshold - known) / self.temperature).float()
        return torch.where(known < self.threshold, score.clamp(min=_ABOVE), score.clamp(max=0.5))

    def as_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {"version": VERSION, **asdict(self)}

    @classmethod
    def of_json(cls, value: object, classes: int | None = None) -> Calibration:
        """The inverse of `as_json`. A manifest may come from anywhere, so all of it is checked.

        Args:
            value: what a manifest says. Those of the first version say neither `version` nor `evidence`.
            classes: how many the model has, where that is known.
        """
        names = [field.name for field in fields(cls)]
        if not isinstance(value, dict):
            raise EaseError("the calibration is damaged: it is no table of values")
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
"""What a stored calibration may hold; comparisons with NaN fail."""
_WHOLE = ("images", "classes")


def _check(name: str, number: Any) -> None:
    """Refuse what is no number, or none that can be meant."""
    least, most = _RANGES[name]
    right_type = type(number) is int or (type(number) is float and name not in _WHOLE)
    if not right_type or not least <= number <= most:
        raise EaseError(f"the calibration is damaged: {name} is {number!a:.40}")


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


Own = tuple[tuple[float, int], ...]
"""See `Evidence.own`."""


def _usual(own: Own) -> float:
    """The mean over the classes of what their own images had; 0 without any."""
    means = [mean for mean, count in own if count]
    return sum(means) / len(means) if means else 0.0


def _both(older: Own, newer: Own) -> Own:
    """The same of the images of both; a class may have some in each."""
    length = max(len(older), len(newer))
    padded = (side + ((0.0, 0),) * (length - len(side)) for side in (older, newer))
    return tuple(
        ((count * mean + more * other) / (count + more) if count + more else 0.0, count + more)
        for (mean, count), (other, more) in zip(*padded, strict=True)
    )


def _offsets(own: Own, classes: int) -> Tensor:
    """What a class's own images have more than those of other classes, by `NOVELTY` of it, [classes] in fp64.

    Drawn towards 0 where few images are behind it; 0 for a class without any.
    """
    usual = _usual(own)
    found = [NOVELTY * count / (count + 1) * (mean - usual) for mean, count in own]
    return torch.tensor((found + [0.0] * classes)[:classes], dtype=torch.float64)


def _known(logits: Tensor, offsets: Tensor) -> Tensor:
    """See `Calibration`: [N, C] in fp64 -> [N]."""
    best, where = logits.max(dim=-1)
    return best - offsets.to(logits.device)[where]


def _student(freedom: int) -> float:
    """How many estimated deviations below an estimated mean 5 % of the weight is (Cornish and Fisher's expansion)."""
    z = _TAIL
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _mixed(
    first: Sequence[float], second: Sequence[float], weights: tuple[float, float]
) -> tuple[float, ...]:
    """Two distributions as one: each is given, and wanted, as its quantiles at `SHARES`."""
    steps = np.unique([*first, *second])
    # Where many scores are equal a distribution jumps; it is looked at just before and just behind.
    values = np.sort(np.concatenate([np.nextafter(steps, -np.inf), np.nextafter(steps, np.inf)]))
    below = sum(
        weight * np.interp(values, side, SHARES)
        for side, weight in zip((first, second), weights, strict=True)
    )
    mixed = np.interp(SHARES, np.asarray(below) / sum(weights), values)
    return tuple(np.maximum.accumulate(mixed).tolist())  # whatever rounding does
