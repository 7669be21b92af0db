"""What people hand in to learn from, folders of photos or pictures in memory, looked through before learning starts."""

from __future__ import annotations

import io
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor, uint8

from ease.errors import EaseError
from ease.filesystem import expanded, shown, what_is
from ease.progress import Progress, Quiet
from ease.streams.datasets.registry import Unreadable
from ease.streams.images import ArraySource, ImageSet, content_hash
from ease.streams.intake.decode import (
    EXTENSIONS,
    FOREIGN,
    Checked,
    check_content,
    check_file,
    decode,
    file_digest,
    load_image,
    rgb_of,
)
from ease.streams.intake.limits import LIMITS
from ease.streams.intake.scan import find_files, scan_folder, some_of

__all__ = ["Photos", "as_image_set", "class_name", "decode", "find_images", "gather", "jpeg"]

LONGEST_NAME = 100
FEWEST = 5
"""A class with fewer images than this is small: none of them is held out, and a note says so."""
IMBALANCE = 10
"""Classes whose sizes differ by more than this factor are worth a note."""

_AT_ONCE = 64
"""Images between two moves of the bar."""
_EXAMPLES = 3
"""How many a note gives."""
_PARTS = {"train", "test", "val", "valid", "validation"}
"""Folders of datasets that come split: no classes."""
_UNSEEN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's control characters, halves of characters and line separators."""
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of text: a name with them is not what it looks like."""

Item = Path | bytes | Tensor
"""An image as it is held: a file, the content of one, or pixels, uint8 RGB [3, H, W]."""


@dataclass(frozen=True)
class Photos:
    """Classes and their images, each of which was decoded once and can be read.

    Attributes:
        names: the classes; those of folders in the order of their names, those of a mapping as given.
        images: their labels index `names`.
        notes: one line each for what people should know of them.
    """

    names: tuple[str, ...]
    images: ImageSet
    notes: tuple[str, ...]


class HandedIn:
    """Images of all kinds side by side. What is encoded stays so until it is asked for."""

    def __init__(self, items: Sequence[Item], names: Sequence[str]) -> None:
        self.items, self.names = tuple(items), tuple(names)

    def __len__(self) -> int:
        return len(self.items)

    def load(self, index: int) -> Tensor:
        """uint8 RGB [3, H, W]."""
        item = self.items[index]
        if isinstance(item, Tensor):
            return item
        return load_image(item) if isinstance(item, Path) else decode(item, self.names[index])

    def digest(self, index: int) -> str:
        """Names the content: the bytes of a file, else the pixels."""
        item = self.items[index]
        if isinstance(item, Tensor):
            return _digest_of_pixels(item)
        return file_digest(item) if isinstance(item, Path) else content_hash(item)


def as_image_set(images: Sequence[Any], labels: npt.ArrayLike | None = None) -> ImageSet:
    """Images of any kind as one set; files are opened when they are asked for.

    Args:
        images: paths, contents of image files (bytes), Pillow images, numpy arrays (H x W or H x W x 1, 3 or 4; uint8,
            uint16, bool, or float in [0, 1]) or torch tensors (uint8 [3, H, W]); kinds may be mixed.
        labels: [N]; all -1 if left out.
    """
    given = _several(images, "images")
    names = _names_of(given, "images")
    items = [_item(value, name) for value, name in zip(given, names, strict=True)]
    known = np.full(len(items), -1, np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    if known.shape != (len(items),):
        raise EaseError(f"{len(items)} images but labels of shape {list(known.shape)}: give one label each")
    return ImageSet(HandedIn(items, names), np.arange(len(items)), known)


def class_name(name: object) -> str:
    """A class name as it is kept: stripped, in Unicode's composed form, and fit to be shown and to name a file."""
    if not isinstance(name, str):
        raise EaseError(f"class name {name!r:.60} is not text: give a name")
    kept = unicodedata.normalize("NFC", name).strip()
    shown = f"{name[:60]!a}" + "..." * (len(name) > 60)
    if not kept:
        raise EaseError(f"class name {shown} is empty: give a name")
    if len(kept) > LONGEST_NAME:
        raise EaseError(
            f"class name {shown} has {len(kept)} characters: choose one of at most {LONGEST_NAME}"
        )
    if any(unicodedata.category(c) in _UNSEEN or c in _TURNING for c in kept):
        raise EaseError(f"class name {shown} has characters that cannot be shown: choose another name")
    if "/" in kept or "\\" in kept or kept in (".", ".."):
        raise EaseError(f"class name {shown} is a path: choose a name without slashes")
    return kept


