"""From a kind's name to a new tuning."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

from ease.backbone.ports import Shape, Tuning
from ease.errors import EaseError, unknown
from ease.tuning.adapter import Adapter
from ease.tuning.full import Full
from ease.tuning.lora import Lora
from ease.tuning.prefix import Prefix
from ease.tuning.ssf import Ssf
from ease.tuning.vpt import VptDeep, VptShallow

TUNINGS: dict[str, type[Tuning]] = {
    kind.kind: kind for kind in (Adapter, VptShallow, VptDeep, Ssf, Prefix, Lora, Full)
}
"""All that `build_tuning` can make."""

_GIVEN = {"self", "shape", "vit", "generator"}


def build_tuning(
    kind: str,
    shape: Shape,
    config: dict[str, Any] | None = None,
    generator: torch.Generator | None = None,
    vit: nn.Module | None = None,
) -> Tuning:
    """A new, untrained tuning; `build_tuning(t.kind, shape, t.config())` makes a twin that takes t's weights.

    Args:
        kind: one of `TUNINGS`.
        shape: the backbone's.
        config: the kind's own settings; what is missing takes its default.
        generator: where all random numbers of the start come from (on the CPU).
        vit: the model that `full` copies; the others do not need it.
    """
    if kind not in TUNINGS:
        raise unknown("tuning", kind, TUNINGS)
    config = dict(config or {})
    known = set(inspect.signature(TUNINGS[kind].__init__).parameters) - _GIVEN
    for key, value in config.items():
        if key not in known:
            raise unknown(f"setting of tuning '{kind}'", key, known)
        if key in ("rank", "length") and value < 1:
            raise EaseError(f"tuning '{kind}': {key} must be at least 1, not {value}")
    if kind != Full.kind:
        return TUNINGS[kind](shape=shape, generator=generator, **config)
    if vit is None:
        raise EaseError("tuning 'full' needs the model to copy")
    return Full(vit, **config)
