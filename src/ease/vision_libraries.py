"""Imports torchvision and timm, which takes three measures.

**Operators.** The default torchvision wheel links its compiled operators against CUDA. Beside a CPU-only torch they do
not load, and the import dies while registering fake kernels for operators that do not exist. Declaring their schemas
first is enough: transforms, datasets and timm never call them.

**Torch's compiler.** Both libraries import it, to mark functions that it must not compile and to ask whether it is
supported. That takes longer than everything else a prediction needs, so they are given stand-ins that import it when
it is needed.

**Its cache.** The compiler makes a folder for its cache when it is imported, although nothing is compiled. For that
moment its place is a folder that is there already. What is compiled later goes where it always went.

Where torchvision imports by itself, no schema is declared; where the compiler is imported already, it is used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch
import torch.compiler

COMPILER = "torch._dynamo"
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


@contextlib.contextmanager
def _compiler_later() -> Iterator[None]:
    """Inside the `with`, imported modules get stand-ins for the parts of torch's compiler that they use."""
    if COMPILER in sys.modules:
        yield
        return
    real = torch.compiler.disable
    stand_ins: dict[str, ModuleType] = {name: _StandIn(name) for name in (COMPILER, f"{COMPILER}.utils")}
    vars(stand_ins[f"{COMPILER}.utils"])["is_compile_supported"] = _is_compile_supported
    sys.modules.update(stand_ins)
    torch.compiler.disable = functools.partial(_disable, real)
    try:
        yield
    finally:
        torch.compiler.disable = real
        _remove(stand_ins)


class _StandIn(ModuleType):
    """A module that is imported when something is asked of it that it does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        _remove({name: module for name, module in sys.modules.items() if isinstance(module, _StandIn)})
        return getattr(importlib.import_module(self.__name__), name)


def _remove(stand_ins: dict[str, ModuleType]) -> None:
    for name, module in stand_ins.items():
        if sys.modules.get(name) is module:
            del sys.modules[name]


def _is_compile_supported(device_type: str) -> bool:
    return bool(importlib.import_module(f"{COMPILER}.utils").is_compile_supported(device_type))


def _disable(real: Callable[..., Any], fn: Any = None, *args: Any, **kwargs: Any) -> Any:
    """`torch.compiler.disable` that does not import the compiler: as long as that is not there, nothing is compiled."""
    if not callable(fn) or isinstance(fn, type):
        return real(fn, *args, **kwargs)
    disabled: list[Any] = []

    @functools.wraps(fn)
    def call(*inputs: Any, **named: Any) -> Any:
        if not disabled:
            if COMPILER not in sys.modules:
                return fn(*inputs, **named)
            disabled.append(real(fn, *args, **kwargs))
        return disabled[0](*inputs, **named)

    return call


class _WithoutCacheFolder(MetaPathFinder):
    """Gives torch's compiler a cache folder that is there already, for the moment in which it is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See `MetaPathFinder`."""
        if name not in (COMPILER, "torch._inductor"):
            return None
        with contextlib.suppress(ValueError):  # of two threads, one was first
            sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                with _existing_cache_folder():
                    execute(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _existing_cache_folder() -> Iterator[None]:
    name = "TORCHINDUCTOR_CACHE_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = tempfile.gettempdir()
    try:
        yield
    finally:
        os.environ.pop(name, None)


if COMPILER not in sys.modules:
    sys.meta_path.insert(0, _WithoutCacheFolder())
with _compiler_later():
    cure()
    for _name in ("torchvision.transforms.v2", "timm"):
        importlib.import_module(_name)
