"""Lets `import torchvision` work beside a CPU-only torch.

The default torchvision wheel links its compiled operators against CUDA. Without CUDA they do not load, and the
import dies while registering fake kernels for operators that do not exist. Declaring their schemas first is enough:
transforms, datasets and timm never call them. Where torchvision imports by itself, this does nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import tempfile
from collections.abc import Iterator

import torch

_SCHEMAS = {
    "nms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_library: torch.library.Library | None = None


def cure() -> bool:
    """Import torchvision, declaring its missing operators if it needs that. True if the cure was needed."""
    with _without_cache_folder():
        return _cure()


@contextlib.contextmanager
def _without_cache_folder() -> Iterator[None]:
    """Torchvision imports torch's compiler, which makes a folder for its cache although nothing is compiled.

    For that moment its place is a folder that is there already. What is compiled later goes where it always went.
    """
    name = "TORCHINDUCTOR_CACHE_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(name, None)


def _cure() -> bool:
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
