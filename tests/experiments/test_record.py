"""The record: read in every version, written once, and a damaged one is one line."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ease.errors import EaseError
from ease.experiments.environment import peak_memory, versions
from ease.experiments.record import FORMAT, RunRecord
from ease.reporting.compare import compare
from ease.reporting.report import render_report
from ease.reporting.series import group
from ease.reporting.tables import comparison
from tests.reporting.conftest import build_record, record_values
from tests.test_cli import ease, refused

OLD = Path(__file__).parent / "record-1.json"
"""As the first version wrote it."""


def test_a_record_of_format_1_is_read() -> None:
    record = RunRecord.read(OLD)
    assert (record.format, record.method, record.seed) == (1, "simplecil", 1993)
    assert (record.average, record.forward_passes.total) == (48.53611111111111, 4000)
    assert (record.seconds.total, record.seconds.waiting) == (159.711, None)
    assert record.inputs is None
    assert record.config is not None
    assert (record.config.limit_per_class, record.config.image_memory) == (20, 256)
    assert "SimpleCIL" in comparison([record]).markdown()


def test_a_record_of_format_1_comes_back_as_it_went(tmp_path: Path) -> None:
    RunRecord.read(OLD).write(tmp_path / "record.json")
    before, after = (json.loads(path.read_text()) for path in (OLD, tmp_path / "record.json"))
    for key in before:
        if isinstance(before[key], dict):
            assert {inner: after[key][inner] for inner in before[key]} == before[key]
        else:
            assert after[key] == before[key]


def test_an_old_record_and_a_new_one_of_the_same_settings_are_one_experiment() -> None:
    old = json.loads(OLD.read_text())
    new = RunRecord.parse(
        {**old, "format": FORMAT, "seed": 7, "config": {**old["config"], "limit_test": None}}
    )
    (series,) = group([RunRecord.parse(old), new])
    assert series.seeds == [1993, 7]


def test_what_only_a_later_version_knows_is_kept_in_the_config_and_decides() -> None:
    configs = [{"seed": 1, "novelty": value} for value in (3, 4)]
    labels = [s.label for s in group([build_record(config=config) for config in configs])]
    assert labels == ["EASE (novelty=3)", "EASE (novelty=4)"]


def test_a_label_changes_a_record_in_nothing_else() -> None:
    record = build_record()
    assert record.labelled("mine").label == "mine"
    assert record.labelled("mine").model_copy(update={"label": None}) == record
    assert record.labelled(None) is record
    assert "label" not in record.as_json()


WRONG: list[Any] = [
    None,
    "",
    "x",
    -1,
    2**70,
    10**400,
    1e308,
    -0.5,
    True,
    [],
    [[]],
    {},
    {"a": 1},
    [None],
    "\x1b[2J",
]


def parsed(values: Any) -> RunRecord | str:
    """A record, or what is wrong with the values."""
    try:
        return RunRecord.parse(values)
    except EaseError as error:
        return str(error)


def spots(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside a JSON value."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    )
    return [path] * bool(path) + [spot for key, below in inner for spot in spots(below, (*path, key))]


VALUES = {
    **record_values(stages=2),
    "inputs": {"train": "ab", "test": "cd", "weights": "ef"},
    "format": FORMAT,
}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(spots(VALUES)), st.sampled_from(WRONG))
@example(("seconds", "total"), 10**400)
@example(("parameters", "stored"), 2**70)
@example(("config", "settings"), [])
@example(("versions", "torch"), None)
def test_a_damaged_record_is_shown_or_refused_in_one_line(spot: tuple[Any, ...], wrong: Any) -> None:
    values = copy.deepcopy(VALUES)
    place: Any = values
    for key in spot[:-1]:
        place = place[key]
    place[spot[-1]] = wrong
    record = parsed(values)
    if isinstance(record, str):
        assert len(record.splitlines()) == 1
        assert len(record) < 600
        assert record.isprintable()
        return
    table = comparison([record, build_record("simplecil", stages=2)])
    assert table.markdown()
    assert table.csv()
    assert table.latex()


@pytest.mark.parametrize("per_task", [[[90.0]] * 2, [[90.0, 80.0], [1.0]], [[], [1.0, 2.0]]])
def test_each_stage_has_one_task_more(per_task: list[list[float]]) -> None:
    with pytest.raises(EaseError, match="does not agree on its stages"):
        build_record(stages=2, per_task=per_task)


def test_every_field_that_is_missing_is_refused_or_not_needed() -> None:
    for key in VALUES:
        left = {name: value for name, value in VALUES.items() if name != key}
        record = parsed(left)
        if isinstance(record, str):
            assert re.search(f"lacks {key}: was the run finished", record)
        else:
            assert render_report([record])


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "7",
        '{"format": 3}',
        '{"format": true}',
        "{}",
        '{"accuracy": NaN}',
        "[" * 5000,
        "9" * 5000,
    ],
)
@pytest.mark.parametrize("command", ["report", "compare"])
def test_a_damaged_record_file_is_one_line_and_exit_code_2(
    command: str, content: str, tmp_path: Path
) -> None:
    (tmp_path / "record.json").write_text(content)
    words = {"report": ["--out", tmp_path / "out"], "compare": [OLD]}[command]
    assert "record" in refused(ease(command, tmp_path, *words))


# --- images ---------------------------------------------------------------------------------------


def seen(train: str, test: str, **versions: str) -> dict[str, Any]:
    return {"inputs": {"train": train, "test": test, "weights": "ab"}, "versions": versions}


def test_a_table_says_when_runs_saw_different_images() -> None:
    records = [
        build_record("ease", **seen("aa", "bb", matplotlib="3.9.0", pillow="11.0")),
        build_record("simplecil", **seen("aa", "cc", matplotlib="3.10.0", pillow="11.0")),
    ]
    legend = comparison(records).legend
    assert "Runs on glyphs B0 Inc5 saw different test images" in legend
    assert "matplotlib 3.9.0, pillow 11.0 and matplotlib 3.10.0, pillow 11.0" in legend
    assert "saw different test images" in render_report(records)


def test_a_table_says_nothing_where_images_are_the_same_or_unknown() -> None:
    same = build_record("ease", **seen("aa", "bb")), build_record("simplecil", **seen("aa", "bb"))
    assert "different" not in comparison(same).legend
    assert "different" not in comparison([same[0], build_record("finetune")]).legend
    elsewhere = build_record("simplecil", dataset="digits", **seen("dd", "ee"))
    assert "different" not in comparison([same[0], elsewhere]).legend


def test_compare_says_when_runs_saw_different_images(tmp_path: Path) -> None:
    build_record(**seen("aa", "bb")).write(tmp_path / "a.json")
    build_record(**seen("ff", "bb")).write(tmp_path / "b.json")
    found = compare(tmp_path / "a.json", tmp_path / "b.json")
    assert any("saw different training images" in remark for remark in found.remarks)
    assert not compare(tmp_path / "a.json", tmp_path / "a.json").remarks[0].startswith("Runs on")


# --- what a run notes of the machine --------------------------------------------------------------


def test_the_libraries_that_draw_and_decode_images_are_named() -> None:
    import matplotlib
    import PIL

    found = versions()
    assert (found["matplotlib"], found["pillow"]) == (matplotlib.__version__, PIL.__version__)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="VmHWM is Linux's")
def test_peak_memory_is_that_of_this_process_alone() -> None:
    def high_water() -> int:
        text = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", text).group(1)) * 1024  # type: ignore[union-attr]

    before, found, after = high_water(), peak_memory(), high_water()
    assert before <= found <= after
    # A process that holds much starts another one: ru_maxrss of the second would begin at what the first holds.
    child = "from ease.experiments.environment import peak_memory; print(peak_memory())"
    parent = (
        "import subprocess, sys\n"
        "held = b'x' * (1 << 30)\n"
        f"print(subprocess.run([sys.executable, '-c', {child!r}], capture_output=True, text=True).stdout)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True)
    assert 0 < int(done.stdout) < 1 << 30
