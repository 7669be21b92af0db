"""What became of the cells of a grid, as a table of text: on which node, how far, and why not further."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True)
class CellStatus:
    """A row of the table."""

    name: str
    node: str
    stages: str
    outcome: str


def status_table(rows: Sequence[CellStatus]) -> str:
    """Lines of aligned columns, finished cells first."""
    ordered = sorted(rows, key=lambda row: (row.outcome.startswith("failed"), row.node, row.name))
    lines = [("cell", "node", "stages", "outcome"), *(astuple(row) for row in ordered)]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    return "\n".join(
        "  ".join([*(text.ljust(width) for text, width in zip(line[:3], widths, strict=True)), line[3]])
        for line in lines
    )
