"""Options of a new model that are given again for an existing one: they must be what it was made with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ease.errors import EaseError
from ease.filesystem import shown
from ease.methods import Settings, find_method
from ease.storage.manifest import Manifest


def check_repeated(path: Path | str, manifest: Manifest, given: Mapping[str, Any]) -> None:
    """Raise an error that names both values if an option differs from what a model was made with.

    Args:
        path: Where the model is, for the error.
        manifest: Of the model.
        given: Some of `method`, `backbone`, `input_size`, `augment` and `seed`.
    """
    made_with: dict[str, Any] = {
        "method": manifest.method,
        "backbone": manifest.backbone.name,
        "input_size": manifest.backbone.input_size,
        "augment": manifest.augmentation or "photos",
        "seed": 1993 if manifest.seed is None else manifest.seed,
    }
    for name, value in given.items():
        now = find_method(value).name if name == "method" else value
        if now != made_with[name]:
            raise _differs(path, f"--{name.replace('_', '-')}", value, made_with[name])


def check_repeated_settings(path: Path | str, settings: Settings, given: Mapping[str, Any]) -> None:
    """The same for settings of the method, after both were checked by the method."""
    for name, value in given.items():
        before = getattr(settings, name)
        if value != before:
            raise _differs(path, f"--set {name}=", value, before)


def _differs(path: Path | str, option: str, now: Any, before: Any) -> EaseError:
    space = "" if option.endswith("=") else " "
    return EaseError(
        f"{option}{space}{now} is not what the model in {shown(path)} was made with, which is {before}: "
        "leave it out, or choose another folder for a new model"
    )
