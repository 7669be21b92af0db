"""What a model says about an image: one schema for Python, `ease predict --json` and `POST /predict`."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field

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
        is_unknown: Whether the image is more likely none of the classes than one of them.
        calibrated: Whether the confidences were fitted on held-out images.
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
    corrected: bool = Field(
        False, description="whether a person has named this very photo: the answer is that name"
    )

    @computed_field(description="whether the image is more likely none of the classes")  # type: ignore[prop-decorator]
    @property
    def is_unknown(self) -> bool:
        """Whether the image is more likely none of the classes than one of them."""
        return self.unknown is not None and self.unknown > UNKNOWN_THRESHOLD

    @property
    def name(self) -> str:
        """The most likely class."""
        return self.classes[0].name

    @property
    def confidence(self) -> float:
        """The confidence in the most likely class."""
        return self.classes[0].confidence

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
        version: Of this schema.
        generation: Of the model that made all of the predictions.
        calibrated: Whether confidences were fitted on held-out images.
        predictions: One for each image, in their order.
    """

    version: Literal[1] = 1
    generation: int = Field(description="of the model that made all of the predictions")
    calibrated: bool = Field(description="whether confidences were fitted on held-out images")
    predictions: tuple[Prediction, ...]
