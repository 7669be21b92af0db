"""A lease: one writer at a time on any machine, and one that was taken for dead writes nothing more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from ease.storage import files, lease
from ease.storage.files import fenced, make_folder, remove, remove_tree, write_atomic
from ease.storage.lease import Lease, LeaseLostError, discard_lease, lease_holder
from ease.storage.model_directory import ModelDirectory
from tests.storage.test_model_directory import STATE


def never() -> bool:
    return False


def foreign(folder: Path, token: int = 1, **values: Any) -> Path:
    """The lease of a process on another machine."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{token:08d}.json"
    holder = {"node": "far", "machine": "far away", "process": 1, "started": "1", "beat": 1, **values}
    path.write_text(json.dumps(holder))
    return path


def test_every_holder_has_a_higher_token(tmp_path: Path) -> None:
    tokens = []
    for _ in range(3):
        mine = Lease(tmp_path)
        with mine.hold(never) as held:
            assert held
            tokens.append(mine.token)
            assert not mine.taken_over
    assert tokens == [1, 2, 3]
    assert os.listdir(tmp_path) == ["00000003.json"]


def test_a_lease_that_was_given_back_can_be_discarded_with_its_folder(tmp_path: Path) -> None:
    with Lease(tmp_path / "lease").hold(never):
        discard_lease(tmp_path / "lease")
        assert (tmp_path / "lease" / "00000001.json").exists()
    discard_lease(tmp_path / "lease")
    assert not (tmp_path / "lease").exists()
    discard_lease(tmp_path / "lease")  # nothing to do


def test_a_lease_that_had_several_holders_is_not_discarded(tmp_path: Path) -> None:
    foreign(tmp_path, token=1)  # perhaps it only sleeps, and then looks for a higher number
    with Lease(tmp_path, 0.1).hold(never):
        pass
    discard_lease(tmp_path)
    assert os.listdir(tmp_path) == ["00000002.json"]


def test_a_lease_can_be_discarded_while_many_want_it(tmp_path: Path) -> None:
    folder, inside, most, had = tmp_path / "lease", 0, 0, 0

    def work() -> None:
        nonlocal inside, most, had
        with Lease(folder, 2).hold(never):
            inside += 1
            had += 1
            most = max(most, inside)
            time.sleep(0.01)
            inside -= 1
        discard_lease(folder)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (most, had) == (1, 8)


def test_of_many_that_want_it_one_has_it_at_a_time(tmp_path: Path) -> None:
    inside, most, tokens = 0, 0, []

    def work() -> None:
        nonlocal inside, most
        mine = Lease(tmp_path, 5)
        with mine.hold(never):
            inside += 1
            most = max(most, inside)
            tokens.append(mine.token)
            time.sleep(0.02)
            inside -= 1

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == 1
    assert sorted(tokens) == list(range(1, 7))


def test_a_holder_that_shows_signs_of_life_is_waited_for(tmp_path: Path) -> None:
    path = foreign(tmp_path, beat=1)
    until = time.monotonic() + 1.2
    told = []

    def unneeded() -> bool:
        foreign(tmp_path, beat=int(1000 * time.monotonic()))
        return time.monotonic() > until

    with Lease(tmp_path, 0.4).hold(unneeded, lambda holder: told.append(holder.node)) as held:
        assert not held
    assert told == ["far"]
    assert path.exists()


def test_a_silent_holder_of_another_machine_is_taken_over_after_its_time(tmp_path: Path) -> None:
    foreign(tmp_path, token=7)
    mine, began = Lease(tmp_path, 0.4, node="here"), time.monotonic()
    with mine.hold(never) as held:
        assert held
        assert mine.token == 8
        assert mine.taken_over
        assert time.monotonic() - began >= 0.4
        found = lease_holder(tmp_path)
        assert found is not None
        assert found.node == "here"


