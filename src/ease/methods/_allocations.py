"""A bound on what may be allocated while a saved model is restored, checked before each allocation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

_OF_SIZE = frozenset(
    f"aten::{name}" for name in ("empty", "zeros", "ones", "full", "rand", "randn", "randint")
)
_OF_ANOTHER = frozenset(f"aten::new_{name}" for name in ("empty", "zeros", "ones", "full"))


class AllocationError(ValueError):
    """More numbers are asked for than the files of a model can account for."""


class _Bounded(TorchDispatchMode):
    def __init__(self, numbers: int) -> None:
        super().__init__()
        self._left = numbers

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Nothing is compiled while a model is restored: torch's compiler need not be imported to leave this alone.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._left -= _numbers(func, args)
        if self._left < 0:
            raise AllocationError("its settings ask for more memory than its files account for")
        return func(*args, **(kwargs or {}))


def _numbers(func: Any, args: Any) -> int:
    name = func._schema.name
    if name in _OF_SIZE:
        size = next((arg for arg in args if isinstance(arg, (list, tuple))), ())
        return math.prod(size)
    if name in _OF_ANOTHER:
        return math.prod(args[1])
    return args[0] * args[0] if name == "aten::eye" and isinstance(args[0], int) else 0


@contextmanager
def bounded_allocations(numbers: int) -> Iterator[None]:
    """Inside the `with`, raise an `AllocationError` before new tensors have more than this many numbers together.

    Settings in a manifest say how large a model is; a forged one could ask for any amount of memory. Copies of
    tensors that exist are not counted.
    """
    with _Bounded(numbers):
        yield
