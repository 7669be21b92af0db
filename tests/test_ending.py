"""Ctrl-C and SIGTERM, once and more often."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from ease import Classifier
from ease.app.server.run import serve
from ease.cli import ending, script
from tests.forked import Forked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such signals")
BOTH = (signal.SIGINT, signal.SIGTERM)


def wait_for(text: str, child: Forked) -> None:
    until = time.monotonic() + 60
    while not child.out.exists() or text not in child.out.read_text():
        assert child.poll() is None, child.out.read_text()
        assert time.monotonic() < until, child.out.read_text()
        time.sleep(0.01)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Forked]]:
    """Starts a child that begins as the console script does. If it is still there after the test, it is killed."""
    children = []

    def start(work: Callable[[], object], *words: object) -> Forked:
        def all_of_it() -> None:
            sys.argv = ["ease", *map(str, words)]
            ending.end_once()
            work()

        children.append(Forked(all_of_it, tmp_path / "printed"))
        return children[-1]

    yield start
    for child in children:
        child.kill()
        child.wait()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ending") / "model"
    images = [np.full((16, 16, 3), value, np.uint8) for value in (0, 60, 120, 180)]
    Classifier.create(path, input_size=16).learn({"dark": images[:2], "bright": images[2:]})
    return path


@pytest.mark.parametrize("first", BOTH, ids=lambda number: number.name)
def test_a_server_ends_without_a_word_however_often_it_is_told_to(
    start: Callable[..., Forked], model: Path, first: signal.Signals
) -> None:
    child = start(script, "serve", "--model", model, "--port", 0)
    wait_for("(Ctrl-C ends it)", child)
    for number in (first, *BOTH * 20):
        child.send_signal(number)
        time.sleep(0.01)
    assert child.wait() == 0
    printed = child.out.read_text()
    assert "Traceback" not in printed
    assert "KeyboardInterrupt" not in printed


@pytest.mark.parametrize("first", BOTH, ids=lambda number: number.name)
def test_tidying_up_is_not_disturbed(
    start: Callable[..., Forked], tmp_path: Path, first: signal.Signals
) -> None:
    def work() -> None:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(0.3)
            (tmp_path / "tidy").touch()
            ending.leave(5)

    child = start(work)
    wait_for("ready", child)
    for number in (first, *BOTH * 5):
        child.send_signal(number)
        time.sleep(0.02)
    assert child.wait() == 5
    assert (tmp_path / "tidy").exists()


def test_a_command_that_does_not_end_is_left_later(
    start: Callable[..., Forked], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "HASTE", 1.0)

    def work() -> None:
        print("ready", flush=True)
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                print("stays", flush=True)

    child = start(work)
    wait_for("ready", child)
    child.send_signal(signal.SIGINT)
    wait_for("stays", child)
    child.send_signal(signal.SIGINT)
    time.sleep(1.1)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    assert child.wait() == ending.INTERRUPTED
    assert child.out.read_text().splitlines()[-1] == "interrupted"


@pytest.mark.parametrize("number", BOTH, ids=lambda number: number.name)
def test_a_fetch_is_not_waited_for(
    start: Callable[..., Forked], tmp_path: Path, number: signal.Signals
) -> None:
    """Its server sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as slow:
        address = f"http://127.0.0.1:{slow.getsockname()[1]}/a.png"
        (tmp_path / "t.csv").write_text(f"url,label\n{address},a\n{address}?,b\n")
        words = ("learn", tmp_path / "t.csv", "--model", tmp_path / "m", "--allow-private-urls")
        child = start(script, *words)
        slow.settimeout(60)
        connection, _ = slow.accept()
        with connection:
            time.sleep(0.2)
            child.send_signal(number)
            assert child.wait(8) == ending.INTERRUPTED  # a fetch is given 15 seconds without a byte
    assert child.out.read_text().splitlines()[-1] == "interrupted"
    assert not (tmp_path / "m").exists()


def test_a_server_leaves_the_handler_of_a_program_alone(start: Callable[..., Forked], model: Path) -> None:
    """Ctrl-C may be ignored where SIGTERM is not, as in a command that a shell script starts in the background."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        before = signal.getsignal(signal.SIGTERM)

        def announce(_: str) -> None:
            print("kept" if signal.getsignal(signal.SIGTERM) is before else "replaced", flush=True)

        with contextlib.suppress(KeyboardInterrupt):
            serve(model, port=0, announce=announce)
        print("ended")

    child = start(work)
    wait_for("kept", child)
    child.send_signal(signal.SIGTERM)
    assert child.wait() == 0, child.out.read_text()
    assert child.out.read_text().splitlines()[-1] == "ended"


def test_what_is_ignored_stays_ignored(start: Callable[..., Forked]) -> None:
    """As with nohup, or a command that a shell script starts in the background."""

    def work() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ending.end_once()
        os.kill(os.getpid(), signal.SIGINT)
        print("still here")

    child = start(work)
    assert child.wait() == 0, child.out.read_text()
    assert child.out.read_text() == "still here\n"


def test_what_was_printed_is_there_although_a_thread_still_runs(start: Callable[..., Forked]) -> None:
    def work() -> None:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        script()

    child = start(work, "--version")
    assert child.wait() == 0
    assert child.out.read_text().strip()


def test_an_interrupted_command_does_not_wait_for_threads(start: Callable[..., Forked]) -> None:
    def work() -> None:
        threading.Thread(target=time.sleep, args=(60,)).start()
        print("printed")
        ending.leave(ending.INTERRUPTED)

    child = start(work)
    assert child.wait(30) == ending.INTERRUPTED
    assert child.out.read_text() == "printed\n"
