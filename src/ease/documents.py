"""YAML and JSON that may come from anywhere: plain values of bounded size and depth, or one kind of error.

`Document` is the base class of the typed documents that are stored in such files.
"""

from __future__ import annotations

import json
import re
import unicodedata
from reprlib import Repr
from typing import Annotated, Any, NoReturn, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from ease.errors import EaseError

DEPTH = 64
"""Levels of lists and mappings inside each other."""
VALUES = 100_000
"""Values of a YAML document, those that an alias repeats counted each time."""
LARGEST = 2**63 - 1
"""Whole numbers beyond this are nothing that could be asked for."""
LARGEST_SETTING = 2**31 - 1
"""Settings have smaller numbers. Beyond this, torch cannot calculate with some of them."""

_FAULTS = (
    yaml.YAMLError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)
"""What PyYAML raises. Its constructors pass on whatever Python says to a value, such as a date in month 13."""
_DIGITS = 18
_PLAIN = ("null", "bool", "int", "float", "str", "seq", "map")
_TAG = "tag:yaml.org,2002:"
_shorten = Repr()
_shorten.maxstring = _shorten.maxother = 120


def whole_number(text: str) -> int | None:
    """The whole number from 0 on that a text is; None if it is none, or one of more digits than anything has."""
    return int(text) if text.isdecimal() and len(text) <= _DIGITS else None


class Document(BaseModel):
    """A typed document: frozen, without unknown keys, and with finite numbers only."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    def as_json(self) -> dict[str, Any]:
        """The document as JSON values."""
        return self.model_dump(mode="python")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("it should be text")
    return value


def _integer(value: object) -> object:
    if isinstance(value, int) and abs(value) > LARGEST:
        raise ValueError(f"it is beyond {LARGEST}")
    return value


class Adjustable(BaseModel):
    """Values that people choose: frozen, without unknown keys, with finite numbers, and never yes for 1."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_bool_as_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse yes and no where a number is meant: pydantic would take them for 1 and 0."""
        some = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, bool) for one in some):
            parts = _parts(cls.model_fields[str(info.field_name)].annotation)
            if parts & {int, float} and not parts & {bool, Any}:
                raise ValueError("it should be a number: yes, no, true and false are none")
        return value

    @field_validator("*")
    @classmethod
    def _no_number_that_overflows(cls, value: object) -> object:
        some = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, float) and abs(one) > LARGEST_SETTING for one in some):
            raise ValueError(f"it is beyond {LARGEST_SETTING}")
        return value


def _parts(annotation: Any) -> set[Any]:
    """The types that a type is put together from."""
    inner = [one for one in get_args(annotation) if not isinstance(one, str | int | float | None)]
    return {annotation}.union(*map(_parts, inner)) if inner else {annotation}


Text = Annotated[str, PlainValidator(_text)]
"""Any text, halves of characters included: a class may be named after a folder whose name is not valid UTF-8.
pydantic's own `str` refuses those."""
Count = Annotated[int, BeforeValidator(_integer), Field(ge=0)]
"""A whole number from 0 on."""


