"""Options that several commands have, and how their text is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ease.errors import EaseError, unknown

Json = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any setting; repeatable.")
]
Dataset = Annotated[str | None, typer.Option(help="See 'ease datasets'.")]
DataRoot = Annotated[Path | None, typer.Option(help="The dataset's folder.")]
Method = Annotated[str | None, typer.Option(help="Of a new model; see 'ease methods'.")]
Backbone = Annotated[str | None, typer.Option(help="See 'ease backbones'.")]
Weights = Annotated[Path | None, typer.Option(help="Local weights: .safetensors or .npz.")]
InputSize = Annotated[int | None, typer.Option(help="Side length of the input in pixels.")]
LimitPerClass = Annotated[int | None, typer.Option(help="Use only so many images of a class.")]
Budget = Annotated[
    int | None, typer.Option(min=1, help="Passes per photo, on the likeliest subspaces; all if left out.")
]
Unreadable = Annotated[str, typer.Option(help="Damaged images: refuse or skip.")]
Methods = Annotated[str | None, typer.Option(help="Only these, separated by commas.", metavar="A,B,...")]
Seeds = Annotated[str | None, typer.Option(help="Separated by commas.", metavar="N,N,...")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time; they share the cores.")]


def refuse_or_skip(text: str) -> Literal["refuse", "skip"]:
    """The value of --unreadable."""
    if text == "refuse":
        return "refuse"
    if text == "skip":
        return "skip"
    raise unknown("choice for --unreadable", text, ("refuse", "skip"))


def path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def names(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def seed_numbers(text: str | None) -> list[int]:
    parts = names(text)
    for part in parts:
        if not part.isdecimal():
            raise EaseError(f"'{part}' is no seed: give whole numbers, such as --seeds 1993,1994")
    return [int(part) for part in parts]


def shard_numbers(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise EaseError(f"'--shard {text}' is not i/n with i from 1 to n: write for instance --shard 1/4")
    return int(number), int(count)
