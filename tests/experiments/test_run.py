"""A run: its record, and that killing it anywhere changes nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ease.config import RunConfig, resolve
from ease.errors import EaseError
from ease.experiments.record import ForwardPasses, RunRecord
from ease.experiments.run import resume_run, start_run
from ease.methods import find_method
from ease.storage import files
from ease.storage.contents import read_json
from ease.storage.model_directory import ModelDirectory

MAY_DIFFER = ("seconds", "peak_memory", "passes_repeated")
KILLED = 9


def quick(**options: Any) -> RunConfig:
    """Two stages of five digits on the embedded ViT at 16 pixels: a second's work."""
    wanted = {"dataset": "digits", "protocol": "B0 Inc5", "limit_per_class": 6, "input_size": 16, **options}
    known = find_method(wanted.get("method", "ease")).Settings.model_fields
    return resolve(wanted, sets=[f"{k}={v}" for k, v in {"epochs": 2, "rank": 4}.items() if k in known])[0]


def comparable(record: RunRecord) -> dict[str, Any]:
    return {key: value for key, value in record.as_json().items() if key not in MAY_DIFFER}


def prototypes(folder: Path) -> dict[str, torch.Tensor]:
    generation = ModelDirectory(folder / "model").load()
    return {f"{n}/{k}": v for n, part in generation.files.items() for k, v in part.items()}


def in_child(work: Callable[[], Any]) -> int:
    """Run in a forked child and return its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(EaseError):
            work()
            code = 0
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunRecord, list[str]]:
    """An undisturbed run, and every point at which it could have been struck."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    points: list[str] = []
    files.fault = lambda point, path: points.append(point)
    try:
        return folder, start_run(quick(), folder, []), points
    finally:
        files.fault = files._no_fault


def assert_equal_runs(folder: Path, record: RunRecord, whole: tuple[Path, RunRecord, list[str]]) -> None:
    assert comparable(record) == comparable(whole[1])
    ours, theirs = prototypes(folder), prototypes(whole[0])
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in whole[0].iterdir())


def test_the_record_has_the_cpu_seconds_of_learning_and_of_evaluation(
    whole: tuple[Path, RunRecord, list[str]],
) -> None:
    seconds = whole[1].seconds
    assert seconds.train is not None
    assert seconds.learning_cpu is not None
    assert seconds.evaluation_cpu is not None
    assert seconds.evaluation_cpu > 0
    assert seconds.learning_cpu > 0
    before = time.process_time()
    assert (
        seconds.learning_cpu + seconds.evaluation_cpu < before
    )  # of this process, which did other things too


def test_the_record_says_all_there_is_to_say(whole: tuple[Path, RunRecord, list[str]]) -> None:
    folder, record, _ = whole
    assert record == RunRecord.read(folder / "record.json")
    assert record.as_json() == read_json(folder / "record.json")
    assert len(record.accuracy) == 2
    assert record.average == pytest.approx(np.mean(record.accuracy))
    assert record.last == record.accuracy[-1]
    assert record.per_task[1][0] <= 100
    # 5 classes x 6 images a task: 2 epochs; subspaces 1, then 2; test images 30, then 60.
    assert record.forward_passes == ForwardPasses(train=2 * 60, prototypes=30 + 60, evaluation=30 + 30 + 60)
    assert record.passes_repeated == 0
    assert record.parameters.backbone == 2_719_296 - (64 - 4) * 192
    assert record.config.settings["rank"] == 4
    assert record.versions["torch"] == torch.__version__
    with np.load(folder / "predictions.npz") as predictions:
        for stage, accuracy in enumerate(record.accuracy, start=1):
            hits = predictions[f"stage{stage}/logits"].argmax(1) == predictions[f"stage{stage}/labels"]
            assert 100 * hits.mean() == pytest.approx(accuracy)
        assert len(set(predictions["stage2/ids"])) == 60
    assert (folder / "report.html").read_text().startswith("<!doctype html>")


def test_the_same_run_twice_is_the_same(whole: tuple[Path, RunRecord, list[str]], tmp_path: Path) -> None:
    record = start_run(quick(), tmp_path / "again", [])
    assert_equal_runs(tmp_path / "again", record, whole)


def killed_at(point: int, folder: Path) -> None:
    """Start a run in a child and kill it at its n-th point."""
    count = -1

    def strike(name: str, path: Path) -> None:
        nonlocal count
        count += 1
        if count == point:
            os._exit(KILLED)

    def work() -> None:
        files.fault = strike
        start_run(quick(), folder, [])

    assert in_child(work) == KILLED


@pytest.mark.parametrize("share", range(8))
def test_killed_at_any_point_it_resumes_to_the_same_record(
    share: int, whole: tuple[Path, RunRecord, list[str]], tmp_path: Path
) -> None:
    # A write has eight points; these strides meet each of them, early and late in the run.
    for point in range(share * 10, len(whole[2]), 79):
        folder = tmp_path / f"run{point}"
        killed_at(point, folder)
        begun = (folder / "run.json").exists()  # struck before that, it is simply started again
        assert_equal_runs(folder, resume_run(folder) if begun else start_run(quick(), folder, []), whole)


