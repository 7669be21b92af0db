"""Records of one method on one stream, taken together: a row of a table, a curve of a plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ease.errors import EaseError
from ease.experiments.record import Record, check, plain
from ease.methods import method_title, methods

# Parts of a config that say where and how a run was carried out, and not what was asked of it.
SURROUNDINGS = frozenset(
    (
        *("data_root", "accelerator", "devices", "eval_batch_size"),
        *("feature_memory", "download", "unreadable"),
    )
)
# With those that name the place: two runs that differ in nothing else are repetitions of one experiment.
CIRCUMSTANCES = SURROUNDINGS | {"method", "dataset", "protocol", "backbone", "preset", "seed"}


class Place(NamedTuple):
    """What must be equal before two figures may be compared."""

    dataset: str
    protocol: str
    backbone: str

    def __str__(self) -> str:
        return " · ".join(self)


@dataclass(frozen=True)
class Series:
    """One method in one setting at one place, once per seed."""

    label: str
    place: Place
    records: list[Record]

    @property
    def method(self) -> str:
        return str(self.records[0]["method"])

    @property
    def kind(self) -> str:
        return kind_of(self.method)

    @property
    def seeds(self) -> list[int]:
        return [record["seed"] for record in self.records]

    @property
    def classes_seen(self) -> list[int]:
        """The x axis: how many classes each stage has seen."""
        return np.cumsum(self.records[0]["task_sizes"]).tolist()

    def values(self, read: Callable[[Record], float | None]) -> list[float]:
        """One figure of every record that has it."""
        found = (read(record) for record in self.records)
        return [float(value) for value in found if value is not None]

    def curves(self, key: str = "accuracy") -> np.ndarray:
        """[records, stages]."""
        return np.array([record[key] for record in self.records], dtype=float)

    def mean_record(self) -> Record:
        """The first record with its per-task accuracies averaged over the seeds."""
        stages = zip(*(record["per_task"] for record in self.records), strict=True)
        per_task = [[_mean_known(cells) for cells in zip(*stage, strict=True)] for stage in stages]
        return {**self.records[0], "per_task": per_task}


def group(records: Sequence[Record]) -> list[Series]:
    """Gather the seeds of each experiment; places and methods keep the order in which they first appear.

    A record that says its `label` goes by that instead of its method and settings: exhibits name their rows.
    """
    if not records:
        raise EaseError("there is no record to show: run a study first")
    for record in records:
        check(record)

    places: dict[Place, dict[str, list[Record]]] = {}
    for record in records:
        methods = places.setdefault(place_of(record), {})
        methods.setdefault(record.get("label") or plain(method_title(record["method"])), []).append(record)

    grouped = []
    for place, methods in places.items():
        for title, found in methods.items():
            for setting, members in _by_setting(found):
                grouped.append(Series(f"{title} ({setting})" if setting else title, place, members))
    return grouped


def by_place(grouped: Iterable[Series]) -> dict[Place, list[Series]]:
    """The series of each place, in order."""
    places: dict[Place, list[Series]] = {}
    for series in grouped:
        places.setdefault(series.place, []).append(series)
    return places


def place_of(record: Record) -> Place:
    return Place(plain(record["dataset"]), plain(record["protocol"]), plain(record["backbone"]))


def kind_of(method: str) -> str:
    """What a method may look at. Records outlive packages: one nobody knows any more counts as exemplar-free."""
    known = methods().get(method)
    return known.kind if known else "exemplar-free"


def remarks(grouped: Iterable[Series]) -> list[tuple[str, ...]]:
    """What must be said wherever these methods are shown; see `Learner.remark`."""
    known = methods()
    found = dict.fromkeys(series.method for series in grouped)
    return [known[name].remark for name in found if name in known and known[name].remark]


def _by_setting(records: list[Record]) -> list[tuple[str, list[Record]]]:
    """Split records of one method by the settings in which they differ, and name what differs."""
    settings = [_setting(record) for record in records]
    keys = dict.fromkeys(key for setting in settings for key in setting)
    varied = [key for key in keys if len({setting.get(key) for setting in settings}) > 1]
    split: dict[str, list[Record]] = {}
    for record, setting in zip(records, settings, strict=True):
        name = ", ".join(f"{key.rsplit('.', 1)[-1]}={setting.get(key, 'default')}" for key in varied)
        split.setdefault(plain(name), []).append(record)
    return list(split.items())


def _setting(record: Record) -> dict[str, str]:
    """The flattened config without circumstances; task sizes too, since a mean needs equal stages."""
    config = {key: value for key, value in record.get("config", {}).items() if key not in CIRCUMSTANCES}
    return flattened({"tasks": record["task_sizes"], **config})


def flattened(config: dict[str, Any]) -> dict[str, str]:
    """A nested config as one level of `outer.inner` keys, values as text."""
    flat: dict[str, str] = {}

    def walk(prefix: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        else:
            flat[prefix] = value if isinstance(value, str) else json.dumps(value)

    walk("", config)
    return flat


def _mean_known(cells: Sequence[float | None]) -> float | None:
    known = [cell for cell in cells if cell is not None]
    return float(np.mean(known)) if known else None
