"""The paper's exhibits: which cells each one needs, at which scale. `exhibits.yaml` says what is where."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import yaml
from pydantic import Field, field_validator

from ease.config import knows, resolve, sets_for
from ease.errors import EaseError, unknown
from ease.experiments.grid import Cell, same_subspaces
from ease.experiments.plans.rows import MethodRow, PlanDocument, chosen
from ease.experiments.record import RunRecord
from ease.methods import find_method, method_title
from ease.streams.protocol import parse

Scale = Literal["full", "small", "tiny"]
PublishedFigures = tuple[float, float]
"""Average and last accuracy, in percent."""


class DatasetSplit(NamedTuple):
    """A dataset and the protocol that cuts it into tasks."""

    dataset: str
    protocol: str

    def __str__(self) -> str:
        return " ".join(self)


class ExhibitRow(MethodRow):
    """As a row of a study; it may stand for several settings that `vary` names."""

    vary: dict[str, list[Any]] = Field(default_factory=dict)

    @property
    def title(self) -> str:
        """How the exhibit calls it."""
        return self.label or method_title(self.method)


class Exhibit(PlanDocument):
    """One table or figure of the paper."""

    title: str
    paper: str
    draw: Literal["table", "curves", "parameters", "grid", "neighbours", "tsne", "time"]
    backbone: str
    splits: list[DatasetSplit]
    tiny: list[DatasetSplit]
    rows: list[ExhibitRow]
    full_rows: list[ExhibitRow] | None = None
    since: list[ExhibitRow] = Field(default_factory=list)
    """Methods published since, which the paper does not compare with."""
    vary: dict[str, list[Any]] = Field(default_factory=dict)
    seeds: list[int] = Field(default_factory=lambda: [1993])

    @field_validator("rows", "full_rows", "since", mode="before")
    @classmethod
    def _names_are_rows(cls, rows: list[Any] | None) -> list[Any] | None:
        return rows and [{"method": row} if isinstance(row, str) else row for row in rows]


class ScaleSettings(PlanDocument):
    """What a scale changes: values of the run, and settings of the methods that have them."""

    about: str
    run: dict[str, Any] = Field(default_factory=dict)
    set: dict[str, Any] = Field(default_factory=dict)


class _Paper(PlanDocument):
    backbones: dict[str, str]
    scales: dict[Scale, ScaleSettings]
    rows: dict[str, list[Any]]
    exhibits: dict[str, Exhibit]


class _Published(PlanDocument):
    backbone: str
    splits: dict[str, dict[str, PublishedFigures]]


@dataclass(frozen=True)
class Measurement:
    """One run that an exhibit needs: a row on a split of a dataset, with the settings that are varied there."""

    split: DatasetSplit
    row: ExhibitRow
    varied: dict[str, Any]
    cell: Cell


@cache
def _paper() -> _Paper:
    return _Paper.model_validate(_data("exhibits"))


@cache
def _published() -> _Published:
    return _Published.model_validate(_data("published"))


def _data(name: str) -> Any:
    return yaml.safe_load((files("ease.experiments.plans") / f"{name}.yaml").read_text(encoding="utf-8"))


def exhibits() -> dict[str, Exhibit]:
    """All exhibits by name."""
    return _paper().exhibits


def scales() -> dict[Scale, str]:
    """All scales, with one line each."""
    return {name: scale.about for name, scale in _paper().scales.items()}


def check_scale(name: str) -> Scale:
    """A scale by name, or an error with the nearest one."""
    for scale in _paper().scales:
        if scale == name:
            return scale
    raise unknown("scale", name, _paper().scales)


def find_exhibit(name: str) -> Exhibit:
    """An exhibit by name, or an error with the nearest one."""
    if name not in exhibits():
        raise unknown("exhibit", name, exhibits())
    return exhibits()[name]


def plan_exhibits(
    name: str, scale: Scale, *, methods: Sequence[str] = (), since: bool = False, **choices: Any
) -> dict[str, list[Measurement]]:
    """What to measure for an exhibit, or for `all` exhibits that have any of the methods.

    Args:
        name: of the exhibit, or `all`.
        scale: see `measurements`.
        methods: only these; all if empty.
        since: also methods published since the paper. One that `methods` names is taken in any case.
        choices: further arguments of `measurements`.

    Returns:
        The measurements of each exhibit by its name.
    """
    if name != "all":
        return {name: measurements(find_exhibit(name), scale, methods=methods, since=since, **choices)}
    wanted = [find_method(method).name for method in methods]
    found = {}
    for each, exhibit in exhibits().items():
        here = {row.method for row in _rows(exhibit, scale, since or bool(wanted))}
        if not wanted or here.intersection(wanted):
            own = [method for method in wanted if method in here]
            found[each] = measurements(exhibit, scale, methods=own, since=since, **choices)
    if not found:
        raise unknown("method in any exhibit", wanted[0], _all_methods(scale))
    return found


def _all_methods(scale: Scale) -> set[str]:
    return {row.method for exhibit in exhibits().values() for row in _rows(exhibit, scale, since=True)}


def _rows(exhibit: Exhibit, scale: Scale, since: bool) -> list[ExhibitRow]:
    own = exhibit.full_rows if scale == "full" and exhibit.full_rows else exhibit.rows
    return [*own, *exhibit.since] if since else own


def measurements(
    exhibit: Exhibit,
    scale: Scale,
    *,
    methods: Sequence[str] = (),
    since: bool = False,
    seeds: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
) -> list[Measurement]:
    """Everything that an exhibit measures.

    Args:
        exhibit: the table or figure.
        scale: `small` takes its split from `options` (dataset, protocol); the others have their own.
        methods: only these; all of the exhibit's if empty.
        since: also methods published since the paper. One that `methods` names is taken in any case.
        seeds: the exhibit's own if empty.
        options: values of the run that win over the scale's; None means not given.
        sets: `key=value` settings that win over everything, for the methods that have them.
    """
    given = {key: value for key, value in (options or {}).items() if value is not None}
    rows = chosen(_rows(exhibit, scale, since or bool(methods)), methods, "exhibit")
    own = sets_for([row.method for row in rows], sets)
    found = []
    for split in _splits(exhibit, scale, given):
        for row in rows:
            for varied in _combinations({**exhibit.vary, **row.vary}):
                for seed in seeds or exhibit.seeds:
                    cell = _cell(exhibit, scale, split, row, {**varied, "seed": seed}, given, own[row.method])
                    found.append(Measurement(split, row, varied, cell))
    return found


def _splits(exhibit: Exhibit, scale: Scale, given: Mapping[str, Any]) -> list[DatasetSplit]:
    if scale == "tiny":
        return exhibit.tiny
    if "dataset" not in given:
        if scale == "small":
            raise EaseError("which data? give --dataset, with --data-root unless EASE_DATA has it")
        return exhibit.splits
    here = [split for split in exhibit.splits if split.dataset == given["dataset"]]
    if "protocol" in given:
        return [DatasetSplit(given["dataset"], given["protocol"])]
    if not here:
        raise EaseError(
            f"the exhibit has no split for {given['dataset']}: give --protocol, such as 'B0 Inc10'"
        )
    return here


def _combinations(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    return [dict(zip(vary, each, strict=True)) for each in itertools.product(*vary.values())]


def _cell(
    exhibit: Exhibit,
    scale: Scale,
    split: DatasetSplit,
    row: ExhibitRow,
    varied: Mapping[str, Any],
    given: Mapping[str, Any],
    sets: Sequence[str],
) -> Cell:
    settings = _paper().scales[scale]
    values: dict[str, Any] = dict(settings.run)
    if scale == "full":
        values["backbone"] = _paper().backbones[exhibit.backbone]
    values |= given
    values |= {key: value for key, value in settings.set.items() if knows(row.method, key)}
    values |= {"dataset": split.dataset, "protocol": split.protocol}
    if exhibit.draw == "tsne":  # two tasks are all it shows
        base, increment = parse(split.protocol)
        values["limit_classes"] = (base or increment) + increment
    values |= {**row.set, **varied, "method": row.method}
    config, notes = resolve(values, sets=sets)
    return Cell(config, notes, shares=same_subspaces(config))


def published(measurement: Measurement, record: RunRecord) -> PublishedFigures | None:
    """Published figures for exactly this dataset, split, backbone and method.

    A subset of a dataset has another name, and no published figures.
    """
    figures, config = _published(), record.config
    if measurement.row.set or measurement.varied or record.backbone != figures.backbone:
        return None
    if config is None or config.limit_classes or config.limit_per_class:
        return None
    return figures.splits.get(f"{record.dataset} {record.protocol}", {}).get(record.method)
