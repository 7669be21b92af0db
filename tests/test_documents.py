"""YAML and JSON from anywhere become plain values or one line."""

from __future__ import annotations

import contextlib
import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ease.config import parse_sets, read_yaml
from ease.documents import DEPTH, parse_json, parse_yaml
from ease.errors import EaseError
from ease.experiments.plans.study import load_study

BAD = {
    "a date in month 13": "!!timestamp 2001-13-01",
    "a tag with the wrong text": "!!int x",
    "a float that is none": "!!float x",
    "a bool that is none": "!!bool x",
    "5,000 digits": "9" * 5000,
    "beyond 64 bits": str(2**70),
    "digits in base 60": "9" * 30 + ":59",
    "a Python object": "!!python/object/apply:os.system [echo]",
    "binary": "!!binary aGVsbG8=",
    "a set": "!!set {a}",
    "depth": "[" * 3000,
    "depth that fits into a stack": "[" * (DEPTH + 1) + "]" * (DEPTH + 1),
    "an endless value": "&a [*a]",
    "a list as key": "{[1]: 2}",
    "a number as key": "{1: 2}",
    "two documents": "a\n---\nb",
    "no YAML": "{",
}
BOMB = "\n".join(["a0: &a0 [1, 2, 3]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60))])
MERGES = "\n".join(["a0: &a0 {k: 1}", *(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}" for i in range(1, 60))])


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_what_is_no_plain_value_is_one_line_wherever_it_stands(text: str, tmp_path: Path) -> None:
    with pytest.raises(EaseError, match=r"'--set lr=.+ is not valid YAML \(.+\): quote it") as of_set:
        parse_sets([f"lr={text}"])
    (tmp_path / "c.yaml").write_text(f"lr: {text}\n")
    with pytest.raises(EaseError, match=r"config file .+c.yaml is not valid YAML \(.+\)") as of_file:
        read_yaml(tmp_path / "c.yaml")
    with pytest.raises(EaseError, match="not valid YAML"):
        load_study(str(tmp_path / "c.yaml"))
    for error in (of_set, of_file):
        assert len(str(error.value)) < 700


@pytest.mark.parametrize("text", [BOMB, MERGES], ids=["aliases", "merges"])
def test_a_few_lines_cannot_stand_for_millions_of_values(text: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(EaseError, match="100000 values"):
        parse_yaml(text, "it")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_plain_values_are_what_they_say() -> None:
    text = "{a: 1, b: 1.5, c: true, d: null, e: [x, 'y'], f: 2001-01-01, g: 0x10}"
    found = parse_yaml(text, "it")
    assert found == {"a": 1, "b": 1.5, "c": True, "d": None, "e": ["x", "y"], "f": "2001-01-01", "g": 16}
    shared = parse_yaml("a: &a {lr: 0.1}\nb: {<<: *a, rank: 2}\nc: *a\n", "it")
    assert shared == {"a": {"lr": 0.1}, "b": {"lr": 0.1, "rank": 2}, "c": {"lr": 0.1}}
    assert parse_sets(["lr=5e-4", "name=2001-13-01"]) == {"lr": 5e-4, "name": "2001-13-01"}


@given(st.text(alphabet=st.sampled_from("!&*<>:[]{}-?|'\"%@`#, \n\tabtfn0159.~_exosZ"), max_size=40))
@example("!!timestamp 99999999999-01-01")
@example("? !!float .\n: 1")
@settings(max_examples=300, deadline=None)
def test_any_text_is_a_plain_value_or_one_line(text: str) -> None:
    with contextlib.suppress(EaseError):
        assert _is_plain(parse_yaml(text, "it"))


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


@pytest.mark.parametrize(
    "text", ["", "[", "[NaN]", "[1e]", "[" * 3000, "9" * 5000, b"\xff", "[" * 65 + "]" * 65]
)
def test_json_that_is_none_is_one_line(text: str | bytes) -> None:
    with pytest.raises(EaseError, match=r"^it is not valid JSON \(.+\): write a list$"):
        parse_json(text, "it", "write a list")