def test_killed_at_random_times_again_and_again(
    whole: tuple[Path, RunRecord, list[str]], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    chance = random.Random(3)
    for _ in range(6):
        child = os.fork()
        if child == 0:
            (resume_run(folder) if (folder / "run.json").exists() else start_run(quick(), folder, []))
            os._exit(0)
        time.sleep(chance.uniform(0.02, 0.5))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    record = resume_run(folder) if (folder / "run.json").exists() else start_run(quick(), folder, [])
    assert_equal_runs(folder, record, whole)


@pytest.mark.parametrize("share", range(3))
def test_a_full_disk_is_one_line_and_the_run_resumes(
    share: int, whole: tuple[Path, RunRecord, list[str]], tmp_path: Path
) -> None:
    writes = [i for i, point in enumerate(whole[2]) if point == "before-write"]
    for at in writes[share::5]:
        folder, count = tmp_path / f"run{at}", -1

        def full(name: str, path: Path, at: int = at) -> None:
            nonlocal count
            count += 1
            if count == at:
                raise OSError(errno.ENOSPC, "No space left on device")

        files.fault = full
        try:
            with pytest.raises(EaseError, match="disk is full"):
                start_run(quick(), folder, [])
        finally:
            files.fault = files._no_fault
        litter = [p for p in folder.rglob("*") if ".tmp-" in p.name]
        assert litter == []
        if (folder / "run.json").exists():
            assert_equal_runs(folder, resume_run(folder), whole)


def test_losing_the_feature_store_costs_passes_but_not_the_record(
    whole: tuple[Path, RunRecord, list[str]], tmp_path: Path
) -> None:
    import shutil

    folder = tmp_path / "run"
    stage2 = [i for i, point in enumerate(whole[2]) if point == "before-write"][-6]
    killed_at(stage2, folder)
    shutil.rmtree(folder / "features", ignore_errors=True)
    record = resume_run(folder)
    assert comparable(record) == comparable(whole[1])
    assert record.passes_repeated > 0


@pytest.mark.parametrize("method", ["simplecil", "finetune", "upper-bound"])
def test_every_kind_of_method_runs_and_resumes(method: str, tmp_path: Path) -> None:
    config = quick(method=method)
    record = start_run(config, tmp_path / "whole", [])
    count = 0

    def strike(name: str, path: Path) -> None:
        nonlocal count
        count += path.name == "manifest.json" and name == "after-replace"
        if count == 2:
            os._exit(KILLED)

    def work() -> None:
        files.fault = strike
        start_run(config, tmp_path / "run", [])

    assert in_child(work) == KILLED
    assert comparable(resume_run(tmp_path / "run")) == comparable(record)


def test_passes_of_a_fine_tuned_network_cannot_be_kept(tmp_path: Path) -> None:
    record = start_run(quick(method="finetune"), tmp_path / "run", [])
    assert record.forward_passes.evaluation == 30 + 60


def test_a_folder_in_use_is_refused(whole: tuple[Path, RunRecord, list[str]], tmp_path: Path) -> None:
    with pytest.raises(EaseError, match="--resume"):
        start_run(quick(), whole[0], [])
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(EaseError, match="another folder"):
        start_run(quick(), tmp_path, [])
    with pytest.raises(EaseError, match="no run to resume"):
        resume_run(tmp_path)


def test_resuming_a_finished_run_only_reads_it(whole: tuple[Path, RunRecord, list[str]]) -> None:
    before = (whole[0] / "record.json").stat().st_mtime_ns
    assert resume_run(whole[0]) == whole[1]
    assert (whole[0] / "record.json").stat().st_mtime_ns == before


def test_trainings_that_collapsed_stand_in_the_record_even_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, RunRecord, list[str]]
) -> None:
    monkeypatch.setattr("ease.methods._tuned_head.COLLAPSED", 2.0)  # every training counts as one
    record = start_run(quick(), tmp_path / "run", [])
    told = [note[:30] for note in record.notes if "collapsed" in note]
    assert told == [f"task {n}: the training collapsed" for n in (1, 2)]
    assert [len(trainings) for trainings in record.training_loss] == [2, 2]
    assert record.forward_passes.train == 2 * whole[1].forward_passes.train
    struck = in_child(lambda: _killed_at_the_second_stage(tmp_path / "struck"))
    assert struck == KILLED
    assert comparable(resume_run(tmp_path / "struck")) == comparable(record)


def _killed_at_the_second_stage(folder: Path) -> None:
    def kill(point: str, path: Path) -> None:
        if point == "after-replace" and path.name == "task0001-again.safetensors":
            os._exit(KILLED)

    files.fault = kill
    start_run(quick(), folder, [])


@pytest.mark.parametrize("native", [True, False])
def test_auto_is_recorded_as_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr("ease.training.hardware.computes_bf16", lambda device: native)
    record = start_run(quick(precision="auto"), tmp_path / "run", [])
    used = "bf16-mixed" if native else "32-true"
    assert record.config.precision == used
    assert ModelDirectory(tmp_path / "run" / "model").manifest().precision == used


def test_a_run_in_bf16_learns_and_says_where_it_is_only_emulated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: tuple[Path, RunRecord, list[str]]
) -> None:
    monkeypatch.setattr("ease.experiments.run.emulates_bf16", lambda device: True)
    record = start_run(quick(precision="bf16-mixed"), tmp_path / "run", [])
    assert any("only emulates bf16" in note for note in record.notes)
    assert not any("only emulates bf16" in note for note in whole[1].notes)
    assert record.accuracy != whole[1].accuracy or record.training_loss != whole[1].training_loss
    assert np.allclose(record.accuracy, whole[1].accuracy, atol=20)


def test_classes_and_test_images_can_be_limited(tmp_path: Path) -> None:
    config = quick(method="simplecil", protocol="B0 Inc2", limit_classes=4, limit_test=3)
    record = start_run(config, tmp_path / "run", [])
    assert sorted(record.classes) == ["0", "1", "2", "3"]
    assert record.test_images == [6, 12]
    assert "limited to the first 4 of 10 classes" in record.notes
    assert "limited to 3 test images per class" in record.notes
