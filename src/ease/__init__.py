"""Class-incremental learning with a frozen ViT: image classifiers that learn new classes without the old images.

The names below are the public API; each is loaded when it is first used, so that `import ease` does not import torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ease.api import create_method, list_datasets, list_methods, load_stream, run
    from ease.app.changes import Forgotten, Learned
    from ease.app.classifier import Classifier
    from ease.app.estimator import EaseClassifier
    from ease.app.prediction import Prediction
    from ease.backbone.zoo import load_backbone
    from ease.experiments.predictor import Predictor

__all__ = [
    "Classifier",
    "EaseClassifier",
    "Forgotten",
    "Learned",
    "Prediction",
    "Predictor",
    "__version__",
    "create_method",
    "list_datasets",
    "list_methods",
    "load_backbone",
    "load_stream",
    "run",
]
__version__ = "0.2.0"

_MODULES = {
    "Classifier": "ease.app.classifier",
    "EaseClassifier": "ease.app.estimator",
    "Forgotten": "ease.app.changes",
    "Learned": "ease.app.changes",
    "Prediction": "ease.app.prediction",
    "Predictor": "ease.experiments.predictor",
    "create_method": "ease.api",
    "list_datasets": "ease.api",
    "list_methods": "ease.api",
    "load_backbone": "ease.backbone.zoo",
    "load_stream": "ease.api",
    "run": "ease.api",
}


def __getattr__(name: str) -> Any:
    """Load a name of the public API (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'ease' has no attribute '{name}'")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
