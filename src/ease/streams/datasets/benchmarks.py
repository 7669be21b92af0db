"""The benchmarks that their authors gave away as archives of train/CLASS and test/CLASS folders."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

from ease.errors import EaseError
from ease.filesystem import is_folder, is_inside, shown
from ease.streams.datasets.cub import has_lists, scan_lists
from ease.streams.datasets.folder import dataset_of
from ease.streams.datasets.published import PUBLISHED, recognise
from ease.streams.datasets.registry import Request, Unreadable, dataset
from ease.streams.intake.names import numeric_order, readable_names
from ease.streams.intake.scan import FolderScan, scan_folder
from ease.streams.stream import Dataset

BENCHMARKS = ("cub200", "imagenet-a", "imagenet-r", "objectnet", "omnibenchmark", "vtab")


def load_benchmark(name: str, request: Request) -> Dataset:
    """The images under the root; classes in the order of their folders, under names people can read."""
    scan = _scan(name, request, request.unreadable)
    if scan.test is None:
        raise EaseError(f"'{scan.root}' has train/ but no test/: {_expected(name)}")
    called, note = recognise(name, _sizes(scan.train), _sizes(scan.test))
    if note is not None:
        scan.notes.append(note)
    found = dataset_of(scan, called, request.limit, keep_order=PUBLISHED[name].keep_order)
    return replace(found, class_names=readable_names(found.class_names))


def examine_benchmark(name: str, request: Request) -> FolderScan:
    """The files a check looks at: what would stop a run is kept to be reported."""
    return _scan(name, request, "skip", keep_empty=True)


def _scan(name: str, request: Request, unreadable: Unreadable, *, keep_empty: bool = False) -> FolderScan:
    root = request.folder(name, _expected(name))
    folder = _locate(name, root)
    if folder is None:
        raise EaseError(f"{PUBLISHED[name].title} is not in '{shown(root)}': {_expected(name)}")
    if is_folder(folder / "train"):
        scan = scan_folder(folder, unreadable, split=True, keep_empty=keep_empty)
    else:
        scan = scan_lists(folder, unreadable)
    if PUBLISHED[name].keep_order:  # the tasks follow the folders, so 10 must not come before 2
        scan.train = {c: scan.train[c] for c in numeric_order(list(scan.train))}
    return scan


def _locate(name: str, root: Path) -> Path | None:
    """The folder that holds the images: the root, or what an archive unpacked there (`cub/`, `vtab-cil/vtab/`)."""
    published = PUBLISHED[name]
    known = dict.fromkeys([name, *(a.partition(".")[0] for a in published.archives), *published.folders])
    inner = [root / k for k in known] + [root / k / other for k in known for other in known if k != other]
    for folder in [root, *(f for f in inner if is_folder(f) and is_inside(f, root))]:
        if is_folder(folder / "train") or (name == "cub200" and has_lists(folder)):
            return folder
    return None


def _expected(name: str) -> str:
    published = PUBLISHED[name]
    official = ", or the official CUB_200_2011 folder" if name == "cub200" else ""
    return (
        f"expected there are train/CLASS and test/CLASS folders ({published.line}){official}; "
        f"{' or '.join(published.archives)} was published in {published.source}"
    )


def _sizes(classes: dict[str, list[Path]]) -> list[int]:
    return [len(paths) for paths in classes.values()]


for _name in BENCHMARKS:
    dataset(_name, f"{PUBLISHED[_name].line}: class folders", partial(examine_benchmark, _name))(
        partial(load_benchmark, _name)
    )
