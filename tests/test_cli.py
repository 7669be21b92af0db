"""The command as people use it, right and wrong."""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ease.cli import main
from ease.errors import EaseError
from tests.forked import Forked, ease_command

QUICK = ["--limit-per-class", "6", "--input-size", "16", "--set", "epochs=1", "--set", "rank=4"]


@dataclass
class Outcome:
    returncode: int
    stdout: str
    stderr: str


def ease(*words: str | Path) -> Outcome:
    """The command in this process: importing torch anew for every call would take most of the time."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv, sys.argv = sys.argv, ["ease", *map(str, words)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    finally:
        sys.argv = argv
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(result: Outcome | subprocess.CompletedProcess[str]) -> str:
    """The one line a wrong call gets."""
    lines = result.stderr.strip().splitlines()
    assert result.returncode == 2, result.stderr
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    assert "Traceback" not in result.stderr
    return lines[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli") / "run"
    result = ease("run", "--dataset", "digits", "--protocol", "B0 Inc5", *QUICK, "--out", folder)
    assert result.returncode == 0, result.stderr
    assert "EASE" in result.stdout
    assert str(folder / "report.html") in result.stdout
    return folder


def photos(folder: Path, classes: dict[str, int]) -> Path:
    draw = np.random.RandomState(0)
    for name, count in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.fromarray(draw.randint(0, 255, (20, 20, 3), dtype=np.uint8)).save(
                folder / name / f"{i}.png"
            )
    return folder


def test_help_reads_like_a_page_and_needs_no_torch() -> None:
    result = subprocess.run([sys.executable, "-m", "ease", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    for word in ("run", "verify", "methods", "datasets", "backbones", "eval", "info", "--install-completion"):
        assert word in result.stdout
    code = "import sys, ease.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [("methods", "ease"), ("datasets", "glyphs"), ("backbones", "ease-vit"), ("presets", "released")],
)
def test_lists(command: str, name: str) -> None:
    rows = json.loads(ease(command, "--json").stdout)
    assert name in [row["name"] for row in rows]
    assert all(isinstance(value, str) and value for row in rows for value in row.values())
    assert name in ease(command).stdout


def test_rows_of_presets_are_listed_when_asked_for() -> None:
    row = "released/cifar100-b0inc5-in21k"
    assert row not in ease("presets").stdout
    assert row in ease("presets", "released").stdout
    assert row in [found["name"] for found in json.loads(ease("presets", "--json").stdout)]
    (found,) = [r for r in json.loads(ease("presets", "released", "--json").stdout) if r["name"] == row]
    assert (found["dataset"], found["protocol"]) == ("cifar100", "B0 Inc5")
    assert "few-images" in ease("presets", "few-images").stdout
    assert "did you mean 'released'?" in refused(ease("presets", "relesed"))


def test_datasets_are_checked_by_command(tmp_path: Path) -> None:
    for part in ("train", "test"):
        photos(tmp_path / part, {"cat": 4, "dog": 4})  # the same pictures: test is in train
    words = ["datasets", "check", "imagenet-r", "--data-root", tmp_path]
    result = ease(*words)
    assert result.returncode == 0, result.stderr
    assert "imagenet-r-subset" in result.stdout
    assert "8 test images are in train too" in result.stdout
    (tmp_path / "test" / "dog" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    result = ease(*words, "--json")
    assert result.returncode == 1
    assert json.loads(result.stdout)["unreadable"] == ["test/dog/torn.png"]
    assert "torn.png" in ease(*words).stdout


def test_an_archive_with_another_md5_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "vtab.zip").write_bytes(b"something else")
    result = ease("datasets", "check", "vtab", "--archive", tmp_path / "vtab.zip")
    assert result.returncode == 1
    assert "a9c37bde6105a2516c900b0c33a437c1" in result.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["vtab", "--data-root", "nowhere"], "vtab.zip was published"),
        (["vtab"], "EASE_DATA"),
        (["vtub"], "did you mean 'vtab'?"),
        (["vtab", "--archive", "nowhere.zip"], "nowhere.zip"),
    ],
)
def test_a_check_without_data_gets_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EASE_DATA", raising=False)
    assert says in refused(ease("datasets", "check", *words))


def test_a_study_by_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    plan = tmp_path / "mine.yaml"
    plan.write_text("about: mine\nrun: {dataset: digits, protocol: B0 Inc5}\nrows: [{method: simplecil}]\n")
    words = ("study", plan, "--out", tmp_path / "out", "--set", "limit_per_class=4", "--set", "input_size=16")
    first, again = ease(*words, "--seeds", "1,2"), ease(*words, "--seeds", "1,2", "--json")
    assert first.returncode == 0, first.stderr
    assert "SimpleCIL" in first.stdout
    assert [record["seed"] for record in json.loads(again.stdout)] == [1, 2]
    assert len(list((tmp_path / "out" / "cells").iterdir())) == 2
    assert "is not a seed" in refused(ease(*words, "--seeds", "one"))


def test_exhibits_by_command(tmp_path: Path) -> None:
    listed = ease("paper", "list")
    assert "table1" in listed.stdout
    assert "tiny" in listed.stdout
    words = ("paper", "ablation", "--scale", "small", "--dataset", "digits", "--protocol", "B0 Inc5", *QUICK)
    result = ease(*words, "--out", tmp_path, "--methods", "ease")
    assert result.returncode == 0, result.stderr
    assert "+ subspace reweight" in result.stdout
    assert (tmp_path / "ablation.pdf").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["paper", "tabel1"], "table1"),
        (["paper", "table1", "--scale", "huge"], "unknown scale"),
        (["paper", "table1", "--shard", "3/2"], "--shard 1/4"),
        (["paper", "table1", "--shard", "1" * 5000 + "/" + "1" * 5000], "--shard 1/4"),
        (["paper", "table1", "--seeds", "1" * 5000], "--seeds 1993,1994"),
        (["paper", "ablation", "--scale", "small"], "--dataset"),
        (["study", "bench-smal", "--out", "x"], "bench-small"),
    ],
)
def test_wrong_studies_and_exhibits_get_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refused(ease(*words))
    assert not list(tmp_path.iterdir())


def test_info_and_eval_of_a_finished_run(finished: Path) -> None:
    found = json.loads(ease("info", finished, "--json").stdout)
    assert found["method"] == "ease"
    assert [len(names) for names in found["tasks"]] == [5, 5]
    assert found["passes_per_image"] == 2
    record = json.loads((finished / "record.json").read_text())
    scored = json.loads(
        ease("eval", "--model", finished, "--dataset", "digits", "--limit-per-class", "6", "--json").stdout
    )
    assert scored["accuracy"] == pytest.approx(record["last"])
    assert "task 2" in ease("info", finished / "model").stdout


def test_report_compares_runs(finished: Path, tmp_path: Path) -> None:
    result = ease("report", finished, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {
        "report.html",
        "accuracy.svg",
        "accuracy.png",
        "table.md",
    }


def test_report_and_compare_take_folders_of_runs(finished: Path, tmp_path: Path) -> None:
    result = ease("report", finished.parent, "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    same = ease("compare", finished, finished.parent)
    assert same.returncode == 0, same.stderr
    assert "Both have the same settings" in same.stdout
    assert "McNemar" in same.stdout
    found = json.loads(ease("compare", finished, finished / "record.json", "--json").stdout)
    assert found["across_images"]["only_a"] == 0
    assert "does not exist" in refused(ease("compare", finished, tmp_path / "nowhere"))
    assert "no finished run" in refused(ease("report", tmp_path, "--out", tmp_path / "more"))


def test_verify_exits_with_1_where_it_differs(golden_folder: Path, tmp_path: Path) -> None:
    result = ease("verify", golden_folder / "large_base.npz", "--json")
    assert result.returncode == 0
    assert json.loads(result.stdout)[0]["within"]
    (tmp_path / "common.npz").write_bytes((golden_folder / "common.npz").read_bytes())
    with np.load(golden_folder / "large_base.npz") as content:
        arrays = {name: content[name] for name in content.files}
    arrays["task1/logits"][0, 0] += 1e-2
    np.savez(tmp_path / "bent.npz", **arrays)
    assert ease("verify", tmp_path / "bent.npz").returncode == 1


def test_interrupted_and_resumed_by_command(finished: Path, tmp_path: Path) -> None:
    again = ease("run", "--resume", finished, "--json")
    assert json.loads(again.stdout) == json.loads((finished / "record.json").read_text())
    assert "give no others" in refused(ease("run", "--resume", finished, "--seed", "3"))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--method", "eaze"], "did you mean 'ease'?"),
        (["--dataset", "glyph"], "did you mean 'glyphs'?"),
        (["--backbone", "vit_bse_patch16_224"], "did you mean 'vit_base_patch16_224"),
        (["--protocol", "B0 Inc0"], "Inc0"),
        (["--dataset", "digits", "--protocol", "B50 Inc7"], "there are 10"),
        (["--protocol", "five at a time"], "B<m> Inc<n>"),
        (["--set", "alhpa=0.3"], "did you mean 'alpha'?"),
        (["--set", "alpha=-1"], "alpha"),
        (["--set", "alpha"], "key=value"),
        (["--preset", "relaesed"], "did you mean 'released'?"),
        (["--preset", "released/vtab-b0inc10"], "did you mean 'released/vtab-b0inc10-in"),
        (["--preset", "released/vtab-b0inc10-in1k", "--backbone", "ease-vit"], "vtab.zip was published"),
        (["--data-root", "nowhere", "--dataset", "folder"], "nowhere"),
        (["--weights", "nowhere.safetensors"], "nowhere.safetensors"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--devices", "zwei"], "devices"),
        (["--accelerator", "abacus"], "abacus"),
        (["--colour", "red"], "colour"),
    ],
)
def test_wrong_words_get_one_line(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refused(ease("run", "--out", tmp_path / "out", *words))
    assert says in line
    assert list(tmp_path.iterdir()) == []


def test_wrong_folders_get_one_line(tmp_path: Path) -> None:
    def run_on(folder: Path) -> str:
        out = tmp_path / "out"
        words = ["run", "--dataset", "folder", "--data-root", folder, "--protocol", "B0 Inc1", "--out", out]
        line = refused(ease(*words, *QUICK))
        assert not out.exists()
        return line

    assert "at least 2 classes" in run_on(photos(tmp_path / "one", {"cat": 4}))
    empty = photos(tmp_path / "empty", {"cat": 4, "dog": 4})
    (empty / "bird").mkdir()
    assert "bird" in run_on(empty)
    damaged = photos(tmp_path / "damaged", {"cat": 4, "dog": 4})
    picture = Image.fromarray(np.random.RandomState(1).randint(0, 255, (64, 64, 3), dtype=np.uint8))
    picture.save(damaged / "dog" / "torn.jpg")
    whole = (damaged / "dog" / "torn.jpg").read_bytes()
    (damaged / "dog" / "torn.jpg").write_bytes(whole[: len(whole) // 2])
    assert "torn.jpg" in run_on(damaged)


def test_damaged_images_can_be_skipped_but_not_silently(tmp_path: Path) -> None:
    folder = photos(tmp_path / "photos", {"cat": 8, "dog": 8})
    (folder / "dog" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    words = [
        "--data-root",
        folder,
        "--protocol",
        "B0 Inc2",
        "--out",
        tmp_path / "out",
        "--unreadable",
        "skip",
    ]
    result = ease("run", "--dataset", "folder", *words, *QUICK, "--json")
    assert result.returncode == 0, result.stderr
    assert any("torn.png" in note for note in json.loads(result.stdout)["notes"])


def test_weights_of_another_architecture_get_one_line(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"conv1.weight": np.zeros((4, 3, 3, 3), np.float32)}, tmp_path / "resnet.safetensors")
    line = refused(ease("run", "--weights", tmp_path / "resnet.safetensors", "--out", tmp_path / "out"))
    assert "resnet.safetensors" in line
    assert not (tmp_path / "out").exists()


def test_a_flipped_byte_in_a_model_is_noticed(finished: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("subspaces/0001.safetensors", "prototypes/0000.safetensors", "manifest.json"):
        copy = tmp_path / name.replace("/", "-")
        shutil.copytree(finished / "model", copy)
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 1
        (copy / name).write_bytes(content)
        assert copy.name in refused(ease("eval", "--model", copy, "--dataset", "digits"))
        refused(ease("info", copy))


def test_a_file_size_limit_is_one_line_and_leaves_no_half_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["run", "--dataset", "digits", "--protocol", "B0 Inc5", *QUICK, "--out", str(out)]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        ease_command(*words)()

    child = Forked(limited, tmp_path / "printed", tmp_path / "errors")
    result = Outcome(child.wait(), child.out.read_text(), (tmp_path / "errors").read_text())
    assert "ulimit" in refused(result).replace("Run", "run")
    assert [p for p in out.rglob("*") if ".tmp-" in p.name] == []
    assert ease("run", "--resume", out).returncode == 0


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="eaze"):
        ease("--debug", "run", "--method", "eaze", "--out", tmp_path / "out")


def test_help_shows_the_practitioners_commands_first_and_panels_after_them() -> None:
    text = ease("--help").stdout
    parts = (
        "ease learn ",
        "ease predict ",
        "ease run ",
        "─ Classify",
        "─ Experiments",
        "─ Models",
        "─ Lists",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    commands = [line.split()[1] for line in text.splitlines() if line.startswith("│ ") and line[2] != " "]
    for old in ("methods", "backbones", "presets", "studies"):  # hidden: 'ease list' shows them
        assert old not in commands
    assert {"learn", "run", "info", "list", "datasets"} <= set(commands)


@pytest.mark.parametrize("name", ["methods", "datasets", "backbones", "presets", "studies"])
def test_older_names_of_lists_still_work(name: str) -> None:
    listed = ease("list", name, "--json")
    assert listed.returncode == 0, listed.stderr
    assert len(json.loads(listed.stdout)) > 1
    assert ease(name, "--json").stdout == listed.stdout


def test_a_current_folder_that_is_gone_gets_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    result = ease("list", "methods")
    monkeypatch.undo()
    assert "the current folder was removed" in refused(result)


def test_an_unknown_list_gets_one_line() -> None:
    assert "methodes" in refused(ease("list", "methodes"))


def test_what_cannot_be_seen_is_escaped_and_what_is_too_long_is_cut() -> None:
    assert "\\u202egnp" in refused(ease("list", "presets", "\u202egnp"))
    for words in (["a" * 5000], ["info", "m", "a" * 5000], ["list", "presets", "a" * 5000]):
        assert len(refused(ease(*words))) < 1100


@pytest.mark.parametrize("seed", ["-1", str(2**63)])
def test_a_seed_out_of_range_is_one_line(seed: str, tmp_path: Path) -> None:
    photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    words = ["learn", tmp_path / "photos", "--model", tmp_path / "m", "--input-size", "16", "--seed", seed]
    assert "is out of range" in refused(ease(*words))
    assert not (tmp_path / "m").exists()


def test_no_more_processes_than_cores_are_started(tmp_path: Path) -> None:
    words = [
        "run",
        "--dataset",
        "digits",
        "--out",
        tmp_path / "run",
        "--devices",
        "1000",
        "--method",
        "simplecil",
    ]
    assert "give at most" in refused(ease(*words, "--limit-per-class", "1", "--input-size", "16"))


@pytest.mark.parametrize("option", ["--methods", "--seeds"])
def test_a_list_that_names_nothing_is_not_everything(option: str, tmp_path: Path) -> None:
    assert "names nothing" in refused(ease("paper", "table1", option, " ", "--out", tmp_path / "o"))


def test_a_key_that_is_a_list_is_named_so(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("? [a]\n: b\n")
    assert "a key is a list" in refused(ease("run", "--config", tmp_path / "c.yaml", "--out", tmp_path / "o"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize(("words", "stream"), [(["--version"], "stdout"), (["nothing"], "stderr")])
def test_output_that_cannot_be_written_is_an_error_and_no_traceback(words: list[str], stream: str) -> None:
    with open("/dev/full", "wb") as full:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        done = subprocess.run([sys.executable, "-m", "ease", *words], **pipes, text=True)
    assert done.returncode == (1 if stream == "stdout" else 2)
    if stream == "stdout":
        assert done.stderr.startswith("error: the output cannot be written")
        assert done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_file_that_cannot_be_written_is_not_taken_for_the_output(unbuffered: str, tmp_path: Path) -> None:
    code = (
        "import errno, sys\nfrom ease import cli\n"
        "def full() -> None:\n    print('some'); raise OSError(errno.ENOSPC, 'no name')\n"
        "cli.app.command('full')(full); sys.argv = ['ease', 'full']; cli.main()"
    )
    for out, expected in ((subprocess.PIPE, 2), (open("/dev/full", "wb"), 1)):  # noqa: SIM115
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
        assert done.returncode == expected, done.stderr
        assert ("the output cannot be written" in done.stderr) == (expected == 1)
        assert done.stderr.count("\n") == 1


def test_damaged_images_say_no_more_than_one_line(tmp_path: Path) -> None:
    photos(tmp_path / "photos", {"cat": 2, "dog": 2})
    learn = [
        "learn",
        tmp_path / "photos",
        "--model",
        tmp_path / "m",
        "--input-size",
        "16",
        "--set",
        "layers=1",
    ]
    assert ease(*learn).returncode == 0
    whole = io.BytesIO()
    Image.effect_noise((40, 30), 50).convert("RGB").save(whole, "TIFF", compression="tiff_deflate")
    broken = bytearray(whole.getvalue())
    broken[92] ^= 79
    (tmp_path / "broken.tif").write_bytes(broken)
    work = ease_command("predict", tmp_path / "broken.tif", "--model", tmp_path / "m")
    child = Forked(work, tmp_path / "printed", tmp_path / "errors")  # with all that libraries in C print
    result = Outcome(child.wait(), child.out.read_text(), (tmp_path / "errors").read_text())
    assert "cannot be read" in refused(result)


def test_a_misspelt_setting_without_a_value_is_refused_too(tmp_path: Path) -> None:
    for text in ("epoch=", "epoch=null"):
        words = ["run", "--dataset", "digits", "--method", "ease", "--set", text, "--out", tmp_path / "o"]
        assert "did you mean 'epochs'?" in refused(ease(*words))
    words = ["run", "--dataset", "digits", "--protocol", "B0 Inc-1", "--out", tmp_path / "o"]
    assert "is not of the form" in refused(ease(*words))


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("run", "interrupted: a run continues with 'ease run --resume DIR'\n"),
        ("study", "interrupted: the same command goes on\n"),
        ("paper", "interrupted: the same command goes on\n"),
        ("serve", "interrupted\n"),
    ],
)
def test_an_interrupted_command_says_how_to_go_on(
    command: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ease.cli.parser", lambda: interrupted)
    monkeypatch.setattr("sys.argv", ["ease", command])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == line
