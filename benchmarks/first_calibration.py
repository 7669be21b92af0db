"""How the first versions of the app calibrated: to be measured against, see `unknowns.py`.

One temperature and one threshold for the largest logit, fitted to the held-out tenth of each task and averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ease.app.calibration import ACCEPTED, TEMPERATURES

TAIL = 1.645
STEPS = 45


@dataclass(frozen=True)
class FirstCalibration:
    """A temperature, a threshold, how many images are behind them, and whether the temperature was fitted at all."""

    temperature: float = 1.0
    threshold: float = 0.0
    images: int = 0
    fitted: bool = False

    @classmethod
    def fit(cls, logits: Tensor, labels: Tensor) -> FirstCalibration:
        """From held-out images: logits [N, C], labels [N]."""
        if logits.numel() < 2:
            return cls()
        logits, labels = logits.double(), labels.long()
        threshold = _threshold(logits)
        if logits.shape[1] == 1:
            return cls(1.0, threshold, len(labels))
        return cls(_temperature(logits, labels), threshold, len(labels), True)

    def joined(self, newer: FirstCalibration) -> FirstCalibration:
        """Means, weighted by the numbers of images: of the thresholds, and of the logarithms of the temperatures."""
        if not self.images or not newer.images:
            return newer if newer.images else self
        images = self.images + newer.images
        share = newer.images / images
        threshold = (1 - share) * self.threshold + share * newer.threshold
        fitted = [side for side in (self, newer) if side.fitted] or [newer]
        logs = [math.log(side.temperature) for side in fitted]
        mean = logs[0] if len(logs) == 1 else (1 - share) * logs[0] + share * logs[1]
        return FirstCalibration(_clipped(math.exp(mean)), threshold, images, fitted[-1].fitted)

    def confidences(self, logits: Tensor) -> Tensor:
        """[N, C] -> [N, C]."""
        return (logits / self.temperature).softmax(dim=-1)

    def unknown(self, logits: Tensor) -> Tensor:
        """[N, C] -> [N], above .5 exactly for those that are rejected."""
        return torch.sigmoid((self.threshold - logits.double().amax(dim=-1)) / self.temperature)


def _temperature(logits: Tensor, labels: Tensor) -> float:
    """The likeliest, but no colder than n images vouch for: a mean confidence of (n + 1) / (n + 2)."""
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
    for _ in range(STEPS):
        middle = (cold + hot) / 2
        if rising(math.exp(-middle)) < 0:
            hot = middle
        else:
            cold = middle
    return _clipped(math.exp((cold + hot) / 2))


def _clipped(temperature: float) -> float:
    return min(max(temperature, TEMPERATURES[0]), TEMPERATURES[1])


def _threshold(logits: Tensor) -> float:
    """Accepts 95 % of the images, or of a normal distribution like theirs, whichever is lower."""
    scores, count = logits.amax(dim=1).sort().values, len(logits)
    if count > 1:
        unbiased = (4 * count - 4) / (4 * count - 3)
        deviation = float(scores.std()) / unbiased
    else:
        deviation = float(logits.std())
    return min(float(scores[int((1 - ACCEPTED) * count)]), float(scores.mean()) - TAIL * deviation)
