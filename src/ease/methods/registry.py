"""One registry for all methods: ours by decorator, others' by the entry-point group `ease.methods`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import TypeVar

from ease.errors import EaseError, unknown
from ease.methods.base import Learner

L = TypeVar("L", bound=type[Learner])
_methods: dict[str, type[Learner]] = {}
_aliases: dict[str, str] = {}


def register(*aliases: str) -> Callable[[L], L]:
    """Make a learner known by its `name` and by other names people use for it."""

    def add(learner: L) -> L:
        if learner.name in _methods and _methods[learner.name] is not learner:
            raise EaseError(f"two methods are called '{learner.name}': rename one")
        _methods[learner.name] = learner
        _aliases.update(dict.fromkeys(aliases, learner.name))
        return learner

    return add


@cache
def _discover() -> None:
    package = importlib.import_module("ease.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"ease.methods.{module.name}")
    for entry in entry_points(group="ease.methods"):
        try:
            learner = entry.load()
        except Exception as error:
            raise EaseError(
                f"method '{entry.name}' from package '{entry.dist}' cannot be loaded: {error}"
            ) from error
        register()(learner)


def methods() -> dict[str, type[Learner]]:
    """All methods by name, in alphabetical order."""
    _discover()
    return dict(sorted(_methods.items()))


def find_method(name: str) -> type[Learner]:
    """The method of this name or alias."""
    known = methods()
    key = name.lower().replace("_", "-")
    key = _aliases.get(key, key)
    if key not in known:
        raise unknown("method", name, [*known, *_aliases])
    return known[key]
