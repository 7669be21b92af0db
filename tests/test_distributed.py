"""Two processes (gloo), on one machine or on two, must say what one says."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from ease.config import resolve
from ease.errors import EaseError
from ease.experiments.environment import make_fabric
from ease.storage.model_directory import ModelDirectory
from tests.forked import Forked, ease_command
from tests.test_cli import ease

# 7 test images of each of 5 classes: 35 does not divide by 2, and neither do the batches of 5 and the last of 2.
WORDS = ["--dataset", "digits", "--protocol", "B5 Inc5", "--limit-per-class", "7", "--input-size", "16"]
EASE = [sys.executable, "-m", "ease", "run"]
SMALL = ["--set", "rank=4", "--set", "batch_size=11", "--set", "eval_batch_size=9", "--set", "dropout=0"]


def run(out: Path, *words: str) -> dict[str, object]:
    result = subprocess.run(
        [sys.executable, "-m", "ease", "run", *WORDS, *words, "--out", str(out), "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def tensors(out: Path) -> dict[str, torch.Tensor]:
    found = ModelDirectory(out / "model").load().files
    return {f"{n}/{k}": v for n, part in found.items() for k, v in part.items()}


def nodes(out: Path, *words: str, count: int = 2) -> dict[str, object]:
    """The same command on several machines, which all are this one."""
    command = ease_command("run", *WORDS, *words, "--nodes", count, "--out", out, "--json")
    port = str(free_port())

    def on(node: int) -> None:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, NODE_RANK=str(node))
        command()

    place = out.parent / f"{out.name}-printed"
    place.mkdir()
    started = [
        Forked(lambda node=node: on(node), place / f"{node}.out", place / f"{node}.err")  # type: ignore[misc]
        for node in range(count)
    ]
    codes = [process.wait() for process in started]
    errors = [path.read_text() for path in sorted(place.glob("*.err"))]
    assert codes == [0] * count, errors
    printed = [process.out.read_text() for process in started]
    assert printed[1:] == [""] * (count - 1)  # only the first machine prints
    return dict(json.loads(printed[0]))


def torchrun(out: Path, *words: str) -> dict[str, object]:
    """One machine on which torchrun starts two processes."""
    to = ["--out", str(out), "--json"]
    given = ["--nnodes", "1", "--nproc-per-node", "2", "--master-port", str(free_port())]
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *given, *EASE[1:], *WORDS, *words, *to],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def devices(out: Path, *words: str) -> dict[str, object]:
    return run(out, *words, "--accelerator", "cpu", "--devices", "2")


def here(out: Path, *words: str) -> dict[str, object]:
    """The same command in this process."""
    result = ease("run", *WORDS, *words, "--out", out, "--json")
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    out = tmp_path_factory.mktemp("alone") / "run"
    return out, here(out, *SMALL, "--set", "epochs=0")


@pytest.mark.parametrize("start", [devices, nodes, torchrun], ids=["devices", "nodes", "torchrun"])
def test_two_processes_compute_the_features_of_one_bit_for_bit(
    tmp_path: Path, alone: tuple[Path, dict[str, object]], start: Callable[..., dict[str, object]]
) -> None:
    # Untrained adapters are the same in both runs, so what is compared is features, prototypes and scores.
    two, (folder, one) = start(tmp_path / "two", *SMALL, "--set", "epochs=0"), alone
    for key in ("accuracy", "per_task", "forward_passes", "test_images", "parameters"):
        assert one[key] == two[key]
    ours, theirs = tensors(tmp_path / "two"), tensors(folder)
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    with np.load(folder / "predictions.npz") as a, np.load(tmp_path / "two/predictions.npz") as b:
        for name in a.files:
            assert np.array_equal(a[name], b[name]), name


def test_nodes_that_cannot_meet_are_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    config, _ = resolve({"nodes": 2})
    with pytest.raises(
        EaseError, match="--nodes needs MASTER_ADDR, MASTER_PORT, NODE_RANK in the environment"
    ):
        make_fabric(config)


def test_torchrun_decides_how_many_processes_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    config, _ = resolve({"nodes": 3, "devices": 2})
    with pytest.raises(
        EaseError, match="2 processes on each of 2 machines, but 2 devices on 3 nodes were asked"
    ):
        make_fabric(config)


def test_training_on_two_processes_follows_the_same_gradient(tmp_path: Path) -> None:
    settings = [*SMALL, "--set", "epochs=2", "--set", "lr=0.05", "--set", "sigma=8"]
    here(tmp_path / "one", *settings)
    nodes(tmp_path / "two", *settings)
    ours, theirs = tensors(tmp_path / "two"), tensors(tmp_path / "one")
    for name, value in theirs.items():
        if name.startswith("subspaces/"):
            assert (ours[name] - value).abs().max() <= 1e-4
