"""Records of one method on one stream, taken together: a row of a table, a curve of a plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np

from ease.errors import EaseError
from ease.experiments.record import RunRecord, plain
from ease.methods import method_title, methods


class BenchmarkKey(NamedTuple):
    """The dataset, split and backbone that a method is measured on. Only figures of one benchmark are compared."""

    dataset: str
    protocol: str
    backbone: str

    def __str__(self) -> str:
        return " · ".join(self)


@dataclass(frozen=True)
class Series:
    """One experiment: a method in one setting on one benchmark, once per seed.

    Attributes:
        label: how tables and plots call it.
        benchmark: what it was measured on.
        records: one per seed.
    """

    label: str
    benchmark: BenchmarkKey
    records: list[RunRecord]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.records[0].method

    @property
    def kind(self) -> str:
        """See `kind_of`."""
        return kind_of(self.method)

    @property
    def seeds(self) -> list[int]:
        """The seed of each record."""
        return [record.seed for record in self.records]

    @property
    def classes_seen(self) -> list[int]:
        """How many classes each stage has seen: the x axis of curves."""
        return np.cumsum(self.records[0].task_sizes).tolist()

    def values(self, read: Callable[[RunRecord], float | None]) -> list[float]:
        """One figure of every record that has it."""
        found = (read(record) for record in self.records)
        return [float(value) for value in found if value is not None]

    def curves(self) -> np.ndarray:
        """Accuracies after each stage, [records, stages]."""
        return np.array([record.accuracy for record in self.records], dtype=float)

    def mean_per_task(self) -> list[list[float | None]]:
        """Accuracies on each task after each stage, averaged over the seeds; see `RunRecord.per_task`."""
        stages = zip(*(record.per_task for record in self.records), strict=True)
        return [[_mean_known(cells) for cells in zip(*stage, strict=True)] for stage in stages]


def group(records: Sequence[RunRecord]) -> list[Series]:
    """Gather the seeds of each experiment.

    Two records are of one experiment if they agree in all values of the role `result` but the seed, and in the content
    of their weights and class order. Where a run was carried out, and with how much memory, does not matter.

    Args:
        records: in any order. One with a `label` goes by that instead of its method.

    Returns:
        The experiments; benchmarks and methods keep the order in which they first appear.
    """
    if not records:
        raise EaseError("there is no record to show: run a study first")
    benchmarks: dict[BenchmarkKey, dict[str, list[RunRecord]]] = {}
    for record in records:
        named = benchmarks.setdefault(benchmark_of(record), {})
        named.setdefault(plain(record.label or method_title(record.method)), []).append(record)

    grouped = []
    for benchmark, named in benchmarks.items():
        for title, found in named.items():
            for setting, members in _by_setting(found):
                grouped.append(Series(f"{title} ({setting})" if setting else title, benchmark, members))
    return grouped


def by_benchmark(grouped: Iterable[Series]) -> dict[BenchmarkKey, list[Series]]:
    """The series of each benchmark, in order."""
    benchmarks: dict[BenchmarkKey, list[Series]] = {}
    for series in grouped:
        benchmarks.setdefault(series.benchmark, []).append(series)
    return benchmarks


def benchmark_of(record: RunRecord) -> BenchmarkKey:
    """What a run was measured on."""
    return BenchmarkKey(plain(record.dataset), plain(record.protocol), plain(record.backbone))


def kind_of(method: str) -> str:
    """Whether a method keeps exemplars or is a ceiling; a method that is not installed counts as exemplar-free."""
    known = methods().get(method)
    return known.kind if known else "exemplar-free"


def remarks(grouped: Iterable[Series]) -> list[tuple[str, ...]]:
    """What must be said wherever these methods are shown; see `Learner.remark`."""
    known = methods()
    found = dict.fromkeys(series.method for series in grouped)
    return [known[name].remark for name in found if name in known and known[name].remark]


def result_values(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """For each record all that decides its outcome, as text: values of the role `result` and contents of locations.

    A setting that is younger than a record counts as its default. Weights and class order are named by their content
    hashes if all records have those, else by the names of the files.
    """
    hashed = all(record.inputs is not None for record in records)
    return [_result_values(record, hashed) for record in records]


def _result_values(record: RunRecord, hashed: bool) -> dict[str, str]:
    config, known = record.config, methods().get(record.method)
    values = config.of_role("result") if config is not None else {}
    settings = values.pop("settings", {})
    if known is not None and settings:
        settings = {**known.Settings().model_dump(mode="json"), **settings}
    named = {key: getattr(record, key) for key in ("method", "dataset", "protocol", "backbone", "seed")}
    contents: dict[str, Any] = {}
    for key in ("weights", "class_order"):
        path = None if config is None else getattr(config, key)
        content = getattr(record.inputs, key) if hashed and record.inputs is not None else None
        contents[key] = content[:12] if content is not None else path and PurePath(path).name
    # A subset of a dataset has a name of its own in the record, not in the config.
    return flattened({**values, **settings, **contents, **named})


def image_remarks(records: Sequence[RunRecord]) -> list[str]:
    """One sentence for each dataset and split whose runs are known to have seen different images."""
    remarks = []
    streams: dict[str, list[RunRecord]] = {}
    for record in records:
        streams.setdefault(plain(f"{record.dataset} {record.protocol}"), []).append(record)
    for stream, members in streams.items():
        inputs = [record.inputs for record in members if record.inputs is not None]
        parts = [
            word
            for word, digests in (
                ("training", {each.train for each in inputs}),
                ("test", {each.test for each in inputs}),
            )
            if len(digests) > 1
        ]
        if parts:
            made = [_drawn_with(record) for record in members if record.inputs is not None]
            why = f" (made with {' and '.join(dict.fromkeys(made))})" if len(set(made)) > 1 else ""
            remarks.append(f"Runs on {stream} saw different {' and '.join(parts)} images{why}.")
    return remarks


def _drawn_with(record: RunRecord) -> str:
    found = ((name, record.versions.get(name)) for name in ("matplotlib", "pillow"))
    return plain(", ".join(f"{name} {version}" for name, version in found if version)) or "unknown versions"


def _by_setting(records: list[RunRecord]) -> list[tuple[str, list[RunRecord]]]:
    """Split records of one method by the values in which they differ, and name what differs."""
    settings = []
    for record, values in zip(records, result_values(records), strict=True):
        # A mean needs equal stages.
        settings.append({"tasks": json.dumps(record.task_sizes), **values})
    keys = dict.fromkeys(key for setting in settings for key in setting if key != "seed")
    varied = [key for key in keys if len({setting.get(key) for setting in settings}) > 1]
    split: dict[str, list[RunRecord]] = {}
    for record, setting in zip(records, settings, strict=True):
        name = ", ".join(f"{key.rsplit('.', 1)[-1]}={setting.get(key, 'default')}" for key in varied)
        split.setdefault(plain(name), []).append(record)
    return list(split.items())


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
