"""What a model says about an image: one schema for Python, `ease predict --json` and `POST /predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

from ease.errors import EaseError

UNKNOWN_THRESHOLD = 0.5
"""An image whose unknown score is above this is taken for none of the classes."""


class ClassConfidence(BaseModel):
    """A class that an image may show."""

    model_config = ConfigDict(frozen=True)

    name: str
    confidence: float = Field(
        description="probability of the class, in [0, 1]; over all classes they add up to 1"
    )


class Prediction(BaseModel):
    """What one image shows.

    Attributes:
        file: The image's file name, where it has one.
        classes: The most likely classes with their confidences, the best one first.
        unknown: From 0 (certainly a known class) to 1 (certainly none of them); None if the model is not calibrated.
        threshold: An unknown score above this means that the image is taken for none of the classes.
        is_unknown: Whether the unknown score is above the threshold.
        calibrated: Whether the confidences were fitted on held-out images.
        error: Why the image could not be used, in one sentence; then `classes` is empty. None if it could be used.
        corrected: Whether a person has named this very photo: the answer is that name, with confidence 1.

    Example:
        >>> from ease import Prediction
        >>> found = Prediction(classes=[{"name": "cat", "confidence": 0.9}], unknown=0.2, calibrated=True)
        >>> found.name, found.confidence, found.is_unknown
        ('cat', 0.9, False)
    """

    model_config = ConfigDict(frozen=True)

    file: str | None = Field(None, description="the image's file name, where it has one")
    unknown: float | None = Field(
        description="0: certainly a known class, 1: certainly none; null if the model is not calibrated"
    )
    classes: tuple[ClassConfidence, ...] = Field(description="the most likely classes, the best one first")
    calibrated: bool = Field(description="whether confidences were fitted on held-out images")
    threshold: float = Field(
        UNKNOWN_THRESHOLD, description="an unknown score above this means: none of the classes"
    )
    error: str | None = Field(
        None, description="why the image could not be used, in one sentence; then there are no classes"
    )
    corrected: bool = Field(
        False, description="whether a person has named this very photo: the answer is that name"
    )

    @computed_field(description="whether the unknown score is above the threshold")  # type: ignore[prop-decorator]
    @property
    def is_unknown(self) -> bool:
        """Whether the image is more likely none of the classes than one of them."""
        return self.unknown is not None and self.unknown > self.threshold

    @classmethod
    def failed(cls, file: str, error: str, *, calibrated: bool) -> Prediction:
        """The prediction for an image that could not be used.

        Args:
            file: The name of the image.
            error: Why, in one sentence.
            calibrated: Whether the confidences of the model were fitted on held-out images.
        """
        return cls(file=file, unknown=None, classes=(), calibrated=calibrated, error=error)

    @property
    def name(self) -> str:
        """The most likely class. For an image that could not be used, this raises its error."""
        return self._best.name

    @property
    def confidence(self) -> float:
        """The confidence in the most likely class. For an image that could not be used, this raises its error."""
        return self._best.confidence

    @property
    def _best(self) -> ClassConfidence:
        if self.error is not None:
            raise EaseError(self.error)
        return self.classes[0]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of `classes`."""
        return tuple(each.name for each in self.classes)

    @property
    def confidences(self) -> tuple[float, ...]:
        """The confidences of `classes`."""
        return tuple(each.confidence for each in self.classes)


class Predictions(BaseModel):
    """What `ease predict --json` prints and `POST /predict` answers.

    Attributes:
        version: Of this schema. Fields may be added without a new version: readers ignore what they do not know. A
            field that goes, or that means something else, makes a new one.
        generation: Of the model that made all of the predictions.
        calibrated: Whether confidences were fitted on held-out images.
        predictions: One for each image, in their order.
    """

    version: Literal[1] = 1
    generation: int = Field(description="of the model that made all of the predictions")
    calibrated: bool = Field(description="whether confidences were fitted on held-out images")
    predictions: tuple[Prediction, ...]


def no_finite_scores(model: Path) -> EaseError:
    """The error for a model whose answers are no numbers."""
    return EaseError(f"the model in {model} gives no finite scores: it is damaged, or its training diverged")
