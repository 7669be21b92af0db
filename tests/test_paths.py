"""Every command with paths that lead nowhere: one line each, and nothing is written."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked, ease_command
from tests.test_cli import ease, photos, refused

RUN = ["run", "--dataset", "digits", "--protocol", "B0 Inc5", "--limit-per-class", "2", "--input-size", "16"]
RUN += ["--method", "simplecil"]
# PATH stands for the bad one; `model`, `photos` and `run` are good.
COMMANDS = [
    "learn PATH --model new",
    "learn photos --model PATH",
    "learn photos --model new --weights PATH",
    "predict PATH --model model",
    "predict photos --model PATH",
    "predict photos --model model --weights PATH",
    "rename cat dog --model PATH",
    "forget cat --model PATH",
    "rollback --model PATH",
    "rollback 1 --model PATH",
    "serve --model PATH",
    "serve --create --model PATH --weights PATH",
    "run --dataset digits --method simplecil --limit-per-class 2 --out PATH/x",
    "run --resume PATH",
    "run --config PATH --out new",
    "run --dataset folder --data-root PATH --out new",
    "run --dataset cifar100 --data-root PATH --out new",
    "run --dataset cub200 --data-root PATH --out new",
    "run --dataset digits --weights PATH --out new",
    "run --dataset digits --class-order PATH --out new",
    "study PATH --out new",
    "study PATH.yaml --out new",
    "study mine.yaml --out PATH/x",
    "report PATH --out new",
    "report run --out PATH/x",
    "compare PATH run",
    "compare run PATH",
    "eval --model PATH photos",
    "eval --model model PATH",
    "eval --model model photos --out PATH/x",
    "info PATH",
    "compact --model PATH --storage fp16",
    "verify PATH",
    "export PATH --onnx new",
    "export model --onnx PATH/x",
    "pack PATH --out new",
    "pack model --out PATH/x",
    "pack model --out new --weights PATH",
    "unpack PATH new",
    "unpack model.ease PATH/x",
    "datasets check folder --data-root PATH",
    "datasets check cub200 --data-root PATH",
    "datasets check vtab --archive PATH",
]
PATHS = {
    "5,000 characters": "x/" * 2500,
    "a name of 300": "y" * 300,
    "below a file": "file/x",
    "in a circle": "loop",
    "below a circle": "loop/x",
    "a link to nothing": "dangling",
    "a pipe": "pipe",
    "not permitted": "denied/x",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with good things and bad ones, which is the current one."""
    folder, before = tmp_path_factory.mktemp("paths"), Path.cwd()
    os.chdir(folder)
    photos(folder / "photos", {"cat": 4, "dog": 4})
    for words in (
        ["learn", "photos", "--model", "model", "--input-size", "16", "--set", "layers=1"],
        [*RUN, "--out", "run"],
        ["pack", "model", "--out", "model.ease"],
    ):
        assert ease(*words).returncode == 0
    study = "about: mine\nrun: {dataset: digits, limit_per_class: 2}\nrows: [{method: simplecil}]\n"
    Path("mine.yaml").write_text(study)
    Path("file").write_text("not a folder")
    Path("loop").symlink_to("loop")
    Path("dangling").symlink_to("nowhere")
    os.mkfifo("pipe")
    Path("denied").mkdir()
    yield folder
    os.chdir(before)


@pytest.fixture
def _denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody may look into `denied`, not even root, whom permissions do not bind."""

    def guarded(function: Any) -> Any:
        def ask(path: Any, *rest: Any, **named: Any) -> Any:
            text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
            if "denied" in str(text).split("/")[:-1]:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), text)
            return function(path, *rest, **named)

        return ask

    for name in ("stat", "lstat", "open", "listdir", "scandir", "mkdir"):
        monkeypatch.setattr(os, name, guarded(getattr(os, name)))
    for module in (builtins, io):
        monkeypatch.setattr(module, "open", guarded(open))


@pytest.mark.usefixtures("_denied")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_path_is_one_line_and_writes_nothing(command: str, place: Path) -> None:
    before = sorted(os.listdir(place))
    for what, path in PATHS.items():
        words = [word.replace("PATH", path) for word in command.split()]
        line = refused(ease(*words))
        assert "cannot use" not in line, what  # the last resort has nothing to say
        assert len(line) < 1000, what
        assert sorted(os.listdir(place)) == before, what
    assert not os.listdir(place / "denied")


@pytest.mark.parametrize("words", [["predict", "", "--model", "model"], ["info", "--model="], ["info", ""]])
def test_an_empty_word_is_no_path(words: list[str], place: Path) -> None:
    assert "is a shell variable not set?" in refused(ease(*words))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_replaced_by_one(kind: str, place: Path) -> None:
    """Whoever names /dev/null as root must still have it afterwards."""
    path = place / kind
    if kind == "device":
        try:
            os.mknod(path, 0o666 | 0o020000, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    before = os.lstat(path)
    for words in (["pack", "model", "--out", path], ["export", "model", "--onnx", path]):
        assert "it is a device or a pipe, name a file" in refused(ease(*words))
    assert os.path.samestat(os.lstat(path), before)
    if kind == "device":
        path.unlink()


def test_predict_does_not_pass_over_a_folder_it_cannot_list(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(tmp_path, {"seen": 2, "closed": 2})
    assert len(ease("predict", tmp_path, "--model", "model").stdout.splitlines()) == 4
    scandir = os.scandir

    def closed(path: Any = ".") -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    assert "closed: permission denied" in refused(ease("predict", tmp_path, "--model", "model"))
    monkeypatch.undo()
    (tmp_path / "linked").symlink_to(place / "photos")
    assert len(ease("predict", tmp_path, "--model", "model").stdout.splitlines()) == 12
    (tmp_path / "gone.png").symlink_to("nowhere")
    outcome = ease("predict", tmp_path, "--model", "model")  # one bad file does not stop a folder
    assert outcome.returncode == 1
    assert len(outcome.stdout.splitlines()) == 13
    assert "leads to 'nowhere', which does not exist" in outcome.stdout


def test_what_nobody_foresaw_is_one_line_too(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), "some/file")

    monkeypatch.setattr("ease.reporting.describe.describe_model", broken)
    assert "cannot use some/file: Input/output error" in refused(ease("info", "model"))


@pytest.mark.skipif(not Path("/proc/kmsg").exists(), reason="needs Linux")
@pytest.mark.parametrize("words", ["predict /proc/kmsg --model model", "unpack /proc/kmsg new"])
def test_a_file_of_the_system_that_never_ends_is_empty(words: str, place: Path) -> None:
    assert "empty" in refused(ease(*words.split()))


def test_a_name_that_is_no_text_is_shown_with_escapes(place: Path, tmp_path: Path) -> None:
    out = os.path.join(os.fsencode(tmp_path), b"\xff\xfe")
    child = Forked(ease_command("pack", "model", "--out", os.fsdecode(out)), tmp_path / "printed")
    assert child.wait() == 0, child.out.read_text()
    assert b"\\udcff\\udcfe" in child.out.read_bytes()
