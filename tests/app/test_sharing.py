"""Push, pull and the model card, against a real HTTP server on this machine that also plays the hub."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from ease import Classifier
from ease.app.card import model_card
from ease.app.sharing import pull, push
from ease.errors import EaseError
from ease.reporting.significance import wilson
from tests.app.conftest import LIGHT, Digits, Outcome, refused
from tests.app.fake_hub import FakeHub, fake_hub
from tests.forked import Forked


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    path = tmp_path_factory.mktemp("sharing") / "numbers"
    classifier = Classifier.create(path, input_size=16, augment="gentle", settings=LIGHT)
    classifier.learn(digits("0", "1", count=12))
    classifier.learn({"<b>|x|": digits("2", count=3)["2"]}, thumbnails=True)
    return path


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    with fake_hub() as server:
        yield server


def same(one: Path, other: Path) -> bool:
    images = [np.full((16, 16), value, np.uint8) for value in (0, 90, 200)]
    logits = [Classifier.open(path).logits(images).numpy() for path in (one, other)]
    return np.array_equal(*logits)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "form", ["{}/shared/numbers.ease", "file://{}/shared/numbers.ease", "{}/there", "{}/new/"]
)
def test_a_model_goes_through_a_folder(ease: Any, model: Path, tmp_path: Path, form: str) -> None:
    (tmp_path / "there").mkdir()
    target = form.format(tmp_path)
    pushed = ease("push", model, target)
    assert pushed.code == 0, pushed.err
    (archive,) = tmp_path.rglob("numbers.ease")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert f"SHA-256 {digest}" in pushed.out
    assert archive.with_name("numbers.ease.sha256").read_text() == f"{digest}  numbers.ease\n"
    pulled = ease("pull", archive, tmp_path / "again", "--sha256", digest)
    assert pulled.code == 0, pulled.err
    assert same(model, tmp_path / "again")


def test_a_wrong_checksum_leaves_nothing(ease: Any, model: Path, tmp_path: Path) -> None:
    pushed = push(model, str(tmp_path / "a.ease"))
    before = names(tmp_path)
    assert "not the one that was given" in refused(
        ease("pull", tmp_path / "a.ease", tmp_path / "model", "--sha256", "0" * 64)
    )
    note = tmp_path / "a.ease.sha256"
    note.write_text("f" * 64)
    assert "beside it" in refused(ease("pull", tmp_path / "a.ease", tmp_path / "model"))
    note.write_text("nothing")
    assert "has no SHA-256" in refused(ease("pull", tmp_path / "a.ease", tmp_path / "model"))
    assert names(tmp_path) == before
    note.unlink()
    assert "compared with no SHA-256" in ease("pull", tmp_path / "a.ease", tmp_path / "model").out
    assert pull(str(tmp_path / "a.ease"), tmp_path / "b", sha256=pushed.sha256).checked == ("given",)


@pytest.mark.parametrize("command", ["push", "pull"])
def test_what_a_killed_command_left_is_removed_by_the_next_one(
    command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    push(model, str(tmp_path / "a.ease"))

    def again() -> None:
        if command == "push":
            push(model, str(tmp_path / "a.ease"))
        else:
            pull(str(tmp_path / "a.ease"), tmp_path / "new" / "model")

    with monkeypatch.context() as killing:
        where = "places.FilePlace.put" if command == "push" else "sharing.unpack"
        killing.setattr(f"ease.app.{where}", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        child = Forked(again, tmp_path / "printed")
        assert child.wait() == -signal.SIGKILL
    (left,) = tmp_path.rglob("model.ease")
    assert stat.S_IMODE(left.parent.stat().st_mode) == 0o700
    again()
    assert list(tmp_path.rglob("model.ease")) == []
    assert list(tmp_path.rglob(".*.tmp-*")) == []


def test_a_full_disk_is_not_the_fault_of_what_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(model, str(tmp_path / "a.ease"))
    with limited_files(10_000), pytest.raises(EaseError, match=r"cannot write .*tmp-.*ulimit"):
        pull(str(tmp_path / "a.ease"), tmp_path / "new" / "model")
    assert names(tmp_path) == ["a.ease", "a.ease.sha256"]
    monkeypatch.setattr("tempfile.tempdir", None)
    with limited_files(0), pytest.raises(EaseError, match="no temporary folder can be written to"):
        push(model, str(tmp_path / "b.ease"))


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Files may not grow beyond this size inside the `with`."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("pull", "{}/no.ease", "{}/model"), "there is no model at"),
        (("pull", "{}/full/x.txt", "{}/model"), "cannot be unpacked"),
        (("pull", "{}/no.ease", "{}/full"), "is there already"),
        (("pull", "{}/full/x.txt", "{}/model", "--sha256", "abc"), "is no SHA-256"),
        (("push", "{}/full", "{}/x.ease"), "holds no model"),
        (("pull", "ftp://host/a.ease", "{}/model"), "is no place to share"),
        (("pull", "hf://nobody", "{}/model"), "no repository of the hub"),
        (("pull", "https://me:secret@host/a.ease", "{}/model"), "has a password"),
        (("pull", "http://127.0.0.1:1/a.ease", "{}/model"), "cannot be reached"),
        (("pull", "https://host/", "{}/model"), "is no address of a file"),
        (("card", "{}/full"), "holds no model"),
    ],
)
def test_wrong_words_are_one_line_and_write_nothing(ease: Any, tmp_path: Path, words: Any, says: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x.txt").write_text("no archive")
    line = refused(ease(*(word.format(tmp_path) for word in words)))
    assert says in line
    assert "secret" not in line
    assert names(tmp_path) == ["full"]


# --- HTTP -----------------------------------------------------------------------------------------


def test_a_model_goes_through_a_web_server(
    ease: Any, model: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "correct-horse"
    address = f"{hub.url}/models/numbers.ease"
    assert "EASE_SHARE_TOKEN" in refused(ease("push", model, address))
    monkeypatch.setenv("EASE_SHARE_TOKEN", "correct-horse")
    pushed = push(model, address)
    assert sorted(hub.files) == ["/models/numbers.ease", "/models/numbers.ease.sha256"]
    assert pull(address, tmp_path / "again", sha256=pushed.sha256).checked == ("given", "beside")
    assert same(model, tmp_path / "again")
    assert "there is no model" in refused(ease("pull", f"{hub.url}/other.ease", tmp_path / "x"))


def test_a_download_that_ends_early_or_is_too_large_leaves_nothing(
    model: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(model, f"{hub.url}/a.ease")
    hub.cut = 1000
    with pytest.raises(EaseError, match=r"ended early|cannot be reached"):
        pull(f"{hub.url}/a.ease", tmp_path / "model")
    hub.cut = None
    monkeypatch.setattr("ease.app.sharing.LARGEST", 1000)
    with pytest.raises(EaseError, match="larger than 1000 bytes"):
        pull(f"{hub.url}/a.ease", tmp_path / "model")
    assert names(tmp_path) == []


def test_the_token_is_not_carried_to_another_host_nor_sent_without_encryption(
    model: Path, hub: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EASE_SHARE_TOKEN", "correct-horse")
    with pytest.raises(EaseError, match="is not encrypted"):
        pull("http://example.org/a.ease", tmp_path / "model")
    with fake_hub() as other:
        push(model, f"{other.url}/a.ease")
        other.calls.clear()
        hub.redirect = f"{other.url}/a.ease"
        with pytest.raises(
            EaseError, match="larger than"
        ):  # the redirection gives the archive for the checksum, too
            pull(f"{hub.url}/a.ease", tmp_path / "model")
        assert [token for _, _, token in hub.calls] == ["Bearer correct-horse"] * 2
        assert [token for _, _, token in other.calls] == [None, None]


# --- the hub --------------------------------------------------------------------------------------


COMMANDS = """
import contextlib, io, json, sys
from ease.cli import main
for line in sys.stdin:
    sys.argv, code, out, err = ["ease", *json.loads(line)], 0, io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""


