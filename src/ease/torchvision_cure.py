"""Lets `import torchvision` work beside a CPU-only torch.

The default torchvision wheel links its compiled operators against CUDA. Without CUDA they do not load, and the
import dies while registering fake kernels for operators that do not exist. Declaring their schemas first is enough:
transforms, datasets and timm never call them. Where torchvision imports by itself, this does nothing.
"""

from __future__ import annotations

import importlib
import sys

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_library: torch.library.Library | None = None


def cure() -> bool:
    """Import torchvision, declaring its missing operators if it needs that. True if the cure was needed."""
    global _library
    try:
        importlib.import_module("torchvision")
        return False
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
    for name in [m for m in sys.modules if m == "torchvision" or m.startswith("torchvision.")]:
        del sys.modules[name]
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            _library.define(name + schema)
    importlib.import_module("torchvision")
    return True


cure()
