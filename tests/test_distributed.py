"""Two processes (gloo) must say what one says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch

from ease.storage.model_directory import ModelDirectory

# 7 test images of each of 5 classes: 35 does not divide by 2, and neither do the batches of 5 and the last of 2.
WORDS = ["--dataset", "digits", "--protocol", "B5 Inc5", "--limit-per-class", "7", "--input-size", "16"]
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


def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    # Untrained adapters are the same in both runs, so what is compared is features, prototypes and scores.
    settings = [*SMALL, "--set", "epochs=0"]
    one = run(tmp_path / "one", *settings)
    two = run(tmp_path / "two", *settings, "--accelerator", "cpu", "--devices", "2")
    for key in ("accuracy", "per_task", "forward_passes", "test_images", "parameters"):
        assert one[key] == two[key]
    ours, theirs = tensors(tmp_path / "two"), tensors(tmp_path / "one")
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert (ours[name].double() - value.double()).abs().max() <= 1e-6 * max(1.0, float(value.abs().max()))
    with np.load(tmp_path / "one/predictions.npz") as a, np.load(tmp_path / "two/predictions.npz") as b:
        assert np.array_equal(a["stage2/ids"], b["stage2/ids"])
        assert np.abs(a["stage2/logits"] - b["stage2/logits"]).max() <= 1e-5


def test_training_on_two_processes_follows_the_same_gradient(tmp_path: Path) -> None:
    settings = [*SMALL, "--set", "epochs=2", "--set", "lr=0.05", "--set", "sigma=8"]
    run(tmp_path / "one", *settings)
    run(tmp_path / "two", *settings, "--accelerator", "cpu", "--devices", "2")
    ours, theirs = tensors(tmp_path / "two"), tensors(tmp_path / "one")
    for name, value in theirs.items():
        if name.startswith("subspaces/"):
            assert (ours[name] - value).abs().max() <= 1e-4
