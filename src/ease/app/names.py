"""Names that are easily taken for one another."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from ease.errors import EaseError

MOST_SIMILAR = 3
"""How many similar names are suggested."""
_LONGEST = 100
_JOINING = dict.fromkeys(map(ord, "\u200c\u200d\ufe0e\ufe0f"))
"""Characters that a name may have and that show nothing by themselves."""


class LikeNameError(EaseError):
    """A new name differs from a known one only by case, spaces or Unicode form: it must be confirmed."""


def alike_name(name: str, known: Iterable[str]) -> str | None:
    """A known name that differs from this one only by case, spaces or Unicode normal form.

    Example:
        >>> alike_name("Gold fish", ["cat", "goldfish"])
        'goldfish'
    """
    plain = plain_form(name)
    return next((other for other in known if other != name and plain_form(other) == plain), None)


def similar_names(name: str, known: Iterable[str]) -> tuple[str, ...]:
    """Known names that are a letter or two away from this one, the nearest first.

    One edit is allowed in names of four letters or more, two in names of eight or more: shorter names, such as `d0` and
    `d1`, usually differ on purpose.

    Example:
        >>> similar_names("zebraa", ["zebra", "horse"])
        ('zebra',)
    """
    plain, found = plain_form(name), []
    allowed = min(2, len(plain) // 4)
    for other in known:
        if other != name and (edits := _edits(plain, plain_form(other), allowed)) <= allowed:
            found.append((edits, other))
    return tuple(other for _, other in sorted(found)[:MOST_SIMILAR])


def plain_form(name: str) -> str:
    """A name without what people overlook: case, spaces and Unicode normal form.

    Example:
        >>> plain_form("Gold Fish")
        'goldfish'
    """
    plain = "".join(unicodedata.normalize("NFKC", name).casefold().split())
    return unicodedata.normalize("NFKC", plain.translate(_JOINING))


def _edits(first: str, second: str, most: int) -> int:
    """Levenshtein's distance; `most + 1` if it is larger than `most`."""
    first, second = first[:_LONGEST], second[:_LONGEST]
    if abs(len(first) - len(second)) > most:
        return most + 1
    row = list(range(len(second) + 1))
    for at, letter in enumerate(first, start=1):
        before, row = row, [at]
        for column, other in enumerate(second, start=1):
            row.append(min(before[column] + 1, row[-1] + 1, before[column - 1] + (letter != other)))
        if min(row) > most:
            return most + 1
    return min(row[-1], most + 1)
