"""Where the batches of a served model are scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from ease.app.classifier import Classifier


class Scorer(Protocol):
    """Turns batches into logits.

    Attributes:
        lanes: batches that can be scored at the same time.
    """

    @property
    def lanes(self) -> int: ...

    def logits(
        self, classifier: Classifier, checksum: str, pixels: Tensor, cancelled: Callable[[], bool]
    ) -> Tensor:
        """Scores of all classes.

        Args:
            classifier: the generation that answers.
            checksum: of its manifest.
            pixels: [N, 3, s, s], as the backbone reads them.
            cancelled: asked now and then; if it returns True, the work ends with `PredictionCancelledError`.

        Returns:
            Logits [N, classes].
        """
        ...

    def take_over(self, checksum: str, cancelled: Callable[[], bool]) -> bool:
        """Get ready to score with the generation whose manifest has this checksum.

        Args:
            checksum: of the manifest.
            cancelled: as for `logits`.

        Returns:
            False if the model directory has a newer one by now.
        """
        ...


class OwnScorer:
    """Scores with the classifier that is loaded anyway, one batch after the other."""

    lanes = 1

    def logits(
        self, classifier: Classifier, checksum: str, pixels: Tensor, cancelled: Callable[[], bool]
    ) -> Tensor:
        """See `Scorer`."""
        return classifier.predictor.logits(pixels, cancelled=cancelled)

    def take_over(self, checksum: str, cancelled: Callable[[], bool]) -> bool:
        """See `Scorer`."""
        return True
