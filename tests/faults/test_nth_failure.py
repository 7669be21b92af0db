"""A share of `make faults`: some calls of each writing command fail, or the process is killed there."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest
from campaign.faults import OPERATIONS, Tally, Trial, World, temporaries
from campaign.injection import HARMS, KINDS

from ease.storage import files as durable

SHARE = (
    ("rename", 1.0, "kill"),
    ("unlink", 0.0, "kill"),
    ("write", 0.5, "ENOSPC"),
    ("open", 0.7, "EACCES"),
    ("fsync", 0.9, "EIO"),
    ("write", 0.0, "full"),
)
"""Kind of call, which of them (0 the first, 1 the last), and what happens there."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_failed_call_leaves_the_old_or_the_new_state(world: World, name: str) -> None:
    tally = Tally()
    trial = Trial(world, OPERATIONS[name], tally)
    assert {kind for kind, _, _ in SHARE} <= set(KINDS)
    assert {harm for _, _, harm in SHARE} == set(HARMS)
    for kind, where, harm in SHARE:
        if count := trial.counts[kind]:
            assert trial.strike(kind, 1 + round(where * (count - 1)), harm)
    assert sum(tally.strikes.values()) >= 4
    assert not trial.strike("open", trial.counts["open"] + 9, "EIO"), "after the last call nothing is struck"


def test_the_temporary_file_of_a_living_writer_stays(tmp_path: Path) -> None:
    """Of this process, of another process, and of a process of another machine that holds its lock."""
    living = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    dead.wait()
    mine, theirs, remote, left, folder, other = (
        tmp_path / f".{name}"
        for name in (
            f"a.json.tmp-{os.getpid()}-00",
            f"a.json.tmp-{living.pid}-00",
            f"a.json.tmp-{dead.pid}-01",
            f"a.json.tmp-{dead.pid}-02",
            f"a.json.tmp-{dead.pid}-03",
            f"b.json.tmp-{dead.pid}-00",
        )
    )
    for path in (mine, theirs, remote, left, other):
        path.write_text("x")
    (folder / "inner").mkdir(parents=True)
    try:
        with open(remote) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            durable.write_atomic(tmp_path / "a.json", b"{}")
            assert temporaries(tmp_path) == sorted(path.name for path in (mine, theirs, remote, other))
        durable.write_atomic(tmp_path / "a.json", b"{}")
        assert temporaries(tmp_path) == sorted(path.name for path in (mine, theirs, other))
    finally:
        living.communicate()


def test_a_writer_holds_its_temporary_file(tmp_path: Path) -> None:
    with durable.replacing(tmp_path / "a.json") as file:
        (temporary,) = temporaries(tmp_path)
        with open(tmp_path / temporary) as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"{}")
