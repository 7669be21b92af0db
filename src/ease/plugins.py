"""What other packages add by entry points: methods, datasets and tunings.

A broken plug-in must not affect anything else. Each registry keeps the reason why a plug-in cannot be used, names it
where its things are listed, and raises it where the plug-in is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ease.errors import EaseError

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def load_plugins(group: str, what: str, load: Callable[[EntryPoint], None]) -> dict[str, EaseError]:
    """Load everything that other packages offer in a group of entry points.

    Args:
        group: Such as `ease.methods`.
        what: What messages call a member of the group, such as "method".
        load: Loads and registers one of them; whatever it raises makes the plug-in unusable.

    Returns:
        Name of the entry point -> why it cannot be used.
    """
    faults: dict[str, EaseError] = {}
    for entry in entry_points(group=group):
        try:
            load(entry)
        except Exception as error:
            reason = str(error) if isinstance(error, EaseError) else f"{type(error).__name__}: {error}"
            package = entry.dist.name if entry.dist else "unknown"
            fault = EaseError(f"{what} '{entry.name}' of package '{package}' cannot be used: {reason}")
            fault.__cause__ = error  # for --debug
            faults.setdefault(entry.name, fault)
    return faults


def check_name(name: object, where: str) -> None:
    """Refuse a name that is not made of lower-case words joined by `-`."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise EaseError(f"{where} is called {name!r}: use lower-case words joined by '-'")


def check_same_name(name: str, entry: EntryPoint) -> None:
    """Refuse an entry point that is called differently from what it offers."""
    if name != entry.name:
        raise EaseError(f"its name is '{name}': give the entry point the same name")


def name_taken(name: str, owner: Any) -> EaseError:
    """The error for a name that another class has already."""
    return EaseError(f"the name '{name}' is taken by {owner.__module__}.{owner.__qualname__}: choose another")
