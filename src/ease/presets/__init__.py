"""Named settings, kept as data: which values to use for a method on a dataset, split and backbone.

A preset is `NAME.yaml` with `about` (one line), `run` (values of the run itself) and `rows`. A row has `when`
(dataset, protocol, backbone; what it leaves out fits all) and `methods`: settings by method. Rows apply from general to
specific. `fallback` names the dataset whose rows serve the datasets that have none. `named` gives places (dataset,
protocol and backbone together) a name: `released/cifar100-b0inc5-in21k` is preset `released` at that place.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from ease.errors import EaseError, unknown


def preset_list() -> dict[str, str]:
    """All presets, with one line each."""
    names = sorted(
        f.name.removesuffix(".yaml") for f in files(__name__).iterdir() if f.name.endswith(".yaml")
    )
    return {name: _content(name)["about"] for name in names}


def preset_rows(name: str) -> dict[str, dict[str, str]]:
    """The named places of a preset: `released/cifar100-b0inc5-in21k` -> dataset, protocol and backbone."""
    return {f"{name}/{row}": dict(place) for row, place in _known(name).get("named", {}).items()}


def preset_place(name: str) -> tuple[str, dict[str, str]]:
    """`released/ROW` -> `released` and the place that row names; `released` alone names none."""
    general, slash, _ = name.partition("/")
    if not slash:
        _known(name)
        return name, {}
    rows = preset_rows(general)
    if not rows:
        raise EaseError(f"preset '{general}' has no named rows: give it as '{general}'")
    if name not in rows:
        raise unknown("preset", name, rows)
    return general, rows[name]


def _known(name: str) -> dict[str, Any]:
    if name not in preset_list():
        raise unknown("preset", name, preset_list())
    return _content(name)


@cache
def _content(name: str) -> dict[str, Any]:
    return yaml.safe_load((files(__name__) / f"{name}.yaml").read_text(encoding="utf-8"))


def preset_values(
    method: str, name: str, dataset: str, protocol: str, backbone: str
) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Run values, method settings, and notes where the preset has no row of its own for what was asked."""
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
        settings |= row.get("methods", {}).get(method, {})
        run |= row.get("run", {})
    if not settings and method not in content.get("untuned", []):
        notes.append(f"preset '{name}' has no settings for method {method}: took its defaults")
    return run, settings, notes


def _fits(asked: str | list[str], wanted: str) -> bool:
    return wanted in asked if isinstance(asked, list) else wanted == asked