def gather(
    source: Path | str | Mapping[str, Sequence[Any]],
    *,
    unreadable: Unreadable = "refuse",
    progress: Progress | None = None,
) -> Photos:
    """Look through what is to be learned. Every image is decoded once: a damaged one must not stop learning midway.

    Args:
        source: a folder with one folder of images per class (one class is enough; folders inside a class count to it),
            or class name -> images as `as_image_set` takes them.
        unreadable: refuse an image that cannot be used with an error that names it, or leave it out with a note.
        progress: where to show how far it is.
    """
    batch = _of_mapping(source) if isinstance(source, Mapping) else _of_folder(Path(source), unreadable)
    if not batch.names:
        raise EaseError("there is no class: name at least one, with its images")
    found = _readable(batch, unreadable, progress or Quiet())
    counts = Counter(one.label for one in found)
    for label, name in enumerate(batch.names):
        if not counts[label]:
            why = next((line for own, line in batch.skipped.values() if own == label), "it has none")
            raise EaseError(f"class '{name}' has no image to learn from ({why})")
    sizes = {name: counts[label] for label, name in enumerate(batch.names)}
    notes = [*_skipped(batch), *batch.notes, *_copies(found, batch.names), *_sizes(sizes)]
    labels = np.array([one.label for one in found], dtype=np.int64)
    held = HandedIn([one.item for one in found], [one.name for one in found])
    return Photos(batch.names, ImageSet(held, np.arange(len(found)), labels), tuple(notes))


@dataclass(frozen=True)
class _Batch:
    """What was handed in, before it is decoded: (label, what messages call it, image)."""

    names: tuple[str, ...]
    entries: list[tuple[int, str, Any]]
    notes: list[str]
    skipped: dict[str, tuple[int | None, str]]
    """What is left out: its name -> its class and why."""


@dataclass(frozen=True)
class _Good:
    label: int
    name: str
    item: Item
    digest: str


def _of_mapping(source: Mapping[str, Sequence[Any]]) -> _Batch:
    names = _distinct(source)
    entries = []
    for label, (name, images) in enumerate(zip(names, source.values(), strict=True)):
        given = _several(images, f"class '{name}'")
        entries += [(label, n, value) for n, value in zip(_names_of(given, name), given, strict=True)]
    return _Batch(names, entries, [], {})


def _of_folder(root: Path, unreadable: Unreadable) -> _Batch:
    scan = scan_folder(expanded(root), unreadable, flat=True)
    if not scan.train:
        loose = f" but {len(scan.others)} loose files" if scan.others else ""
        raise EaseError(
            f"folder '{scan.root}' has no class folder{loose}: make one folder of images per class"
        )
    depths = {len(path.relative_to(scan.root).parts) for paths in scan.train.values() for path in paths}
    if "train" in scan.train and len(scan.train) > 1 and set(scan.train) <= _PARTS and 2 not in depths:
        raise EaseError(f"folder '{scan.root}' holds {', '.join(scan.train)}: give '{scan.root / 'train'}'")
    folders = dict(sorted(zip(_distinct(scan.train), scan.train.items(), strict=True)))
    entries = [
        (label, scan.short(path), path) for label, (_, paths) in enumerate(folders.values()) for path in paths
    ]
    label_of = {folder: label for label, (folder, _) in enumerate(folders.values())}
    skipped = {name: (label_of.get(name.split("/")[0]), line) for name, line in scan.skipped.items()}
    notes = [f"left out {some_of(scan.others)}: no image of a class"] if scan.others else []
    notes += [f"left out {some_of(scan.hidden)}: hidden"] if scan.hidden else []
    return _Batch(tuple(folders), entries, notes, skipped)


