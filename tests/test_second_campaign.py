"""What the second campaign found: inputs of a tester who had not read the code, each with the answer it gets now."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel, ValidationError
from rich.table import Table
from rich.text import Text

from ease.app.prediction import Prediction
from ease.app.server.limits import Limits
from ease.backbone import zoo
from ease.cli import output, predict
from ease.config import resolve
from ease.documents import parse_yaml, reason_of, shortened
from ease.errors import EaseError, printable
from ease.experiments.grid import Cell, Grid
from ease.filesystem import content_digest
from ease.methods import methods
from ease.progress import Bars
from ease.reporting.figures import drawing
from ease.streams.intake.sources.rows import Table as TableOfPaths
from tests.test_cli import ease, refused

COUNT: Any = 1.5
FAMILY = "\U0001f469\u200d\U0001f469\u200d\U0001f467"
"""An emoji of several, which invisible characters join."""


# --- settings -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [name for name in methods() if "rank" in methods()[name].Settings.model_fields]
)
@pytest.mark.parametrize("text", ["yes", "true", "off"])
def test_yes_and_no_are_no_numbers(name: str, text: str) -> None:
    with pytest.raises(
        EaseError, match=r"rank = (True|False): it should be a number: yes, no, true and false"
    ):
        resolve({"method": name}, sets=[f"rank={text}"])


@pytest.mark.parametrize("key", ["seed", "devices", "limit_per_class", "exemplars", "lr", "epochs"])
def test_yes_and_no_are_refused_for_every_kind_of_number(key: str) -> None:
    with pytest.raises(EaseError, match="it should be a number"):
        resolve({"method": "ease"}, sets=[f"{key}=yes"])
    with pytest.raises(ValidationError, match="it should be a number"):
        Limits.model_validate({"predict_files": True})


def test_where_yes_and_no_are_meant_they_are_taken() -> None:
    config, _ = resolve({"method": "ease"}, sets=["download=yes", "ptm=no"])
    assert config.download is True
    assert config.settings["ptm"] is False


@pytest.mark.parametrize(
    "text", ["a: 1\na: 2\n", "b: {a: 1, a: 1}", "b:\n  - a: 1\n    'a': 2\n", '{"a": 1, "b": 2, "a": 3}']
)
def test_a_key_that_is_there_twice_is_refused(text: str) -> None:
    with pytest.raises(EaseError, match=r"not valid YAML \(the key 'a' is there twice, line \d\)"):
        parse_yaml(text, "it")


def test_a_merged_key_may_be_changed() -> None:
    text = "base: &base {a: 1, b: 2}\none: {<<: *base, b: 3}\ntwo: {<<: *base}\nthree: {<<: *base, a: 5}\n"
    assert parse_yaml(text, "it")["one"] == {"a": 1, "b": 3}


def test_an_option_and_a_setting_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    new = tmp_path / "new"
    line = refused(ease("run", "--method", "simplecil", "--set", "method=ease", "--out", new))
    assert "method is given twice, by --method and by --set: leave one of them out" in line
    line = refused(ease("run", "--limit-per-class", 2, "--set", "limit-per-class=3", "--out", new))
    assert "limit_per_class is given twice, by --limit-per-class and by --set" in line
    assert "seed is given twice" in refused(
        ease("study", "bench-small", "--seeds", 1, "--set", "seed=2", "--out", new)
    )
    for command in ("study bench-small", "paper table1"):
        line = refused(ease(*command.split(), "--set", "method=ease", "--out", new))
        assert "choose them with --methods" in line
    assert not new.exists()


@pytest.mark.parametrize("words", [("--shard", "nonsense"), ("--scale", "big"), ("--seeds", "x")])
def test_the_list_of_exhibits_looks_at_its_options(words: tuple[str, str]) -> None:
    refused(ease("paper", "list", *words))


# --- what is printed ------------------------------------------------------------------------------


def test_what_steers_a_terminal_is_printed_as_escapes_and_names_stay_whole() -> None:
    assert printable("a\x1b[2J\r\u200f\u202eb\x9b\u2028\x7f") == (r"a\x1b[2J\x0d\u200f\u202eb\x9b\u2028\x7f")
    assert printable("a\udcff") == r"a\udcff"
    for name in (FAMILY, "می\u200cخواهم", "two\nlines\tand more", "é", "e\u0301"):
        assert printable(name) == name


def test_names_in_tables_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("name")
    table.add_row(Text("\u200fabc\x1b[2J"))
    output.console().print(table)
    shown = capsys.readouterr().out
    assert r"\u200fabc\x1b[2J" in shown
    output.echo("\u200fabc", err=True)
    assert capsys.readouterr().err == "\\u200fabc\n"


def test_names_of_files_in_printed_csv_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    found = [
        Prediction(file=name, classes=[{"name": "cat", "confidence": 1}], unknown=None, calibrated=False)
        for name in ("a\x1b[31m\r.png", f"{FAMILY}.png")
    ]
    classifier: Any = SimpleNamespace()
    predict._print_csv(classifier, iter(found))
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("file,rank,class")
    assert [row.partition(",1,cat")[0] for row in rows] == [r"a\x1b[31m\x0d.png", f"{FAMILY}.png"]


def test_names_of_files_in_the_check_of_a_dataset_cannot_steer_the_terminal(tmp_path: Path) -> None:
    root = tmp_path / "c\x1b[2J\u202e\nd"
    for part in ("train", "test"):
        (root / part / "a").mkdir(parents=True)
        Image.new("RGB", (8, 8), "red" if part == "test" else "blue").save(root / part / "a" / "1.png")
    shown = ease("datasets", "check", "folder", "--data-root", root)
    assert r"c\x1b[2J\u202e\x0ad" in shown.stdout.splitlines()[0]


# --- what messages say ----------------------------------------------------------------------------


class Small(BaseModel):
    rank: int


def failure(act: Any) -> BaseException:
    try:
        act()
    except Exception as error:
        return error
    raise AssertionError("it should fail")


@pytest.mark.parametrize(
    ("act", "says"),
    [
        (lambda: {}["heads"], "'heads' is missing"),
        (lambda: COUNT["kind"], "a value is of the wrong kind"),
        (lambda: {[]: 1}, "a value is of the wrong kind"),
        (lambda: None.lower(), "a value is of the wrong kind"),
        (lambda: int("x"), "a value is of the wrong kind"),
        (lambda: [][3], "a value is of the wrong kind"),
        (lambda: Small.model_validate({"rank": "x"}), "rank: input should be a valid integer"),
        (lambda: os.listdir(os.devnull), "Not a directory"),
    ],
)
def test_messages_do_not_speak_of_python(act: Any, says: str) -> None:
    assert reason_of(failure(act)).startswith(says)


def test_a_record_that_is_none_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text("[1]")
    assert "must be a JSON object, not [1]" in refused(ease("compare", tmp_path / "record.json", tmp_path))
    assert shortened(10**5000) == "a number of thousands of digits"


def test_what_our_own_code_says_is_kept() -> None:
    assert reason_of(ValueError("5 class names for 4 classes")) == "5 class names for 4 classes"
    assert reason_of(TimeoutError(), "no answer") == "no answer"


# --- files and streams ----------------------------------------------------------------------------


def test_a_file_that_says_that_it_is_empty_is_not_read(tmp_path: Path) -> None:
    """Some files of the system, such as /proc/kmsg, say so and let their reader wait for ever."""
    empty = tmp_path / "cifar-10-python.tar.gz"
    empty.touch()
    assert "is empty" in refused(ease("datasets", "check", "cifar10", "--archive", empty))
    table = tmp_path / "t.csv"
    table.touch()
    with pytest.raises(EaseError, match="no names of columns"):
        list(TableOfPaths(table).rows())
    assert content_digest(empty) == content_digest(table)


def fresh(code: str, folder: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    """Python in a process of its own, with a temporary folder that is its home, too."""
    environment = {**os.environ, "TMPDIR": str(folder), "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    for name in ("TORCHINDUCTOR_CACHE_DIR", "XDG_CACHE_HOME"):
        environment.pop(name, None)
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, stderr=subprocess.PIPE, text=True, timeout=120, **more
    )


def test_importing_leaves_nothing_in_the_temporary_folder_nor_at_home(tmp_path: Path) -> None:
    code = "import os, ease.backbone; assert 'TORCHINDUCTOR_CACHE_DIR' not in os.environ; " + (
        "from ease.app import export; export._runtime()"
    )
    assert fresh(code, tmp_path).stderr == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", ["list methods --json", "list methods", "nothing"])
def test_closed_streams_are_no_reason_to_fail(words: str, tmp_path: Path) -> None:
    code = f"import sys; sys.argv = {['ease', *words.split()]!r}; from ease.cli import main; main()"
    done = fresh(code, tmp_path, preexec_fn=lambda: os.close(1))
    assert "Traceback" not in done.stderr
    assert done.returncode == (2 if words == "nothing" else 0)


# --- memory and time ------------------------------------------------------------------------------


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry() -> None:
        raise MemoryError

    monkeypatch.setattr("ease.backbone.zoo.backbone_list", hungry)
    assert "not enough memory" in refused(ease("list", "backbones"))


def test_a_cell_that_failed_keeps_nothing_in_memory(tmp_path: Path) -> None:
    config, notes = resolve(
        {"dataset": "folder", "data_root": str(tmp_path / "nowhere"), "method": "simplecil"}
    )
    error = Grid(tmp_path / "grid").attempt(Cell(config, notes))
    assert error is not None
    assert error.__traceback__ is None
    assert error.__cause__ is None
    assert error.__context__ is None


def test_weights_that_could_not_be_fetched_are_not_asked_for_at_once_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []
    create = zoo.timm.create_model

    def counted(name: str, pretrained: bool = False, **more: Any) -> Any:
        if pretrained:
            asked.append(name)
            raise OSError("no network")
        return create(name, **more)

    monkeypatch.setattr(zoo.timm, "create_model", counted)
    monkeypatch.setattr(zoo, "_unreachable", {})
    for _ in range(3):
        with pytest.raises(EaseError, match="cannot be fetched"):
            zoo.load_backbone("test_vit2")
    assert asked == ["test_vit2"]
    monkeypatch.setattr(zoo.time, "monotonic", lambda: 1e12)
    with pytest.raises(EaseError, match="cannot be fetched"):
        zoo.load_backbone("test_vit2")
    assert asked == ["test_vit2", "test_vit2"], "later it is tried again"


def test_of_an_endless_title_only_the_beginning_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []
    right = drawing.text_width

    def noted(texts: Any, *more: Any) -> float:
        measured.extend(map(len, texts))
        return right(texts, *more)

    monkeypatch.setattr(drawing, "text_width", noted)
    figure = drawing.Figure(figsize=(5, 4))
    drawing.titles(figure, "a" * 100_000, "")
    assert max(measured) <= drawing.LONGEST_TITLE
    assert figure.texts[0].get_text().endswith("…")


def test_forced_colours_draw_no_bars_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    with Bars().bar("checking", 3) as advance:
        advance(1)
    assert capsys.readouterr().err == ""


def test_what_a_grid_tells_of_a_cell_is_one_line_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    Bars().say("cell: failed: " + "many words " * 30)
    assert len(capsys.readouterr().err.splitlines()) == 1
