"""The limits of these tests themselves: what hangs ends, and says where and what it waited for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.cluster.tools import Meanwhile, meanwhile, running, wait_for

HOOKS = """
from tests.cluster import conftest

conftest.LIMIT, conftest.GRACE = 1.0, {grace}
pytest_runtest_protocol = conftest.pytest_runtest_protocol
pytest_runtest_makereport = conftest.pytest_runtest_makereport
"""
TESTS = """
import signal
import time

def test_one_that_hangs():
    try:
        if {deaf}:
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])  # as code does that never returns to Python
        time.sleep(100)
    except Exception:
        pass

def test_after_it():
    pass
"""


@pytest.mark.parametrize("deaf", [False, True])
def test_a_test_that_hangs_ends_with_the_stacks_of_its_threads_and_no_other_is_begun(
    tmp_path: Path, deaf: bool
) -> None:
    (tmp_path / "conftest.py").write_text(HOOKS.format(grace=0.5 if deaf else 60.0))
    (tmp_path / "test_it.py").write_text(TESTS.format(deaf=deaf))
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode != 0
    assert "in test_one_that_hangs" in done.stderr  # a line of the stacks
    if not deaf:
        assert "test_one_that_hangs has not ended after 1 seconds" in done.stderr
        assert "1 failed" in done.stdout
        assert "passed" not in done.stdout


def test_what_cannot_happen_any_more_is_not_waited_for() -> None:
    with pytest.raises(AssertionError, match="a part: it did not happen, since the work has ended"):
        wait_for(lambda: False, "a part", unless=lambda: "the work has ended")
    assert wait_for(iter([False, 3]).__next__, "a part", unless=lambda: "the work has ended") == 3
    with pytest.raises(AssertionError, match=r"a part: it did not happen in 0\.01 seconds"):
        wait_for(lambda: False, "a part", seconds=0.01)

    def act(during: Meanwhile) -> None:
        wait_for(lambda: False, "a node", unless=during.is_over)

    with (
        pytest.raises(AssertionError, match="a node: it did not happen, since the work has ended"),
        meanwhile(act),
    ):
        pass
    with pytest.raises(ZeroDivisionError), meanwhile(lambda during: during.over.wait(60) and None):
        raise ZeroDivisionError
    assert not [each for each in threading.enumerate() if each.name.endswith("(run)")]


def test_a_command_that_ended_says_so_and_one_that_does_not_is_killed() -> None:
    with (
        running(["import sys; sys.exit('no')"], ("-c",)) as command,
        pytest.raises(AssertionError, match=r"it did not happen, since the command has ended with 1: no"),
    ):
        wait_for(lambda: command.printed, "a line", unless=command.has_ended)
    with running(["import time; print('here', flush=True); time.sleep(100)"], ("-c",)) as command:
        wait_for(lambda: command.printed == "here\n", "a line", unless=command.has_ended)
        with pytest.raises(AssertionError, match=r"the command has not ended in 0\.1 seconds"):
            command.end(0.1)
    assert command.process.returncode == -signal.SIGKILL
