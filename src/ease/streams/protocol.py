"""The protocol `B<m> Inc<n>`: how the classes of a dataset are divided into tasks, and in which order they arrive."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ease.documents import parse_json, shortened
from ease.errors import EaseError, unknown
from ease.filesystem import read_text, shown
from ease.streams.stream import Dataset, Stream, Task

SEED = 1993
"""The seed of the class order in the paper's tables."""
ORDER_LIMIT = 2**24
"""Largest size of a class order file, in bytes."""

_PROTOCOL = re.compile(r"\s*b[\s_]*([0-9]{1,9})[\s,_-]*inc[\s_]*([0-9]{1,9})\s*", re.IGNORECASE)


def parse(protocol: str) -> tuple[int, int]:
    """Read a protocol.

    Args:
        protocol: `B<m> Inc<n>`. Case and spaces do not matter, nor does a hyphen between the two parts.

    Returns:
        m, the number of classes of the first task (0: as many as in the others), and n, that of the other tasks.

    Example:
        >>> parse("B50 Inc10")
        (50, 10)
    """
    found = _PROTOCOL.fullmatch(protocol)
    if found is None:
        raise EaseError(
            f"protocol '{protocol}' is not of the form 'B<m> Inc<n>': write for instance 'B0 Inc5'"
        )
    base, increment = int(found[1]), int(found[2])
    if increment == 0:
        raise EaseError(f"protocol '{protocol}' adds 0 classes per task: write Inc1 or more")
    return base, increment


def canonical(protocol: str) -> str:
    """The form in which a protocol is written in results: `B0 Inc5`."""
    base, increment = parse(protocol)
    return f"B{base} Inc{increment}"


def task_sizes(protocol: str, classes: int) -> list[int]:
    """Divide classes into tasks.

    `B0` means that the first task has n classes like the others. The last task takes the classes that are left.

    Args:
        protocol: `B<m> Inc<n>`.
        classes: Number of classes.

    Returns:
        The number of classes of each task; the sum is `classes`.

    Example:
        >>> task_sizes("B4 Inc3", 12)
        [4, 3, 3, 2]
    """
    base, increment = parse(protocol)
    first = base or increment
    if first > classes:
        raise EaseError(
            f"protocol '{canonical(protocol)}' wants {first} classes in the first task, "
            f"but there are {classes}: choose {'Inc' if base == 0 else 'B'}{classes} or less"
        )
    full, left = divmod(classes - first, increment)
    return [first, *[increment] * full, *([left] if left else [])]


def class_order(classes: int, seed: int = SEED) -> tuple[int, ...]:
    """A random order of classes, drawn like that of the released code with numpy's legacy generator.

    Args:
        classes: Number of classes.
        seed: Random seed.

    Returns:
        Position in the stream -> label in the dataset.
    """
    if not 0 <= seed < 2**32:
        raise EaseError(f"class order seed {seed} is out of range: choose 0 to {2**32 - 1}")
    return tuple(int(c) for c in np.random.RandomState(seed).permutation(classes))


def order_from_file(path: Path, class_names: Sequence[str]) -> tuple[int, ...]:
    """Read a class order from a file that lists each class exactly once.

    Args:
        path: A text file with one class per line, or a JSON list. Classes are given by name or by index. Text is read
            as names if all lines are names (a class may be called `7`); numbers in JSON are always indices.
        class_names: The classes of the dataset.

    Returns:
        Position in the stream -> label in the dataset.
    """
    entries = _entries(path)
    known = {name: index for index, name in enumerate(class_names)}
    if all(isinstance(e, str) and e in known for e in entries):
        order = [known[str(e)] for e in entries]
    elif all(isinstance(e, int) or re.fullmatch("[0-9]{1,9}", e) for e in entries):
        order = [int(e) for e in entries]
    else:
        wrong = next(e for e in entries if not (isinstance(e, str) and e in known))
        raise EaseError(f"class order file '{shown(path)}': {unknown('class', str(wrong), known)}")
    _check_permutation(order, class_names, f"class order file '{shown(path)}'")
    return tuple(order)


def _entries(path: Path) -> list[str | int]:
    where = f"class order file '{shown(path)}'"
    try:
        text = read_text(path, ORDER_LIMIT)
    except EaseError as error:
        raise EaseError(f"{where}: {error}; give a text or JSON file") from error
    if Path(path).suffix.lower() != ".json" and not text.lstrip().startswith("["):
        return [line.strip() for line in text.splitlines() if line.strip()]
    entries = parse_json(text, where, "write a list")
    if not isinstance(entries, list) or not all(type(e) in (str, int) for e in entries):
        raise EaseError(f"{where} is not a JSON list of class names or indices: write one")
    return entries


def _check_permutation(order: Sequence[int], class_names: Sequence[str], where: str) -> None:
    classes = len(class_names)
    beyond = [c for c in order if not 0 <= c < classes]
    if beyond:
        raise EaseError(
            f"{where} names class {shortened(beyond[0])}, but indices go from 0 to {classes - 1}: remove it"
        )
    twice = [c for c, count in Counter(order).items() if count > 1]
    if twice:
        raise EaseError(f"{where} lists class '{class_names[twice[0]]}' more than once: list each class once")
    missing = sorted(set(range(classes)) - set(order))
    if missing:
        raise EaseError(
            f"{where} leaves out {len(missing)} of {classes} classes, "
            f"the first is '{class_names[missing[0]]}': list each class once"
        )


def make_stream(
    dataset: Dataset, protocol: str, seed: int = SEED, order: tuple[int, ...] | None = None
) -> Stream:
    """Divide a dataset into tasks. Labels become positions in the class order.

    Args:
        dataset: The images.
        protocol: `B<m> Inc<n>`: m classes in the first task and n in each other task.
        seed: Random seed of the class order; not used if the dataset keeps its own order.
        order: Position -> label. If given, it is used instead of `seed` and of the dataset's own order.

    Returns:
        The tasks in the order in which they arrive.

    Example:
        >>> from ease.streams import load_dataset
        >>> stream = make_stream(load_dataset("digits"), "B0 Inc2")
        >>> len(stream), stream.tasks[1].classes
        (5, range(2, 4))
    """
    classes = len(dataset.class_names)
    sizes = task_sizes(protocol, classes)
    if order is None:
        order = tuple(range(classes)) if dataset.keep_order else class_order(classes, seed)
    _check_permutation(order, dataset.class_names, "the class order")
    names = tuple(dataset.class_names[c] for c in order)
    position = {c: p for p, c in enumerate(order)}.__getitem__
    tasks, start = [], 0
    for index, size in enumerate(sizes):
        here = range(start, start + size)
        own = [order[p] for p in here]
        train, test = (images.of_classes(own, position) for images in (dataset.train, dataset.test))
        tasks.append(Task(index, here, names[start : start + size], train, test))
        start += size
    return Stream(dataset.name, canonical(protocol), tuple(order), names, tuple(tasks), dataset.augmentation)