def _distinct(names: Iterable[object]) -> tuple[str, ...]:
    kept: dict[str, object] = {}
    for name in names:
        own = class_name(name)
        if own in kept:
            raise EaseError(
                f"class name '{own}' is there twice ({kept[own]!a}, {name!a}): rename or join them"
            )
        kept[own] = name
    return tuple(kept)


def _several(images: Any, what: str) -> list[Any]:
    """A list, and not one image that could be taken for a list of its rows or letters."""
    single = isinstance(images, str | bytes | bytearray | memoryview | Path | Image.Image | Mapping)
    if isinstance(images, np.ndarray | Tensor):
        colours = images.ndim == 3 and (isinstance(images, Tensor) or images.shape[-1] in (1, 3, 4))
        single = images.ndim < 3 or colours
    if single or not isinstance(images, Iterable):
        raise EaseError(f"{what}: a {type(images).__name__} is not a list of images: put it into a list")
    return list(images)


def _names_of(images: Sequence[Any], where: str) -> list[str]:
    return [str(v) if isinstance(v, str | Path) else f"{where}[{i}]" for i, v in enumerate(images)]


def _item(value: Any, name: str) -> Item:
    """What is held of an image. Pixels are taken now, so that later changes to them do not matter."""
    if isinstance(value, str | Path):
        return Path(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Image.Image):
        return rgb_of(value, name)
    if isinstance(value, np.ndarray):
        return _of_array(value, name)
    if isinstance(value, Tensor):
        return _of_tensor(value, name)
    raise EaseError(
        f"image '{name}' is a {type(value).__name__}: "
        "give a path, the bytes of a file, a Pillow image, a numpy array or a torch tensor"
    )


def _of_array(array: npt.NDArray[Any], name: str) -> Tensor:
    wide = array[..., None] if array.ndim == 2 else array
    if wide.ndim != 3 or wide.shape[-1] not in (1, 3, 4) or 0 in wide.shape:
        raise EaseError(
            f"image '{name}' has the shape {list(array.shape)}: give H x W, or H x W x 1, 3 or 4 channels"
        )
    LIMITS.check_size(wide.shape[1], wide.shape[0], name)
    values = _of_values(wide, name)
    return rgb_of(Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values), name)


