"""What commands print."""

from __future__ import annotations

import json
from typing import Any

import typer


def listing(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    *short, last = rows[0]
    for title in short:
        table.add_column(title, no_wrap=True)  # what people copy stays whole
    table.add_column(last)
    for row in rows:
        table.add_row(*(Text(str(value)) for value in row.values()))  # brackets are no markup
    console().print(table)


def print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=1))


def console() -> Any:
    from rich.console import Console

    console = Console(highlight=False)
    # In a pipe rich would fold tables at 80 columns and break them.
    return console if console.is_terminal else Console(highlight=False, width=200)
