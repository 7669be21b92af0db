"""The registry of methods.

Methods of this package are registered by a decorator, methods of other packages by the entry-point group
`ease.methods`. A method of another package that cannot be used does not affect the others: listings name it together
with the reason, and asking for it is an error. It cannot take the name of a method of this package.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint
from typing import TypeVar, get_args

from ease.errors import EaseError, unknown
from ease.methods._base import Kind, Learner
from ease.plugins import check_name, check_same_name, load_plugins, name_taken

L = TypeVar("L", bound=type[Learner])
_methods: dict[str, type[Learner]] = {}
_aliases: dict[str, str] = {}
_faults: dict[str, EaseError] = {}


def register(*aliases: str) -> Callable[[L], L]:
    """Class decorator that registers a method.

    Args:
        aliases: Further names of the method, besides its `name`.

    Returns:
        The decorator, which returns the class unchanged.
    """

    def add(learner: L) -> L:
        _check(learner)
        for name in (learner.name, *aliases):
            owner = _methods.get(_aliases.get(name, name), learner)
            if owner is not learner:
                raise name_taken(name, owner)
        _methods[learner.name] = learner
        _aliases.update(dict.fromkeys(aliases, learner.name))
        return learner

    return add


def _check(learner: object) -> None:
    """Refuse a class that would fail later with a less clear message."""
    if not (isinstance(learner, type) and issubclass(learner, Learner)):
        raise EaseError(f"{learner!r} is no method: it must be a subclass of ease.methods.Learner")
    where = learner.__qualname__
    for attribute in ("name", "title", "idea"):
        if not isinstance(getattr(learner, attribute, None), str):
            raise EaseError(f"{where} has no '{attribute}': give it one, a text")
    check_name(learner.name, where)
    if learner.kind not in get_args(Kind):
        raise EaseError(f"{where} is of kind '{learner.kind}': use one of {', '.join(get_args(Kind))}")
    if inspect.isabstract(learner):
        raise EaseError(f"{where} lacks {', '.join(sorted(learner.__abstractmethods__))}")


@cache
def _discover() -> None:
    package = importlib.import_module("ease.methods")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"ease.methods.{module.name}")
    for name, fault in load_plugins("ease.methods", "method", _load).items():
        _faults.setdefault(_key(name), fault)


def _load(entry: EntryPoint) -> None:
    learner = entry.load()
    register()(learner)
    check_same_name(learner.name, entry)


def methods() -> dict[str, type[Learner]]:
    """All methods by name, in alphabetical order."""
    _discover()
    return dict(sorted(_methods.items()))


def faults() -> dict[str, str]:
    """Methods of other packages that cannot be used, by name, with the reason in one line."""
    _discover()
    return {name: str(fault) for name, fault in sorted(_faults.items())}


def find_method(name: str) -> type[Learner]:
    """Find a method by its name or an alias.

    Args:
        name: Case does not matter, and `_` means the same as `-`.

    Returns:
        The class of the method. An unknown name is an `EaseError` that suggests the nearest one.

    Example:
        >>> find_method("coda").__name__
        'CodaPrompt'
    """
    known = methods()
    key = _aliases.get(_key(name), _key(name))
    ours = key in known and known[key].__module__.startswith("ease.methods.")
    if key in _faults and not ours:
        raise _faults[key]
    if key not in known:
        raise unknown("method", name, [*known, *_aliases])
    return known[key]


def method_title(name: str) -> str:
    """The name of a method in tables and figures; the name itself if no such method is installed."""
    method = methods().get(name)
    return name if method is None else method.title


def _key(name: str) -> str:
    return name.lower().replace("_", "-")
