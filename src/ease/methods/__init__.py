"""All methods, one file or package per paper. Modules that begin with an underscore hold what several methods share.

Every method can be imported from here by the name of its class:

    >>> from ease.methods import Ease, SimpleCil
    >>> Ease.title, SimpleCil.title
    ('EASE', 'SimpleCIL')
"""

from __future__ import annotations

from typing import Any

from ease.methods._base import Costs, Files, Forgetting, Kind, Learner, Settings, Subspace
from ease.methods._capabilities import (
    Budgeted,
    Compactable,
    Compaction,
    ComparesImages,
    Extendable,
    Forgettable,
    JudgesLabels,
    PrototypesPerSubspace,
    SharesTrainings,
    compactable,
    extendable,
    forgettable,
    set_budget,
)
from ease.methods._older_settings import current_settings
from ease.methods._prompting import Prompted, PromptLearner
from ease.methods._registry import faults, find_method, method_title, methods, register
from ease.methods._saving import (
    backbone_fields,
    backbone_of,
    check_answers,
    class_fields,
    making_sense,
    open_model,
    restore_learner,
    save_model,
)
from ease.methods._tuned_head import TunedHead
from ease.methods._weights import BACKBONE_FILE, remembered_weights, weights_beside, with_weights

__all__ = [
    "BACKBONE_FILE",
    "Budgeted",
    "Compactable",
    "Compaction",
    "ComparesImages",
    "Costs",
    "Extendable",
    "Files",
    "Forgettable",
    "Forgetting",
    "JudgesLabels",
    "Kind",
    "Learner",
    "PromptLearner",
    "Prompted",
    "PrototypesPerSubspace",
    "Settings",
    "SharesTrainings",
    "Subspace",
    "TunedHead",
    "backbone_fields",
    "backbone_of",
    "check_answers",
    "class_fields",
    "compactable",
    "current_settings",
    "extendable",
    "faults",
    "find_method",
    "forgettable",
    "making_sense",
    "method_title",
    "methods",
    "open_model",
    "register",
    "remembered_weights",
    "restore_learner",
    "save_model",
    "set_budget",
    "weights_beside",
    "with_weights",
]


def __getattr__(name: str) -> Any:
    """Return a registered method by the name of its class."""
    if not name.startswith("_"):
        for method in methods().values():
            if method.__name__ == name:
                return method
    raise AttributeError(f"module 'ease.methods' has no attribute '{name}'")
