"""Class-incremental learning with a frozen ViT: one light adapter per task, no old image kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ease.app.classifier import Classifier, Forgotten, Learned, Prediction
    from ease.app.estimator import EaseClassifier

__all__ = ["Classifier", "EaseClassifier", "Forgotten", "Learned", "Prediction", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The classifier is loaded when it is asked for: it brings torch, which takes seconds."""
    if name == "EaseClassifier":
        from ease.app.estimator import EaseClassifier

        return EaseClassifier
    if name in ("Classifier", "Forgotten", "Learned", "Prediction"):
        from ease.app import classifier

        return getattr(classifier, name)
    raise AttributeError(f"module 'ease' has no attribute '{name}'")
