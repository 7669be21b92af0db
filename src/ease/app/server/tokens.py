"""The tokens of several models, from a file that only its owner can read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ease.config import read_yaml
from ease.errors import EaseError
from ease.filesystem import explained, shown


def read_tokens(path: Path) -> dict[str, str]:
    """The token of each model, from a YAML or JSON file of `NAME: TOKEN` lines.

    Args:
        path: The file. One that other users of this machine can read is refused.

    Returns:
        Name of a model -> its token.
    """
    if os.name == "posix" and path.exists():
        with explained("read", path):
            mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            raise EaseError(f"tokens file {shown(path)} can be read by others: run chmod 600 on it first")
    found: dict[str, str] = {}
    for name, token in read_yaml(path, "tokens file").items():
        if not isinstance(name, str) or not isinstance(token, str):
            raise EaseError(
                f"tokens file {shown(path)}: the entry '{str(name)[:60]}' is not NAME: TOKEN as text; "
                "put numbers in quotes"
            )
        found[name] = token
    return found
