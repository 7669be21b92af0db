"""The inputs of a folder of predictions as a file, so that any process can take a share of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ease.app.bulk.inputs import Input
from ease.errors import EaseError
from ease.filesystem import explained
from ease.storage.files import replacing
from ease.streams.intake.sources.web import WebImage
from ease.streams.intake.stored import FilePiece

SHARE = 1024
"""Inputs of a share: each becomes one part."""


@dataclass(frozen=True)
class Share:
    """Some inputs that follow each other.

    Attributes:
        number: counted from 0.
        offset: where its lines begin in the index.
        count: number of inputs.
    """

    number: int
    offset: int
    count: int


def write_index(path: Path, inputs: Iterable[Input]) -> int:
    """Write one line for each input, and return how many there are. The images themselves are not read, and
    paths become absolute: other processes may be in other folders.

    Raises:
        EaseError: An input is an image in memory, such as a frame of a video.
    """
    count = 0
    with replacing(path) as file:
        for each in inputs:
            # Escapes keep names that are no text as they are.
            file.write(json.dumps(_line(each)).encode() + b"\n")
            count += 1
    return count


def shares(path: Path, size: int = SHARE) -> Iterator[Share]:
    """The shares of an index, which is read line by line."""
    with explained("read", path), open(path, "rb") as file:
        number, begin, count, here = 0, 0, 0, 0
        for line in file:
            here += len(line)
            count += 1
            if count == size:
                yield Share(number, begin, count)
                number, begin, count = number + 1, here, 0
        if count:
            yield Share(number, begin, count)


def read_share(path: Path, share: Share) -> list[Input]:
    """The inputs of a share."""
    with explained("read", path), open(path, "rb") as file:
        file.seek(share.offset)
        return [_input(json.loads(file.readline())) for _ in range(share.count)]


def _line(each: Input) -> dict[str, Any]:
    content = each.content
    if isinstance(content, EaseError):
        return {"name": each.name, "error": str(content)}
    if isinstance(content, Path):
        return {"name": each.name, "path": os.path.abspath(content)}
    if isinstance(content, WebImage):
        return {"name": each.name, "url": content.url, "private": content.private}
    if isinstance(content, FilePiece):
        return {
            "name": each.name,
            "path": os.path.abspath(content.path),
            "start": content.start,
            "size": content.size,
        }
    raise EaseError(f"'{each.name}' is no file: write images in memory with --out in place of --to")


def _input(line: dict[str, Any]) -> Input:
    name = str(line["name"])
    if "error" in line:
        return Input(name, EaseError(line["error"]))
    if "url" in line:
        return Input(name, WebImage(line["url"], line["private"], keep=False))
    if "start" in line:
        return Input(name, FilePiece(Path(line["path"]), line["start"], line["size"]))
    return Input(name, Path(line["path"]))
