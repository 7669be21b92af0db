"""How likely the labels of images are, given the scores that a head without the image in question gives them.

The scores are turned into probabilities by one temperature, which is fitted together with the share of wrong labels:

    P(label = y | image) = (1 - e) p_y + e (1 - p_y) / (C - 1),    p = softmax(scores / T).

The share e takes up what a few wrong labels would otherwise do to the temperature. If p is right, then a threshold has
an expected rate of false alarms in closed form, for a folder of unknown difficulty and without one known error: draw
the right label of each image from its own p, and count how often the value of the label drawn is below the threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STEPS = 100
"""Most steps of the fit, which has two parameters."""
TEMPERATURES = (1e-3, 10.0)
"""Bounds of the temperature; cosines of different classes differ by hundredths to tenths."""


@dataclass(frozen=True)
class LabelNoise:
    """The fitted model.

    Attributes:
        temperature: T.
        wrong: e, the estimated share of wrong labels.
        probabilities: p, [N, C] in fp64.
    """

    temperature: float
    wrong: float
    probabilities: Tensor

    @staticmethod
    def fit(scores: Tensor, labels: Tensor) -> LabelNoise:
        """Fit temperature and share of wrong labels by maximum likelihood.

        Args:
            scores: [N, C] with C > 1; each row as a head without the image would give it.
            labels: [N].

        Example:
            >>> scores = torch.eye(3).repeat(20, 1)
            >>> labels = torch.arange(3).repeat(20)
            >>> labels[0] = 2
            >>> noise = LabelNoise.fit(scores, labels)
            >>> noise.doubts(labels).argmax().item(), round(noise.wrong, 3)
            (0, 0.017)
        """
        scores, classes = scores.double(), scores.shape[1]
        log_temperature = torch.tensor(0.05, dtype=torch.float64).log().requires_grad_()
        wrong = torch.tensor(-4.0, dtype=torch.float64, requires_grad=True)
        low, high = (torch.tensor(bound).log().item() for bound in TEMPERATURES)

        def own(log_t: Tensor) -> Tensor:
            p = (scores / log_t.clamp(low, high).exp()).softmax(dim=1)
            return p.gather(1, labels[:, None])[:, 0]

        optimizer = torch.optim.LBFGS([log_temperature, wrong], max_iter=STEPS, line_search_fn="strong_wolfe")

        def loss() -> Tensor:
            optimizer.zero_grad()
            p, e = own(log_temperature), wrong.sigmoid()
            value = -((1 - e) * p + e * (1 - p) / (classes - 1)).clamp(min=1e-300).log().mean()
            value.backward()
            return value

        with torch.enable_grad():
            optimizer.step(loss)
        temperature = log_temperature.detach().clamp(low, high).exp()
        return LabelNoise(
            float(temperature), float(wrong.detach().sigmoid()), (scores / temperature).softmax(dim=1)
        )

    def of_labels(self, labels: Tensor) -> Tensor:
        """The probability of each image's label, [N]."""
        return self.probabilities.gather(1, labels[:, None])[:, 0]

    def doubts(self, labels: Tensor, at_least: float = 0.0) -> Tensor:
        """The probability that each label is wrong, [N].

        Args:
            labels: [N].
            at_least: Lower bound of the share of wrong labels, where hardly any was found.
        """
        right, share = self.of_labels(labels), max(self.wrong, at_least)
        by_mistake = share * (1 - right) / (self.probabilities.shape[1] - 1)
        return by_mistake / ((1 - share) * right + by_mistake).clamp(min=1e-300)

    def threshold(self, values: Tensor, rate: float) -> float:
        """The value below which a right label falls with this probability.

        Args:
            values: [N, C], what each label of each image would be judged by, such as `probabilities`.
            rate: Expected rate of false alarms, in [0, 1].
        """
        order = values.double().flatten().argsort()
        expected = self.probabilities.flatten()[order].cumsum(0) / len(values)
        below = int((expected <= rate).sum())
        return float(values.flatten()[order[below]]) if below < len(order) else float("inf")
