"""Cells of a grid: one run each, with a name that its results decide."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from ease.config import RunConfig
from ease.errors import EaseError
from ease.filesystem import content_digest
from ease.methods import SharesTrainings, find_method


@dataclass(frozen=True)
class Cell:
    """One run of a grid.

    Attributes:
        config: the resolved configuration.
        notes: how a preset was applied.
        shares: cells with the same text here train the same subspaces. Only the first of them does so; the others
            take its subspaces over, with the seconds they took.
        timed: its seconds will be reported, so test features are computed and not taken over.
        minutes: a rough estimate of how long it takes; 0 if it is not known.
        label: what its row in tables is called, if not as its method; no part of its name.
    """

    config: RunConfig
    notes: list[str] = field(default_factory=list)
    shares: str | None = None
    timed: bool = False
    minutes: float = 0.0
    label: str | None = None

    @property
    def name(self) -> str:
        """Readable, safe as a folder name, and different for configurations with different results.

        Values of the role `result` count, and the content of the weights and the class order file. The data folder is
        not read for a name: `Grid.record` compares its content with what the cell has seen. Only what differs from the
        defaults counts, so that a version with one more setting finds the cells of the one before.
        """
        defaults, method = RunConfig().of_role("result"), find_method(self.config.method)
        own = method.Settings().model_dump(mode="json")
        result = self.config.of_role("result")
        values = {k: v for k, v in result.items() if k != "settings" and v != defaults[k]}
        for key in _FILES:
            path = getattr(self.config, key)
            if path is not None:
                values[key] = content_digest(path)
        settings = {k: v for k, v in self.config.settings.items() if v != own.get(k)}
        text = json.dumps([values, settings], sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
        protocol = self.config.protocol.lower().replace(" ", "")
        return f"{self.config.method}-{self.config.dataset}-{protocol}-{self.config.seed}-{digest}"


def same_subspaces(config: RunConfig) -> str | None:
    """What to put in a cell's `shares`: cells with equal values may reuse each other's trainings."""
    method = find_method(config.method)
    if not issubclass(method, SharesTrainings):
        return None
    parts = (config.dataset, config.protocol, config.seed, method.shared_trainings(config.settings))
    return " ".join(map(str, parts))


_FILES = ("weights", "class_order")
"""Locations that are single files."""

Outcome = tuple[Cell, EaseError | None]
"""A cell that was tried, and the error if it failed."""


def sharing_units(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Units of cells that share trainings, which are run one after the other by one process."""
    units: dict[str, list[Cell]] = {}
    for cell in cells:
        units.setdefault(cell.shares or cell.name, []).append(cell)
    return list(units.values())
