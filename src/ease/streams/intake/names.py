"""Class names that people can read, where a folder is called by a number or a code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from functools import cache

_WNID = re.compile(r"n[0-9]{8}")
_NUMBERED = re.compile(r"[0-9]{1,4}\.(?=.)")


def readable_names(folders: Sequence[str]) -> tuple[str, ...]:
    """One name per folder, in the same order and all different.

    `001.Black_footed_Albatross` -> `Black footed Albatross`; `n01443537` -> `goldfish`, from the WordNet words that
    timm ships; anything else stays. Folders that would share a name keep theirs behind it.
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
    """The first word of each wnid, for all of ImageNet: the 1k classes are not quite a part of the 21k."""
    import ease.torchvision_cure  # noqa: F401

    # isort: split
    from timm.data import ImageNetInfo

    return {
        wnid: lemmas.split(",")[0].strip()
        for part in ("imagenet-21k-goog", "imagenet-1k")
        for wnid, lemmas in ImageNetInfo(part).label_descriptions(as_dict=True).items()
    }


def numeric_order(folders: Sequence[str]) -> list[str]:
    """Folders in the order of their names; of their numbers, if all of them are numbers."""
    if all(re.fullmatch("[0-9]{1,9}", folder) for folder in folders):
        return sorted(folders, key=lambda folder: (int(folder), folder))
    return sorted(folders)
