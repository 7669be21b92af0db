"""One paper's idea per file. What several methods share is in the modules that begin with an underscore.

Every method can be imported from here by the name of its class:

    from ease.methods import Ease, SimpleCil
"""

from __future__ import annotations

from typing import Any

from ease.methods._base import Costs, Files, Forgetting, Kind, Learner, Settings, Subspace
from ease.methods._compaction import Compactable, Compaction
from ease.methods._prompting import Prompted, PromptLearner
from ease.methods._registry import faults, find_method, methods, register
from ease.methods._saving import (
    BACKBONE_FILE,
    backbone_fields,
    backbone_of,
    class_fields,
    making_sense,
    open_model,
    restore_learner,
    save_model,
    weights_beside,
)
from ease.methods._tuned_head import TunedHead

__all__ = [
    "BACKBONE_FILE",
    "Compactable",
    "Compaction",
    "Costs",
    "Files",
    "Forgetting",
    "Kind",
    "Learner",
    "PromptLearner",
    "Prompted",
    "Settings",
    "Subspace",
    "TunedHead",
    "backbone_fields",
    "backbone_of",
    "class_fields",
    "faults",
    "find_method",
    "making_sense",
    "methods",
    "open_model",
    "register",
    "restore_learner",
    "save_model",
    "weights_beside",
]


def __getattr__(name: str) -> Any:
    """A registered method by the name of its class."""
    if not name.startswith("_"):
        for method in methods().values():
            if method.__name__ == name:
                return method
    raise AttributeError(f"module 'ease.methods' has no attribute '{name}'")
