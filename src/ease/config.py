"""One typed configuration, put together from a preset, a YAML file and options; stored beside every result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator
from pydantic.config import JsonDict

from ease.documents import LARGEST_SETTING, Adjustable, parse_yaml, shortened
from ease.errors import EaseError, unknown
from ease.filesystem import exists, read_text, shown
from ease.methods import current_settings, faults, find_method
from ease.presets import preset_place, preset_values
from ease.streams.protocol import canonical
from ease.training.hardware import AskedPrecision, Precision, device_of, resolve_precision

FILE_LIMIT = 2**20
"""Bytes of a configuration file."""


Role = Literal["result", "runtime", "location"]
"""What a field of `RunConfig` decides: the outcome of a run, how the run is carried out, or where its inputs lie."""

RESULT: JsonDict = {"role": "result"}
"""Decides the outcome: runs that differ in such a field are different experiments."""
RUNTIME: JsonDict = {"role": "runtime"}
"""Decides memory, speed and hardware. The outcome stays the same up to the last bits of floating-point sums, which
depend on the batch size of the evaluation, the number of threads and the device."""
LOCATION: JsonDict = {"role": "location"}
"""A path. Only the content that lies there decides the outcome, so the content hash counts and the path does not."""


class RunConfig(Adjustable):
    """The configuration of a run. `settings` are the method's own.

    Every field declares its role (see `Role`). The names of a grid's cells, the grouping of seeds and the comparison
    of two runs are derived from the roles alone.
    """

    dataset: str = Field("glyphs", json_schema_extra=RESULT)
    data_root: str | None = Field(None, description="the dataset's folder", json_schema_extra=LOCATION)
    protocol: str = Field("B0 Inc6", json_schema_extra=RESULT)
    method: str = Field("ease", json_schema_extra=RESULT)
    backbone: str = Field("ease-vit", json_schema_extra=RESULT)
    weights: str | None = Field(
        None, description="local weights file for the backbone", json_schema_extra=LOCATION
    )
    input_size: int | None = Field(
        None,
        ge=8,
        le=4096,
        description="side length of the input; the model's own if unset",
        json_schema_extra=RESULT,
    )
    normalize: Literal["model", "none"] = Field(
        "model", description="the model's mean and std, or none", json_schema_extra=RESULT
    )
    seed: int = Field(1993, ge=0, lt=2**32, description="random seed", json_schema_extra=RESULT)
    class_order: str | None = Field(
        None, description="file with the order of the classes", json_schema_extra=LOCATION
    )
    limit_per_class: int | None = Field(
        None, ge=1, description="images per class, for quick looks", json_schema_extra=RESULT
    )
    limit_test: int | None = Field(
        None, ge=1, description="test images per class, where fewer are wanted", json_schema_extra=RESULT
    )
    limit_classes: int | None = Field(
        None, ge=1, description="use only the dataset's first classes", json_schema_extra=RESULT
    )
    download: bool = Field(
        False, description="allow fetching the dataset, where it can be", json_schema_extra=RUNTIME
    )
    unreadable: Literal["refuse", "skip"] = Field(
        "refuse", description="what to do about damaged images", json_schema_extra=RESULT
    )
    exemplars: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        20, description="old images kept by exemplar-based methods", json_schema_extra=RESULT
    )
    exemplar_budget: Literal["per-class", "total"] = Field(
        "per-class",
        description="whether `exemplars` counts for each class, or for all classes together",
        json_schema_extra=RESULT,
    )
    selection: Literal["herding", "random"] = Field(
        "herding", description="how exemplars are chosen", json_schema_extra=RESULT
    )
    eval_batch_size: int = Field(
        64, ge=1, le=2**16, description="images per batch where nothing is trained", json_schema_extra=RUNTIME
    )
    accelerator: str = Field("cpu", description="cpu, cuda, mps or auto", json_schema_extra=RUNTIME)
    devices: int = Field(1, ge=1, le=1024, json_schema_extra=RUNTIME)
    nodes: int = Field(
        1, ge=1, le=1024, description="machines that work on one run together", json_schema_extra=RUNTIME
    )
    cpus: int = Field(
        1, ge=1, le=1024, description="cores that a run gets on a Ray cluster", json_schema_extra=RUNTIME
    )
    precision: AskedPrecision = Field(
        # Far more than the last bits: trainings in bf16 end elsewhere.
        "32-true",
        description="32-true, bf16-mixed, or auto, which is replaced by the one that suits this machine",
        json_schema_extra=RESULT,
    )
    compile: bool = Field(
        False,
        description="compile trainings: costs a minute, and may pay in long ones",
        json_schema_extra=RUNTIME,
    )
    feature_memory: int = Field(
        256,
        ge=0,
        le=2**30,
        description="MB of test features held in memory; the rest is on disk",
        json_schema_extra=RUNTIME,
    )
    image_memory: int = Field(
        256,
        ge=0,
        le=2**30,
        description="MB of decoded images held in memory; others are decoded again",
        json_schema_extra=RUNTIME,
    )
    preset: str | None = Field(
        # What it gave stands in the other fields.
        None,
        description="where some of the values come from",
        json_schema_extra=RUNTIME,
    )
    settings: dict[str, Any] = Field(default_factory=dict, json_schema_extra=RESULT)

    @field_validator("precision")
    @classmethod
    def _resolved(cls, precision: AskedPrecision, info: ValidationInfo) -> Precision:
        """Never `auto`: all runs of a grid compute alike, wherever they are made, and records say in what."""
        return resolve_precision(precision, device_of(str(info.data.get("accelerator"))))

    @field_validator("settings")
    @classmethod
    def _of_this_version(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Drop settings that only earlier versions had; see `current_settings`."""
        return current_settings(str(info.data.get("method")), settings)[0]

    def of_role(self, role: Role) -> dict[str, Any]:
        """The values of all fields with this role, as JSON values.

        Fields that only another version knows count as `result`: whether they decide the outcome is not known.
        """
        return {key: value for key, value in self.as_json().items() if role_of(key) == role}

    def as_json(self) -> dict[str, Any]:
        """All values as JSON values."""
        return self.model_dump(mode="python")