def _of_values(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    kind = (array.dtype.kind, array.dtype.itemsize)
    if kind == ("u", 1):
        return np.ascontiguousarray(array)
    if kind == ("u", 2):
        return (array >> 8).astype(np.uint8)  # as image files of 16 bits are read
    if kind == ("b", 1):
        return array.astype(np.uint8) * np.uint8(255)
    if kind[0] != "f":
        raise EaseError(f"image '{name}' is of {array.dtype}: give uint8, uint16, bool, or float in [0, 1]")
    if not 0 <= float(array.min()) <= float(array.max()) <= 1:  # NaN is refused, too
        raise EaseError(f"image '{name}' has floats outside of [0, 1]: divide by the largest possible value")
    return np.rint(array.astype(np.float64) * 255).astype(np.uint8)


def _of_tensor(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype != uint8 or tensor.ndim != 3 or tensor.shape[0] != 3 or not tensor.numel():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise EaseError(
            f"image '{name}' is {dtype} {list(tensor.shape)}: give torch tensors as uint8 [3, H, W]"
        )
    LIMITS.check_size(tensor.shape[2], tensor.shape[1], name)
    return tensor.detach().cpu().clone().contiguous()


def _digest_of_pixels(pixels: Tensor) -> str:
    return ArraySource(pixels.permute(1, 2, 0)[None].numpy()).digest(0)


def _readable(batch: _Batch, unreadable: Unreadable, progress: Progress) -> list[_Good]:
    """Those that decode; the others are refused, or put among the skipped."""
    found: list[_Good] = []
    with progress.bar("checking images", len(batch.entries)) as advance, ThreadPoolExecutor(4) as pool:
        for start in range(0, len(batch.entries), _AT_ONCE):
            here = batch.entries[start : start + _AT_ONCE]
            # One after the other: the same Pillow image may be there twice, and threads must not load it at once.
            items = [_item_or_fault(value, name) for _, name, value in here]
            looks = pool.map(_check, items, [name for _, name, _ in here])
            for (label, name, _), item, checked in zip(here, items, looks, strict=True):
                if checked.fault is None and not isinstance(item, EaseError):
                    found.append(_Good(label, name, item, checked.digest))
                elif unreadable == "refuse":
                    raise EaseError(f"{checked.fault}, or skip unreadable files")
                else:
                    batch.skipped[name] = (label, str(checked.fault))
            advance(len(here))
    return found


def _item_or_fault(value: Any, name: str) -> Item | EaseError:
    try:
        return _item(value, name)
    except EaseError as error:
        return error


def _check(item: Item | EaseError, name: str) -> Checked:
    if isinstance(item, EaseError):
        return Checked("", str(item))
    if isinstance(item, Tensor):
        return Checked(_digest_of_pixels(item), None)
    return check_file(item) if isinstance(item, Path) else check_content(item, name)


def _skipped(batch: _Batch) -> list[str]:
    if not batch.skipped:
        return []
    (_, first), *_ = batch.skipped.values()
    return [f"left out {some_of(list(batch.skipped))}: cannot be read ({first})"]


def _copies(found: Sequence[_Good], names: Sequence[str]) -> list[str]:
    """Equal content: within a class it counts as often as it is there; in two classes one of them must be wrong."""
    owners: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        owners[one.digest][one.label].append(one.name)
    extra: Counter[int] = Counter()
    shared: dict[tuple[int, int], list[str]] = defaultdict(list)
    for by_class in owners.values():
        for label, files in by_class.items():
            extra[label] += len(files) - 1
        for first, second in combinations(sorted(by_class), 2):
            shared[first, second].append(f"{by_class[first][0]} = {by_class[second][0]}")
    notes = []
    if total := extra.total():
        most = ", ".join(f"{names[c]}: {n}" for c, n in extra.most_common(_EXAMPLES) if n)
        notes.append(
            f"{_images(total)} the exact copy of another of the same class ({most}): each copy counts"
        )
    for (first, second), pairs in sorted(shared.items()):
        few = ", ".join(pairs[:_EXAMPLES]) + (" ..." if len(pairs) > _EXAMPLES else "")
        both = f"both '{names[first]}' and '{names[second]}'"
        notes.append(f"{_images(len(pairs))} in {both} ({few}): one of the labels must be wrong")
    return notes


def _images(count: int) -> str:
    return "1 image is" if count == 1 else f"{count:,} images are"


def _sizes(sizes: Mapping[str, int]) -> list[str]:
    notes = []
    small, large = min(sizes, key=sizes.__getitem__), max(sizes, key=sizes.__getitem__)
    if sizes[large] > IMBALANCE * sizes[small]:
        notes.append(
            f"classes differ much in size: '{large}' has {sizes[large]:,} images, '{small}' {sizes[small]:,}"
        )
    few = [f"{name}: {count}" for name, count in sizes.items() if count < FEWEST]
    if few:
        more = f" and {len(few) - 5} more" if len(few) > 5 else ""
        notes.append(f"fewer than {FEWEST} images ({', '.join(few[:5])}{more}): more would help a lot")
    return notes


def find_images(places: Sequence[Path | str]) -> list[Path]:
    """Image files, and those in folders at any depth, in the order of their names; what is not there is refused."""
    found: list[Path] = []
    for place in map(Path, places):
        what = what_is(place)
        if what == "folder":
            own = find_files(place, EXTENSIONS | FOREIGN)
            if not own:
                raise EaseError(
                    f"folder '{place}' has no image in it: give one that has, or the images themselves"
                )
            found += own
        elif what == "missing":
            raise EaseError(f"'{shown(place)}' does not exist: check the path")
        else:
            found.append(place)
    return found


def jpeg(image: Tensor, side: int = 96) -> bytes:
    """A small picture of an image, uint8 RGB [3, H, W], to show to people."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=85)
    return buffer.getvalue()
