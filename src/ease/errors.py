"""Errors meant for people: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST_NAME = 120
"""How much of a name is shown, and compared with others."""


class EaseError(Exception):
    """A mistake the user can mend. The CLI prints it as one line and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(showable(" ".join(message.split())))


def showable(text: str) -> str:
    """Text that can be printed and stored: file names may hold bytes that are no characters, and control characters."""
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(f"\\x{ord(c):02x}" if unicodedata.category(c) == "Cc" else c for c in plain)


def unknown(what: str, name: str, known: Iterable[str]) -> EaseError:
    """The error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:LONGEST_NAME].lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
    shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    return EaseError(f"unknown {what} '{shown}': {hint}")
