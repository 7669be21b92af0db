"""Errors meant for people: one line that says what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable

LONGEST_NAME = 120
"""How much of a name is shown, and compared with others."""
LONGEST_LIST = 400
"""How many characters of a list of known names are shown."""
LONGEST_MESSAGE = 1000
"""A longer message, such as one that repeats a very long input, loses its middle."""


class EaseError(Exception):
    """A mistake the user can mend. The CLI prints it as one line and exits with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


def one_line(message: str) -> str:
    """A message as one line of bounded length that can be printed."""
    text = showable(" ".join(message.split()))
    half = LONGEST_MESSAGE // 2
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:half]} ... {text[-half:]}"


def showable(text: str) -> str:
    """Text that can be printed and stored.

    File names may hold bytes that are no characters, control characters, and invisible characters that turn the
    direction of the text; all of these are shown as escapes.
    """
    plain = text.encode(errors="backslashreplace").decode()
    return "".join(_escaped(c) if unicodedata.category(c) in ("Cc", "Cf") else c for c in plain)


_TURNING = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Invisible characters that turn the direction of text. The joiners of emojis and of Persian words are none."""


def printable(text: str) -> str:
    """Text with names in it, as a command prints it: what steers a terminal or turns the text is shown as escapes.

    Unlike `showable` it keeps line breaks, tabs and the joiners inside names.
    """
    plain = text.encode(errors="backslashreplace").decode()
    if plain.isascii() and plain.isprintable():
        return plain
    return "".join(_escaped(c) if _steers(c) else c for c in plain)


def _steers(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in ("Cc", "Zl", "Zp") or character in _TURNING


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unknown(what: str, name: str, known: Iterable[str]) -> EaseError:
    """The error for a name that is not there, with the nearest one that is."""
    names = sorted(known)
    near = difflib.get_close_matches(name[:LONGEST_NAME].lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"known: {_listed(names)}"
    shown = name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..."
    return EaseError(f"unknown {what} '{shown}': {hint}")


def _listed(names: list[str]) -> str:
    """As many of the names as fit, and how many more there are."""
    count, length = 0, 0
    while count < len(names) and length + len(names[count]) <= LONGEST_LIST:
        length += len(names[count]) + 2
        count += 1
    more = len(names) - count
    return ", ".join(names[:count]) + (f" and {more:,} more" if more else "")
