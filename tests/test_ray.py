"""--ray on the command line: with and without an address, with and without Ray."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ease.cli import main
from ease.cli.options import executor_of, with_address
from ease.cluster import connected, looks_like_address
from ease.config import resolve
from ease.errors import EaseError
from ease.experiments.executors.local import LocalProcesses
from ease.experiments.executors.ray import BASE_MEMORY, RayCluster, resource_hints
from ease.experiments.grid import Cell, Grid


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["study", "x", "--ray"], ["study", "x", "--ray=local"]),
        (["study", "--ray", "x", "--out", "o"], ["study", "--ray=local", "x", "--out", "o"]),
        (["study", "--ray", "--out", "o"], ["study", "--ray=local", "--out", "o"]),
        (["study", "--ray", "first:6379"], ["study", "--ray", "first:6379"]),
        (["study", "--ray", "ray://10.0.0.1:10001"], ["study", "--ray", "ray://10.0.0.1:10001"]),
        (["study", "--ray=auto", "x"], ["study", "--ray=auto", "x"]),
        (["study", "--ray", "auto"], ["study", "--ray", "auto"]),
    ],
)
def test_the_address_may_be_left_out(words: list[str], expected: list[str]) -> None:
    assert with_address(words) == expected


@pytest.mark.parametrize("word", ["first", "bench-small", "a b:1", "host:", ":6379", "host:123456", ""])
def test_other_words_are_no_addresses(word: str) -> None:
    assert not looks_like_address(word)


COMMANDS = [
    ["study", "bench-small", "--out", "out", "--ray"],
    ["paper", "table1", "--out", "out", "--ray"],
    ["predict", "--from", "x.txt", "--model", "model", "--to", "out", "--ray"],
    ["serve", "--model", "model", "--ray"],
]


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_without_ray_one_line_says_how_to_install_it(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    monkeypatch.setattr("sys.argv", ["ease", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert error == (
        "error: Ray is not installed, and --ray needs it: pip install 'ease-cil[ray]', or leave --ray out\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_jobs_and_ray_exclude_each_other() -> None:
    pytest.importorskip("ray")
    assert executor_of(None, 3) == LocalProcesses(3)
    assert executor_of("auto", 1) == RayCluster("auto")
    with pytest.raises(EaseError, match="--jobs and --ray exclude each other"):
        executor_of("auto", 2)


def test_a_cluster_that_does_not_answer_is_one_line() -> None:
    pytest.importorskip("ray")
    for address, message in {
        "127.0.0.1:9": r"cannot reach the Ray cluster at 127.0.0.1:9 .*ray start --head",
        "first": "'first' is not the address of a Ray cluster",
    }.items():
        with pytest.raises(EaseError, match=message), connected(address):
            pass


def test_a_cluster_whose_head_is_stopped_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("ease.cluster.KNOCK_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listening:  # the kernel accepts for it
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with (
            pytest.raises(EaseError, match=rf"at {address} \(it does not answer within 0\.2 seconds\)"),
            connected(address),
        ):
            pass


def cell(**options: object) -> Cell:
    return Cell(*resolve({"dataset": "digits", "method": "simplecil", **options}))


def test_a_unit_asks_for_what_its_largest_cell_needs() -> None:
    small, large = cell(), cell(cpus=3, feature_memory=2000, image_memory=100, accelerator="cuda")
    assert resource_hints([small]) == {"num_cpus": 1, "num_gpus": 0, "memory": BASE_MEMORY + 512 * 2**20}
    assert resource_hints([small, large]) == {
        "num_cpus": 3,
        "num_gpus": 1,
        "memory": BASE_MEMORY + 2100 * 2**20,
    }


def test_a_cell_of_several_processes_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    for options in ({"devices": 2}, {"nodes": 2}):
        with pytest.raises(EaseError, match="a cell on a Ray cluster is one process"):
            Grid(tmp_path).run([cell(**options)], RayCluster("127.0.0.1:9"))


class PlayedRay:
    """As much of Ray as a connection needs. It does what the real one does to the process that calls it."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def is_initialized(self) -> bool:
        return False

    def init(self, **options: Any) -> None:
        self.given = options
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))

    def shutdown(self) -> None:
        print("a node was lost")


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlayedRay]:
    ray, before = PlayedRay(), signal.getsignal(signal.SIGTERM)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    yield ray
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("named", [None, "", "local", "auto"])
def test_without_an_address_ray_is_started_here_unless_the_environment_names_a_cluster(
    played: PlayedRay, monkeypatch: pytest.MonkeyPatch, named: str | None
) -> None:
    if named is not None:
        monkeypatch.setenv("RAY_ADDRESS", named)
    with connected():
        # None would be the last cluster that was started on this machine, which may be gone.
        assert played.given["address"] == ("auto" if named == "auto" else "local")
        assert ("object_store_memory" in played.given) == (named != "auto")


def test_what_the_process_does_when_it_is_told_to_stop_is_kept(played: PlayedRay) -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with connected():
        assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_nothing_of_what_ray_prints_is_output(played: PlayedRay, capsys: pytest.CaptureFixture[str]) -> None:
    with connected():
        print("while it works")
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == "while it works\na node was lost\n"