@contextmanager
def on_hub(hub: FakeHub, home: Path) -> Iterator[Callable[..., Outcome]]:
    """Commands in a process of their own: the hub's client reads its address once, when it is imported."""
    without = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = {**without, "HF_ENDPOINT": hub.url, "HF_TOKEN": "hf_test", "HF_HOME": str(home)}
    environment["HF_HUB_DISABLE_XET"] = environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    line = [sys.executable, "-c", COMMANDS]
    with subprocess.Popen(
        line, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stopping = threading.Timer(120, process.kill)
        stopping.start()

        def run(*words: object) -> Outcome:
            print(json.dumps([*map(str, words)]), file=process.stdin, flush=True)
            return Outcome(*json.loads(process.stdout.readline()))  # type: ignore[union-attr]

        yield run
        process.stdin.close()
        process.wait()
        stopping.cancel()


def test_a_model_goes_through_the_hubs_own_client(model: Path, hub: FakeHub, tmp_path: Path) -> None:
    with on_hub(hub, tmp_path / "home") as run:
        done = run("push", model, "hf://user/numbers", "--license", "mit")
        assert done.code == 0, done.err + str(hub.calls)
        root = "/user/numbers/resolve/main/"
        pushed = {name.removeprefix(root) for name in hub.files}
        assert pushed == {"README.md", "model.ease", "model.ease.sha256"}
        assert hub.files[f"{root}README.md"].startswith(b"---\nlicense: mit\n")
        assert {token for _, _, token in hub.calls} == {"Bearer hf_test"}
        digest = hashlib.sha256(hub.files[f"{root}model.ease"]).hexdigest()
        pulled = run("pull", "hf://user/numbers", tmp_path / "again", "--sha256", digest)
        assert pulled.code == 0, pulled.err + str(hub.calls)
        assert same(model, tmp_path / "again")
        hub.files[f"{root}model.ease.sha256"] = b"0" * 64
        failed = run("pull", "hf://user/numbers", tmp_path / "no")
        assert failed.code == 2
        assert "beside it" in failed.err
        missing = run("pull", "hf://user/numbers/other.ease", tmp_path / "no")
        assert missing.code == 2
        assert "there is no model" in missing.err
    assert set(names(tmp_path)) <= {"again", "home"}


# --- the card -------------------------------------------------------------------------------------


def test_the_card_says_what_the_manifest_says(ease: Any, model: Path, tmp_path: Path) -> None:
    text = model_card(model, license="cc-by-4.0")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["license"] == "cc-by-4.0"
    assert front["pipeline_tag"] == "image-classification"
    history = Classifier.open(model).history[0]
    low, high = wilson(round(history.accuracy * history.held_out / 100), history.held_out)
    assert f"| {history.held_out} | {history.accuracy:.1f} % | {low:.1f} to {high:.1f} % |" in text
    assert "| 0 | 12 |" in text
    assert "<b>" not in text.replace("\\<b\\>", "")
    assert "small picture** of 1 of the classes" in text
    assert str(model.parent) not in text
    assert ease("card", model, "--out", tmp_path / "README.md").code == 0
    assert "license: unknown" in (tmp_path / "README.md").read_text()
    assert "no short name" in refused(ease("card", model, "--license", "a b\nc"))


@pytest.mark.parametrize(("right", "count"), [(0, 1), (1, 1), (0, 10), (7, 10), (45, 50), (999, 1000)])
def test_the_interval_is_wilsons(right: int, count: int) -> None:
    from scipy.stats import binomtest

    expected = binomtest(right, count).proportion_ci(0.95, "wilson")
    assert wilson(right, count) == pytest.approx((100 * expected.low, 100 * expected.high))