@pytest.mark.parametrize("content", ["", "{", '{"node": 3}'])
def test_a_lease_file_that_says_nothing_is_given_its_time_too(tmp_path: Path, content: str) -> None:
    (tmp_path / "00000001.json").write_text(content)
    began = time.monotonic()
    with Lease(tmp_path, 0.4).hold(never) as held:
        assert held
        assert time.monotonic() - began >= 0.4


def test_the_lease_of_a_process_that_was_killed_here_is_free_at_once(tmp_path: Path) -> None:
    work = (
        "import os, sys; from pathlib import Path; from ease.storage.lease import Lease\n"
        "with Lease(Path(sys.argv[1])).hold(lambda: False): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", work, str(tmp_path)], check=True, timeout=60)
    mine, began = Lease(tmp_path, 60), time.monotonic()
    with mine.hold(never):
        assert mine.token == 2
        assert mine.taken_over
        assert time.monotonic() - began < 10


def test_a_holder_keeps_its_lease_alive_and_tells_how_far_it_is(tmp_path: Path) -> None:
    mine = Lease(tmp_path, 0.4)
    with mine.hold(never):
        mine.done, mine.total = 3, 5
        first = lease_holder(tmp_path)
        until = time.monotonic() + 30
        while (found := lease_holder(tmp_path)) is None or found.done != 3:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert first is not None
        assert found.beat > first.beat
        assert (found.total, found.released) == (5, False)
    found = lease_holder(tmp_path)
    assert found is not None
    assert found.released


@pytest.mark.parametrize("write", ["file", "folder", "remove", "tree"])
def test_who_lost_the_lease_changes_nothing_more(tmp_path: Path, write: str) -> None:
    cell = tmp_path / "cell"
    (cell / "part").mkdir(parents=True)
    path = cell / "part" / "record.json"
    path.write_bytes(b"theirs")
    mine = Lease(tmp_path / "lease")
    changes = {
        "file": lambda: write_atomic(path, b"mine"),
        "folder": lambda: make_folder(cell / "new"),
        "remove": lambda: remove(path),
        "tree": lambda: remove_tree(cell / "part"),
    }
    with mine.hold(never), fenced(cell, mine.check):
        write_atomic(cell / "before.json", b"mine")
        foreign(tmp_path / "lease", token=2)
        with pytest.raises(LeaseLostError, match="another one goes on"):
            changes[write]()
        write_atomic(tmp_path / "elsewhere.json", b"not fenced")
    assert path.read_bytes() == b"theirs"
    assert sorted(p.name for p in cell.rglob("*")) == ["before.json", "part", "record.json"]
    write_atomic(path, b"mine")  # outside of the fence
    found = lease_holder(tmp_path / "lease")
    assert found is not None
    assert found.node == "far"


def test_the_fence_is_asked_when_the_new_content_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(files, "fault", lambda point, path: seen.append(point))
    with fenced(tmp_path, lambda: seen.append("fence")):
        write_atomic(tmp_path / "file", b"x")
    assert seen.index("after-fsync") < seen.index("fence") == seen.index("after-replace") - 1


def test_a_commit_that_lost_its_lease_leaves_the_files_of_who_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = ModelDirectory(tmp_path / "model")
    mine = Lease(tmp_path / "lease")

    def strike(point: str, path: Path) -> None:
        if point == "before-replace" and path.name == "0001.json":
            foreign(tmp_path / "lease", token=2)

    monkeypatch.setattr(files, "fault", strike)
    with mine.hold(never), fenced(tmp_path / "model", mine.check), pytest.raises(LeaseLostError):
        directory.commit(STATE, {"learner/0001": {"a": torch.zeros(1)}})
    assert [path.name for path in (tmp_path / "model" / "learner").iterdir()] == ["0001.safetensors"]
    assert not directory.exists


def test_machines_and_process_numbers_that_were_given_again_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Lease(tmp_path).hold(never):
        found = lease_holder(tmp_path)
    assert found is not None
    assert not found.is_gone
    assert found.model_copy(update={"started": "another start"}).is_gone
    monkeypatch.setattr(lease, "_machine", lambda: "another machine")
    assert not found.model_copy(update={"started": "another start"}).is_gone
