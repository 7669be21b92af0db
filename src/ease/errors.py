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
    hidden = hidden_at(plain)
    return "".join(
        _escaped(c) if at in hidden or unicodedata.category(c) == "Cf" else c for at, c in enumerate(plain)
    )


def printable(text: str) -> str:
    """Text with names in it, as a command prints it: what cannot be seen is shown as escapes.

    Unlike `showable` it keeps line breaks, tabs and the joiners inside names.
    """
    plain = text.encode(errors="backslashreplace").decode()
    hidden = hidden_at(plain)
    return "".join(_escaped(c) if at in hidden and c not in "\n\t" else c for at, c in enumerate(plain))


_HIDDEN = {"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"}
"""Unicode's control and format characters, those that are not assigned or private, and line separators."""
_BLANK = {
    *map(ord, "\u034f\u115f\u1160\u17b4\u17b5\u180e\u2800\u3164\uffa0"),
    *(0x180B, 0x180C, 0x180D, 0x180F),
    *range(0xFE00, 0xFE10),
    *range(0xE0100, 0xE01F0),
}
"""Letters that show nothing, and marks that choose a variant of the character before them."""
_JOINERS, _EMOJI_FORMS, _KEYCAP = "\u200c\u200d", "\ufe0e\ufe0f", "\u20e3"


def hidden_at(text: str) -> set[int]:
    """Where a text has characters that cannot be seen, or that turn its direction.

    Seen are the joiners between visible characters beyond ASCII, as in emojis and in Persian words, and the mark
    after a sign or before a keycap that makes it an emoji.

    Example:
        >>> sorted(hidden_at("so\u00adft \u2764\ufe0f"))
        [2]
    """
    if text.isascii() and text.isprintable():
        return set()
    return {at for at, char in enumerate(text) if not _is_visible(char) and not _belongs(text, at)}


def _is_visible(char: str) -> bool:
    return unicodedata.category(char) not in _HIDDEN and ord(char) not in _BLANK


def _belongs(text: str, at: int) -> bool:
    """Whether an invisible character makes one sign of its neighbours."""
    char, before, after = text[at], text[at - 1 : at] if at else "", text[at + 1 : at + 2]
    if char in _EMOJI_FORMS:
        return bool(before) and (after == _KEYCAP or unicodedata.category(before)[0] in "SP")
    if char not in _JOINERS or not before or not after:
        return False
    if any(char.isascii() or char.isspace() for char in (before, after)):
        return False
    return (_is_visible(before) or before in _EMOJI_FORMS) and _is_visible(after)


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
