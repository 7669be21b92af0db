"""The registry of tunings, and how a tuning is built from the name of its kind.

Kinds of this package are listed in `TUNINGS`. Other packages add kinds by the entry-point group `ease.tunings`. A kind
of another package that cannot be used does not affect the others: `faults` names it together with the reason, and
asking for it is an error. It cannot take the name of a kind of this package.
"""

from __future__ import annotations

import inspect
from functools import cache
from importlib.metadata import EntryPoint
from typing import Any

import torch
from torch import nn

from ease.backbone.ports import Shape, Tuning
from ease.errors import EaseError, unknown
from ease.plugins import check_name, check_same_name, load_plugins, name_taken
from ease.tuning.adapter import Adapter
from ease.tuning.attention_adapter import AttentionAdapter
from ease.tuning.full import Full
from ease.tuning.lora import KvLora, Lora
from ease.tuning.prefix import CompensatedPrefix, Prefix
from ease.tuning.ssf import Ssf
from ease.tuning.vpt import VptDeep, VptShallow

GROUP = "ease.tunings"

TUNINGS: dict[str, type[Tuning]] = {
    kind.kind: kind
    for kind in (
        Adapter,
        VptShallow,
        VptDeep,
        Ssf,
        Prefix,
        Lora,
        Full,
        AttentionAdapter,
        KvLora,
        CompensatedPrefix,
    )
}
"""The kinds of tuning of this package."""

_PROVIDED = {"self", "shape", "vit", "generator"}
"""Parameters of a tuning that are not settings of its own."""


@cache
def _discovered() -> tuple[dict[str, type[Tuning]], dict[str, EaseError]]:
    """The kinds of other packages, and the reasons why some of them cannot be used."""
    found: dict[str, type[Tuning]] = {}

    def load(entry: EntryPoint) -> None:
        kind = entry.load()
        if not (isinstance(kind, type) and issubclass(kind, Tuning)):
            raise EaseError(f"{kind!r} is no tuning: it must be a subclass of ease.backbone.Tuning")
        name = getattr(kind, "kind", None)
        check_name(name, kind.__qualname__)
        check_same_name(str(name), entry)
        if entry.name in {**TUNINGS, **found}:
            raise name_taken(entry.name, {**TUNINGS, **found}[entry.name])
        found[entry.name] = kind

    return found, load_plugins(GROUP, "tuning", load)


def tunings() -> dict[str, type[Tuning]]:
    """All usable kinds of tuning by name: those of this package, then those of other packages."""
    found, failed = _discovered()
    return {**TUNINGS, **{name: kind for name, kind in sorted(found.items()) if name not in failed}}


def faults() -> dict[str, str]:
    """Tunings of other packages that cannot be used, by name, with the reason in one line."""
    return {name: str(fault) for name, fault in sorted(_discovered()[1].items())}


def find_tuning(kind: str) -> type[Tuning]:
    """Find a kind of tuning by name.

    Args:
        kind: Such as `adapter`.

    Returns:
        The class. An unknown kind is an `EaseError` that suggests the nearest one.

    Example:
        >>> find_tuning("vpt-deep").__name__
        'VptDeep'
    """
    known, failed = tunings(), _discovered()[1]
    if kind in failed and kind not in TUNINGS:
        raise failed[kind]
    if kind not in known:
        raise unknown("tuning", kind, known)
    return known[kind]


def tuning_settings(kind: str) -> set[str]:
    """The names of the settings that a kind of tuning is built with.

    Example:
        >>> sorted(tuning_settings("vpt-deep"))
        ['init', 'length']
    """
    return set(inspect.signature(find_tuning(kind).__init__).parameters) - _PROVIDED


def build_tuning(
    kind: str,
    shape: Shape,
    config: dict[str, Any] | None = None,
    generator: torch.Generator | None = None,
    vit: nn.Module | None = None,
) -> Tuning:
    """Build a new, untrained tuning.

    `build_tuning(t.kind, shape, t.config())` builds a tuning that can load the weights of `t`.

    Args:
        kind: A kind of tuning; see `tunings`.
        shape: The shape of the backbone.
        config: Settings of the kind; omitted ones have their default.
        generator: Source of all random numbers, on the CPU.
        vit: The model that `full` copies; other kinds do not need it.

    Returns:
        The tuning.

    Example:
        >>> shape = Shape(dim=192, depth=12, heads=3, hidden=768)
        >>> build_tuning("adapter", shape, {"rank": 16}).parameter_count()
        76224
    """
    known = tuning_settings(kind)
    config = dict(config or {})
    for key, value in config.items():
        if key not in known:
            raise unknown(f"setting of tuning '{kind}'", key, known)
        if key in ("rank", "length") and value < 1:
            raise EaseError(f"tuning '{kind}': {key} must be at least 1, not {value}")
    if kind != Full.kind:
        new: Any = find_tuning(kind)
        return new(shape=shape, generator=generator, **config)
    if vit is None:
        raise EaseError("tuning 'full' needs the model to copy")
    return Full(vit, **config)
