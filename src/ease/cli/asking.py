"""The question before something is removed for good."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ease.cli.output import echo
from ease.errors import EaseError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before removing; for scripts.")]


def ask_before_removing(command: str, goes: Sequence[str], yes: bool) -> None:
    """Say what is removed, and go on only if a person agrees.

    Args:
        command: Name of the command and its option, for the error.
        goes: What is removed, one phrase each.
        yes: The value of --yes: nobody is asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise EaseError(
            f"'ease {command}' removes for good: {'; '.join(goes)}: "
            "there is no terminal to ask in, so add --yes if that is wanted"
        )
    echo("This removes for good:", err=True)  # not on stdout, which may be JSON
    for each in goes:
        echo(f"  - {each}", err=True)
    if not typer.confirm("Go on?", default=False, err=True):
        echo("nothing was changed", err=True)
        raise typer.Exit(1)


def history_of(model: Path, current: int, numbers: Sequence[int]) -> list[str]:
    """The generations that go with a change, in words; nothing if there are none but the current one."""
    others = [number for number in numbers if number != current]
    if not others:
        return []
    later = [number for number in others if number > current]
    also = f", also {_range(later)}, which came after the current one" if later else ""
    return [f"the whole history of {model}: {_range(others)}{also}"]


def _range(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"generation {numbers[0]}"
    return f"{len(numbers)} generations from {numbers[0]} to {numbers[-1]}"
