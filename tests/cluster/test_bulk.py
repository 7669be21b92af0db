"""Bulk prediction on a Ray cluster: one row for each input, the same as on one machine, whatever is lost."""

from __future__ import annotations

import json
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from ease.app.bulk import predict_to_folder, source_inputs
from ease.app.classifier import Classifier
from tests.app.conftest import digits, write_folder
from tests.app.test_bulk_folder import rows
from tests.cluster.conftest import TwoNodes
from tests.cluster.tools import Command, running, wait_for

__all__ = ["digits"]
PROGRAM = """
import sys
from ease.app.bulk import index
from ease.cli import main

index.shares.__defaults__ = (8,)
sys.argv = ["ease", *sys.argv[1:]]
main()
"""
IMAGES = 20 * 16


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> Path:
    path = tmp_path_factory.mktemp("bulk") / "model"
    Classifier.create(path, input_size=16).learn(digits("0", "1", "2", count=10))
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> Path:
    """Many photos, some of which are none."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(20):
        write_folder(folder / f"{number:02d}", digits("0", count=15))
        (folder / f"{number:02d}" / "0" / "bad.jpg").write_bytes(b"hello")
    return folder


@pytest.fixture(scope="session")
def undisturbed(model: Path, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    predict_to_folder(model, lambda: source_inputs(photos), out, source="photos", kind="jsonl")
    return rows(out)


def predict(model: Path, photos: Path, out: Path, address: str) -> AbstractContextManager[Command]:
    words = [
        "predict",
        "--from",
        photos,
        "--model",
        model,
        "--to",
        out,
        "--format",
        "jsonl",
        "--ray",
        address,
    ]
    return running([str(word) for word in words], ("-c", PROGRAM))


def parts(out: Path) -> int:
    return len(list(out.glob("part-*")))


def check(out: Path, undisturbed: list[dict[str, Any]]) -> None:
    assert rows(out) == undisturbed
    assert len(undisturbed) == IMAGES
    assert sum(row["error"] is not None for row in undisturbed) == 20
    assert json.loads((out / "summary.json").read_text())["inputs"] == IMAGES
    assert {path.name[:5] for path in out.iterdir()} == {"part-", "summa"}


def test_a_bulk_prediction_goes_on_when_a_node_is_lost(
    cluster: TwoNodes, model: Path, photos: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    out, node = tmp_path / "out", cluster.join()
    with cluster.busy_head() as free, predict(model, photos, out, cluster.address) as command:
        wait_for(
            lambda: any(f"/{node}" in path.read_text() for path in out.glob(".work/done/[0-9]*.json")),
            f"a part by node {node}",
            unless=command.has_ended,
        )
        free()
        cluster.lose()
        assert command.end() == 1, command.errors
    printed = command.printed
    assert f"wrote {IMAGES} rows to " in printed
    assert "images/s)" in printed
    assert len(printed.splitlines()) == 1  # what Ray says of lost nodes is not among our output
    check(out, undisturbed)


@pytest.mark.long
def test_a_bulk_prediction_whose_command_is_killed_goes_on(
    cluster: TwoNodes, model: Path, photos: Path, undisturbed: list[dict[str, Any]], tmp_path: Path
) -> None:
    out, before = tmp_path / "out", 0
    for _ in range(2):
        with predict(model, photos, out, cluster.address) as killed:
            wait_for(
                lambda before=before: parts(out) > before,
                f"more than {before} parts",
                unless=killed.has_ended,
            )
            killed.process.send_signal(signal.SIGKILL)
            assert killed.end() == -signal.SIGKILL, killed.errors
        before = parts(out)
    with predict(model, photos, out, cluster.address) as last:
        assert last.end() == 1, last.errors
    printed = last.printed
    assert "of them by an earlier command" in printed
    check(out, undisturbed)
