"""Names of classes and files: which are accepted, how folders become class names, how a name is shown."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache

from ease.errors import EaseError, hidden_at

MAX_NAME_LENGTH = 100
"""Characters of a class name."""

_MAX_SHOWN = 120
_SYSTEM_FILES = {"__macosx", "thumbs.db", "desktop.ini"}
_WNID = re.compile(r"n[0-9]{8}")
_NUMBERED = re.compile(r"[0-9]{1,4}\.(?=.)")


def class_name(name: object) -> str:
    """Check a class name and return the form in which it is stored.

    Args:
        name: The name as the user gave it.

    Returns:
        The name without spaces at its ends, in Unicode's composed form (NFC).

    Raises:
        EaseError: The name is empty, too long, not printable, or a path.

    Example:
        >>> class_name("  goldfish ")
        'goldfish'
    """
    if not isinstance(name, str):
        raise EaseError(f"class name {name!r:.60} is not text: give a name")
    normalized = unicodedata.normalize("NFC", name).strip()
    quoted = f"{name[:60]!a}" + "..." * (len(name) > 60)
    if not normalized:
        raise EaseError(f"class name {quoted} is empty: give a name")
    if len(normalized) > MAX_NAME_LENGTH:
        raise EaseError(
            f"class name {quoted} has {len(normalized)} characters: choose one of at most {MAX_NAME_LENGTH}"
        )
    if hidden_at(normalized) or not any(unicodedata.category(char)[0] in "LNPS" for char in normalized):
        raise EaseError(f"class name {quoted} has characters that cannot be shown: choose another name")
    if "/" in normalized or "\\" in normalized or normalized in (".", ".."):
        raise EaseError(f"class name {quoted} is a path: choose a name without slashes")
    return normalized


def class_names(names: Iterable[object]) -> tuple[str, ...]:
    """Check several class names with `class_name`, and that no two of them are equal afterwards.

    Args:
        names: The names as the user gave them.

    Returns:
        The names as they are stored, in the same order.
    """
    given: dict[str, object] = {}
    for name in names:
        normalized = class_name(name)
        if normalized in given:
            raise EaseError(
                f"class name '{normalized}' appears twice ({given[normalized]!a}, {name!a}): rename or join them"
            )
        given[normalized] = name
    return tuple(given)


def is_system_file(name: str) -> bool:
    """Whether a file or folder of this name is hidden or was left behind by an operating system."""
    return name.startswith(".") or name.lower() in _SYSTEM_FILES


def display_name(name: str) -> str:
    """A name from outside, shortened and with unprintable characters replaced, for use in a message."""
    plain = "".join(c if c.isprintable() else "?" for c in name)
    return plain if len(plain) <= _MAX_SHOWN else f"{plain[: _MAX_SHOWN - 3]}..."


def list_names(names: Sequence[str], most: int = 5) -> str:
    """The first few names, separated by commas, and how many more there are."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def list_files(names: Sequence[str], most: int = 5) -> str:
    """The number of files and the first few names; the name alone if there is one file."""
    return f"{len(names)} files ({list_names(names, most)})" if len(names) > 1 else names[0]


def readable_names(folders: Sequence[str]) -> tuple[str, ...]:
    """Turn the folder names of published datasets into class names that people can read.

    `001.Black_footed_Albatross` becomes `Black footed Albatross`, and `n01443537` becomes `goldfish`, from the
    WordNet words that timm ships. Other names stay as they are. Folders that would get the same name keep the folder
    name in parentheses.

    Args:
        folders: Names of class folders.

    Returns:
        One name per folder, in the same order and all different.

    Example:
        >>> readable_names(["001.Black_footed_Albatross", "cat"])
        ('Black footed Albatross', 'cat')
    """
    words = _wordnet() if any(_WNID.fullmatch(folder) for folder in folders) else {}
    names = [_readable(folder, words) for folder in folders]
    shared = Counter(names)
    names = [f"{n} ({f})" if shared[n] > 1 and n != f else n for n, f in zip(names, folders, strict=True)]
    return tuple(names) if len(set(names)) == len(names) else tuple(folders)


def _readable(folder: str, words: dict[str, str]) -> str:
    if folder in words:
        return words[folder]
    if _NUMBERED.match(folder):
        return _NUMBERED.sub("", folder, count=1).replace("_", " ")
    return folder


@cache
def _wordnet() -> dict[str, str]:
    """The first word of each WordNet id of ImageNet. The 1k classes are not quite a subset of the 21k."""
    import ease.vision_libraries  # noqa: F401

    # isort: split
    from timm.data import ImageNetInfo

    return {
        wnid: lemmas.split(",")[0].strip()
        for part in ("imagenet-21k-goog", "imagenet-1k")
        for wnid, lemmas in ImageNetInfo(part).label_descriptions(as_dict=True).items()
    }


def numeric_order(folders: Sequence[str]) -> list[str]:
    """Sort folder names alphabetically, or by number if all of them are numbers.

    Example:
        >>> numeric_order(["10", "9"])
        ['9', '10']
    """
    if all(re.fullmatch("[0-9]{1,9}", folder) for folder in folders):
        return sorted(folders, key=lambda folder: (int(folder), folder))
    return sorted(folders)
