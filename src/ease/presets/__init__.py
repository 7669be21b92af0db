"""Presets: named settings, stored as data, for a method on a dataset, protocol and backbone.

A preset is a file `NAME.yaml` with these keys:

- `about`: one line for listings.
- `run`: values of the run itself.
- `rows`: each row has `when` (dataset, protocol, backbone; an omitted key matches everything) and `methods`, the
  settings by method. Rows are applied from general to specific.
- `untuned`: methods that have no settings in the preset on purpose.
- `fallback`: the dataset or backbone whose rows are used for those without rows.
- `named`: names for combinations of dataset, protocol and backbone. `released/cifar100-b0inc5-in21k` is the preset
  `released` for the combination of that name.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from ease.errors import EaseError, unknown

ALIASES = {"small": "few-images", "bench-small": "few-images"}
"""Former names of presets, which configurations may still contain."""

INHERITS = {"upper-bound": "ease"}
"""Methods that take all settings of another method, unless a row has settings for them."""


def preset_list() -> dict[str, str]:
    """All presets by name, with their description."""
    names = sorted(
        f.name.removesuffix(".yaml") for f in files(__name__).iterdir() if f.name.endswith(".yaml")
    )
    return {name: _content(name)["about"] for name in names}


def preset_rows(name: str) -> dict[str, dict[str, str]]:
    """The named combinations of a preset: `released/cifar100-b0inc5-in21k` -> dataset, protocol and backbone."""
    return {f"{name}/{row}": dict(place) for row, place in _known(name).get("named", {}).items()}


def preset_place(name: str) -> tuple[str, dict[str, str]]:
    """Split the name of a preset.

    Args:
        name: Such as `released` or `released/cifar100-b0inc5-in21k`.

    Returns:
        The name of the preset itself, and the dataset, protocol and backbone that the rest of the name stands for.

    Example:
        >>> preset_place("few-images")
        ('few-images', {})
    """
    general, slash, _ = name.partition("/")
    if not slash:
        _known(name)
        return ALIASES.get(name, name), {}
    rows = preset_rows(general)
    if not rows:
        raise EaseError(f"preset '{general}' has no named rows: give it as '{general}'")
    if name not in rows:
        raise unknown("preset", name, rows)
    return general, rows[name]


def _known(name: str) -> dict[str, Any]:
    name = ALIASES.get(name, name)
    if name not in preset_list():
        raise unknown("preset", name, preset_list())
    return _content(name)


@cache
def _content(name: str) -> dict[str, Any]:
    return yaml.safe_load((files(__name__) / f"{name}.yaml").read_text(encoding="utf-8"))


def preset_values(
    method: str, name: str, dataset: str, protocol: str, backbone: str
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Look up the values of a preset.

    Args:
        method: Name of the method.
        name: Name of the preset.
        dataset: Name of the dataset.
        protocol: Canonical protocol, such as `B0 Inc5`.
        backbone: Name of the backbone.

    Returns:
        Values of the run, settings of the method, and one note for each key that the preset has no row for.
    """
    content = _known(name)
    rows, notes = content.get("rows", []), []
    wanted = {"dataset": dataset, "protocol": protocol, "backbone": backbone}
    for field in ("dataset", "backbone", "protocol"):
        named = [row for row in rows if field in row.get("when", {})]
        fitting = [row for row in named if _fits(row["when"][field], wanted[field])]
        if not named or fitting:
            rows = [row for row in rows if row not in named or row in fitting]
            continue
        nearest = content.get("fallback", {}).get(field) or named[0]["when"][field]
        nearest = nearest[0] if isinstance(nearest, list) else nearest
        rows = [row for row in rows if row not in named or _fits(row["when"][field], nearest)]
        notes.append(f"preset '{name}' has no row for {field} {wanted[field]}: took the one for {nearest}")
    settings: dict[str, Any] = {}
    run = dict(content.get("run", {}))
    for row in sorted(rows, key=lambda row: len(row.get("when", {}))):
        for heir in (INHERITS.get(method, method), method):
            settings |= row.get("methods", {}).get(heir, {})
        run |= row.get("run", {})
    if not settings and method not in content.get("untuned", []):
        notes.append(f"preset '{name}' has no settings for method {method}: took its defaults")
    return run, settings, notes


def _fits(asked: str | list[str], wanted: str) -> bool:
    return wanted in asked if isinstance(asked, list) else wanted == asked
