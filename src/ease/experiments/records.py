"""Finding the records of finished runs: in a file, in a run's folder, or in the folders below one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ease.errors import EaseError
from ease.experiments.record import Record, check
from ease.filesystem import entries, exists, is_file, is_folder, resolved, shown
from ease.storage.files import read_json

DEPTH = 4
"""How many folders below the named one are searched: runs/dataset/method/seed and one more."""
RECORD, STARTED = "record.json", "run.json"


@dataclass(frozen=True)
class Found:
    """A record and the file it was read from."""

    path: Path
    record: Record


@dataclass
class Harvest:
    """What lies under some paths."""

    runs: list[Found] = field(default_factory=list)
    unfinished: list[Path] = field(default_factory=list)
    """Folders of runs that have begun and not ended."""

    @property
    def records(self) -> list[Record]:
        return [run.record for run in self.runs]


def find_records(paths: Iterable[Path]) -> Harvest:
    """The records of all paths, each once, in the order of the paths and by name below them."""
    harvest, seen = Harvest(), set()
    for path in paths:
        files, unfinished = _under(path)
        if not files:
            raise _nothing(path, unfinished)
        for file in files:
            if resolved(file) not in seen:
                seen.add(resolved(file))
                harvest.runs.append(Found(file, _read(file)))
        harvest.unfinished += [folder for folder in unfinished if folder not in harvest.unfinished]
    return harvest


def _under(path: Path) -> tuple[list[Path], list[Path]]:
    """Record files and unfinished runs at or below a path."""
    if not is_folder(path):
        return ([path] if exists(path) else []), []
    files, unfinished = _search(path, DEPTH)
    # A folder of kept records has no run folders: its files are named after the methods.
    return files or _kept(path), unfinished


def _search(folder: Path, depth: int) -> tuple[list[Path], list[Path]]:
    if is_file(folder / RECORD):
        return [folder / RECORD], []
    if is_file(folder / STARTED):
        return [], [folder]
    files: list[Path] = []
    unfinished: list[Path] = []
    if depth:
        # Links are not followed: one that points upwards would be searched for ever.
        below = [p for p in entries(folder) if not p.is_symlink() and p.name[0] != "." and is_folder(p)]
        for inner in below:
            more, begun = _search(inner, depth - 1)
            files += more
            unfinished += begun
    return files, unfinished


def _kept(folder: Path) -> list[Path]:
    """JSON files directly in a folder that are records; others may lie beside them."""
    candidates = [path for path in entries(folder) if path.suffix == ".json" and is_file(path)]
    return [path for path in candidates if _looks_like_record(read_json(path))]


def _looks_like_record(value: object) -> bool:
    return isinstance(value, dict) and {"method", "protocol", "accuracy", "per_task"} <= set(value)


def _read(path: Path) -> Record:
    record = read_json(path)
    try:
        check(record)
    except EaseError as error:
        raise EaseError(f"{path}: {error}") from None
    return dict(record)


def _nothing(path: Path, unfinished: list[Path]) -> EaseError:
    if not exists(path):
        return EaseError(f"{shown(path)} does not exist: check the path")
    if unfinished:
        return EaseError(
            f"{path} holds no finished run: continue one with 'ease run --resume {unfinished[0]}'"
        )
    return EaseError(f"{path} holds no finished run: it has no {RECORD}, and no folder below it has one")