class RecordedConfig(RunConfig):
    """The configuration in a record, which another version may have written: fields unknown here are kept."""

    model_config = ConfigDict(extra="allow")

    @field_validator("settings")
    @classmethod
    def _of_this_version(cls, settings: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        """Keep settings of earlier versions that decided the result; those at their defaults are dropped."""
        kept = {}
        for key, value in settings.items():
            current, notes = current_settings(str(info.data.get("method")), {key: value})
            if current or notes:
                kept[key] = value
        return kept


def role_of(key: str) -> Role:
    """The role of a field of `RunConfig`; `result` for a field that this version does not know."""
    field = RunConfig.model_fields.get(key)
    role = (
        field.json_schema_extra["role"] if field and isinstance(field.json_schema_extra, dict) else "result"
    )
    return cast(Role, role)


def resolve(
    options: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
) -> tuple[RunConfig, list[str]]:
    """The configuration of a run, and notes on how a preset was applied.

    Later sources win: defaults, preset, YAML file, options, `key=value` settings. A named row of a preset
    (`released/cifar100-b0inc5-in21k`) gives dataset, protocol and backbone as well.
    """
    values: dict[str, Any] = {}
    single = parse_sets(sets)
    sources = [read_yaml(file) if file is not None else {}, options or {}, {"preset": preset}, single]
    for source in sources:  # a method's own settings may stand at the top or under `settings`
        nested = source.get("settings") or {}
        if not isinstance(nested, Mapping):
            raise EaseError(f"settings must be 'key: value' pairs, not {shortened(nested)}")
        values |= {k: v for k, v in {**nested, **source}.items() if k != "settings" and v is not None}
    method = find_method(str(values.get("method", RunConfig.model_fields["method"].default)))
    known = [*RunConfig.model_fields, *method.Settings.model_fields]
    for key, value in {**single, **values}.items():  # also one that was given without a value
        if key not in known:
            raise unknown(f"setting for method '{method.name}'", str(key), known)
        _check_size(key, value)
    given = {**{k: v for k, v in values.items() if k in RunConfig.model_fields}, "method": method.name}
    own = {k: v for k, v in values.items() if k in method.Settings.model_fields}
    if "protocol" in given:
        given["protocol"] = canonical(str(given["protocol"]))
    notes: list[str] = []
    if given.get("preset"):
        preset, place = preset_place(str(given["preset"]))
        given = {**place, **given}
        whole = {**{n: f.default for n, f in RunConfig.model_fields.items()}, **given}
        asked = (str(whole[key]) for key in ("dataset", "protocol", "backbone"))
        run, settings, notes = preset_values(method.name, preset, *asked)
        for key in (key for key in place if place[key] != given[key]):
            notes.append(f"preset '{given['preset']}' names {key} {place[key]}: {given[key]} was asked for")
        given, own = {**run, **given}, {**settings, **own}
    if method.name in faults():  # another package wants this name
        notes = [*notes, faults()[method.name]]
    complete = validated(method.Settings, own, f"settings of '{method.name}'")
    given["settings"] = complete.model_dump(mode="json")
    return validated(RunConfig, given, "run configuration"), notes


def _check_size(key: str, value: Any) -> None:
    """Refuse a whole number that no setting can mean, before it is given to code that would try to use it."""
    for number in value if isinstance(value, (list, tuple)) else [value]:
        if isinstance(number, (int, float)) and abs(number) > LARGEST_SETTING and key != "seed":
            raise EaseError(
                f"setting {key} = {shortened(number)} is too large: choose at most {LARGEST_SETTING}"
            )


def knows(method: str, key: str) -> bool:
    """Whether a setting of this name means something for a run of the method."""
    name = key.strip().replace("-", "_")
    return name in RunConfig.model_fields or name in find_method(method).Settings.model_fields


def sets_for(methods: Sequence[str], sets: Sequence[str]) -> dict[str, list[str]]:
    """For each of several methods the `key=value` settings it has; one that no method has is an error."""
    names = {text: text.partition("=")[0] for text in sets}
    for key in names.values():
        if key.strip() == "method":
            raise EaseError("'method' cannot be set where several methods run: choose them with --methods")
        if not any(knows(method, key) for method in methods):
            own = (find_method(method).Settings.model_fields for method in methods)
            raise unknown("setting of any method here", key, {*RunConfig.model_fields}.union(*own))
    return {m: [text for text, key in names.items() if knows(m, key)] for m in methods}


def validated(model: type[Any], values: object, where: str) -> Any:
    """The model, or one line that names the first wrong value."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise unknown(f"key in {where}", key, model.model_fields) from None
        raise EaseError(
            f"{where}: {key} = {shortened(first['input'])}: {first['msg'].removeprefix('Value error, ').lower()}"
        ) from None


def parse_sets(sets: Sequence[str]) -> dict[str, Any]:
    """Settings given as `key=value`."""
    return dict(_parse_set(text) for text in sets)


def _parse_set(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    where = f"'--set {shortened(text)[1:-1]}'"
    if not equals or not key.strip():
        raise EaseError(f"{where} is not key=value: write for example --set alpha=0.3")
    found = parse_yaml(value, f"{where}: the value", "quote it or write it as JSON")
    return key.strip().replace("-", "_"), _number(found)


def _number(value: Any) -> Any:
    """YAML 1.1 reads 5e-4 as text; people mean the number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def read_yaml(path: Path, what: str = "config file") -> dict[str, Any]:
    """A YAML file of `key: value` lines, which may come from anywhere: no objects, no more than 1 MB."""
    if not exists(path):
        raise EaseError(f"{what} {shown(path)} does not exist: check the path")
    content = parse_yaml(read_text(path, FILE_LIMIT), f"{what} {shown(path)}")
    if not isinstance(content, dict):
        raise EaseError(f"{what} {shown(path)} must hold 'key: value' lines")
    return content
