"""Reads settings that an earlier version stored in a model, a run or a record.

All settings below concern only how a subspace was trained, so a stored model predicts the same without them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EASE = {"start": "fresh", "drop_patches": 0.0, "hardest": 1.0, "head": "random"}

REMOVED_SETTINGS: dict[str, dict[str, Any]] = {"ease": _EASE, "upper-bound": _EASE}
"""By method: settings that no longer exist, with their default, which is how the method trains now."""

REPLACED_VALUES: dict[str, dict[str, str]] = {"schedule": {"one-cycle": "cosine"}}
"""By setting: values that no longer exist, with what is used instead."""


def current_settings(method: str, stored: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Translate stored settings of a method into settings of this version.

    Args:
        method: The method's name.
        stored: The settings as they were stored.

    Returns:
        The settings without those that were removed, and one note for each change that would alter a further training.

    Example:
        >>> current_settings("ease", {"alpha": 0.1, "hardest": 1.0, "head": "means"})
        ({'alpha': 0.1}, ["setting 'head' = 'means' is no longer supported: further tasks train without it"])
    """
    settings, notes = {}, []
    removed = REMOVED_SETTINGS.get(method, {})
    for key, value in stored.items():
        if key in removed:
            if value != removed[key]:
                notes.append(
                    f"setting '{key}' = {value!r} is no longer supported: further tasks train without it"
                )
        elif isinstance(value, str) and value in REPLACED_VALUES.get(key, {}):
            settings[key] = REPLACED_VALUES[key][value]
            notes.append(
                f"setting '{key}' = {value!r} is no longer supported: further tasks train with {settings[key]!r}"
            )
        else:
            settings[key] = value
    return settings, notes