_HIDDEN = {"Cc", "Cs", "Zl", "Zp"}
"""Unicode's control characters, halves of characters and line separators."""
_TURNING = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that turn the direction of text: a name with them is not what it looks like."""


def cannot_be_shown(name: str) -> bool:
    """Whether a name holds control characters, halves of characters, or characters that turn the text around.

    This is what readers of files refuse. For new names `class_name` is stricter: models of earlier versions stay open.
    """
    return any(unicodedata.category(char) in _HIDDEN or char in _TURNING for char in name)


def fault_of(error: ValidationError) -> tuple[str, str]:
    """The first wrong value of a document, as the path to it and what is wrong with it."""
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return shortened(where)[1:-1], message[:1].lower() + message[1:]


_ABOUT_PYTHON = re.compile(
    r"NoneType|\bobject\b|argument|unhashable|subscript|unpack|operand|callable|invalid literal|could not convert|"
    r"index out of|Errno|<\w+ |\w+Error\b|0x[0-9a-f]{6}|\.py\b|__|'(int|float|str|dict|list|tuple|bool)'"
)
"""Words by which Python tells what a program did wrong, not what is wrong with a file."""


def reason_of(error: BaseException, otherwise: str = "a value is of the wrong kind") -> str:
    """What an exception of Python or of another package says, in words for people and at most 120 characters.

    Args:
        error: what was raised while something from anywhere was used.
        otherwise: what is said where the exception speaks of Python's own things; `--debug` shows it in full.
    """
    if isinstance(error, ValidationError):
        where, message = fault_of(error)
        return f"{where}: {message}"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, MemoryError):
        return "it needs more memory than there is"
    text = " ".join((getattr(error, "strerror", None) or str(error)).split())[:120]
    if isinstance(error, KeyError):
        return f"{text} is missing"
    if "integer string conversion" in text:
        return "it has a number of thousands of digits"
    wrong_kind = isinstance(error, TypeError | AttributeError)
    return otherwise if wrong_kind or not text or _ABOUT_PYTHON.search(text) else text


class _PlainLoader(yaml.SafeLoader):
    """Knows what JSON knows. Dates, sets and binary data are text or refused: no setting is one of these."""

    def compose_mapping_node(self, anchor: Any) -> Any:
        """Refuse a key that is written twice: PyYAML would drop the first value in silence."""
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                if key.value in seen:
                    problem = f"the key {shortened(key.value)} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return node

    def flatten_mapping(self, node: Any) -> None:
        """Merge keys (`<<`) can double a mapping with every line: the sum is bounded."""
        super().flatten_mapping(node)
        if len(node.value) > VALUES:
            raise ValueError(f"it merges more than {VALUES} values")


_PlainLoader.yaml_constructors = {
    tag: make
    for tag, make in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(_TAG) in _PLAIN
}
_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag.removeprefix(_TAG) != "timestamp"]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(text: str, where: str, advice: str = "check it") -> Any:
    """The value that a YAML text stands for: None, booleans, numbers, text, lists, and mappings with text as keys.

    Args:
        text: from anywhere.
        where: what the error calls it.
        advice: what the error says should be done.
    """
    try:
        value = yaml.load(text, _PlainLoader)  # a SafeLoader that knows less
        _check(value)
    except _FAULTS as error:
        raise EaseError(f"{where} is not valid YAML ({_reason(error)}): {advice}") from error
    return value


def parse_json(data: bytes | str, where: str, advice: str = "check it", *, once: bool = False) -> Any:
    """The value that a JSON text stands for; arguments as for `parse_yaml`. NaN and Infinity are not JSON.

    Args:
        data: from anywhere.
        where: what the error calls it.
        advice: what the error says should be done.
        once: whether a key that is there twice is an error; the first value would be dropped in silence.
    """
    try:
        text = data if isinstance(data, str) else data.decode("utf-8-sig")
        hook = _refuse_repeated if once else None
        value = json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=hook)
        check_depth(value)
    except (ValueError, RecursionError) as error:
        raise EaseError(f"{where} is not valid JSON ({_reason(error)}): {advice}") from error
    return value


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {shortened(next(k for k in keys if keys.count(k) > 1))} is there twice")
    return value


def check_depth(value: Any, depth: int = DEPTH) -> None:
    """`ValueError` if lists and mappings are nested deeper than this."""
    layer, levels = [value], 0
    while layer:
        levels += 1
        if levels > depth:
            raise ValueError(f"it is nested deeper than {depth} levels")
        inner = (v.values() if isinstance(v, dict) else v for v in layer if isinstance(v, dict | list))
        layer = [v for values in inner for v in values]


def shortened(value: object) -> str:
    """A value as a message shows it, in at most about 120 characters."""
    try:
        return _shorten.repr(value)
    except ValueError:  # a whole number of thousands of digits
        return "a number of thousands of digits"


def _check(value: Any) -> None:
    """Aliases make few lines stand for many values, or for endless ones: each is counted where it is used."""
    layer, count, levels = [value], 0, 0
    while layer:
        levels, count = levels + 1, count + len(layer)
        if levels > DEPTH or count > VALUES:
            limit = f"deeper than {DEPTH} levels" if levels > DEPTH else f"more than {VALUES} values"
            raise ValueError(f"it has {limit}")
        inner: list[Any] = []
        for one in layer:
            if isinstance(one, dict):
                if not all(isinstance(key, str) for key in one):
                    raise ValueError(
                        f"the key {shortened(next(k for k in one if not isinstance(k, str)))} is not text"
                    )
                inner += one.values()
            elif isinstance(one, list):
                inner += one
            elif isinstance(one, int) and abs(one) > LARGEST:
                raise ValueError(f"the whole number {shortened(one)} is beyond {LARGEST}")
            if len(inner) > VALUES:
                raise ValueError(f"it has more than {VALUES} values")
        layer = inner


def _reason(error: BaseException) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark or error.context_mark
        problem = error.problem.replace("found unhashable key", "a key is a list or a mapping")
        return problem + (f", line {mark.line + 1}" if mark is not None else "")
    return shortened(reason_of(error))[1:-1]


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number in JSON")
