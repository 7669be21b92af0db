"""What commands print."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, TextIO

import typer

from ease.errors import printable


def echo(text: str, *, err: bool = False, nl: bool = True, file: TextIO | None = None) -> None:
    """Print text in which names of files or classes may stand: none of them can steer the terminal."""
    typer.echo(printable(text), file=file, err=err, nl=nl)


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
    echo(json.dumps(value, indent=1))


def console() -> Any:
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class Printable(Console):
        """Prints names in tables as `echo` prints them."""

        inside = False

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            if self.inside:  # a cell: escapes would be cut off, since its width is fixed already
                yield from super().render(renderable, options)
                return
            self.inside = True
            try:
                for text, style, control in super().render(renderable, options):
                    yield Segment(text if control else printable(text), style, control)
            finally:
                self.inside = False

    console = Printable(highlight=False)
    # In a pipe rich would fold tables at 80 columns and break them.
    return console if console.is_terminal else Printable(highlight=False, width=200)
