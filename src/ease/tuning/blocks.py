"""Which blocks a tuning is in."""

from __future__ import annotations

from collections.abc import Sequence

from ease.errors import EaseError


def some_blocks(kind: str, layers: Sequence[int] | None, depth: int) -> list[int]:
    """The listed blocks, counted from 0, in order; all if None.

    Example:
        >>> some_blocks("prefix", [2, 0, 2], depth=3)
        [0, 2]
    """
    found = list(range(depth)) if layers is None else sorted(set(layers))
    if not found or found[0] < 0 or found[-1] >= depth:
        raise EaseError(f"{kind} layers {list(layers or [])}: give some of 0 to {depth - 1}")
    return found
