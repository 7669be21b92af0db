"""Every input that once was trouble, and a few new ones, under a limit of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from campaign.fuzz import CORPUS, TARGETS, corpus

ROOT = Path(__file__).parents[2]


def test_each_target_has_stored_inputs() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
    assert all(corpus(target) for target in TARGETS)
    assert sum(path.stat().st_size for target in TARGETS for path in corpus(target)) < 2**20


def test_no_stored_input_is_more_than_a_refusal() -> None:
    """In a process of its own, which may not have more than 4 GB of address space."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "campaign.fuzz", "--replay"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert " 0 findings" in done.stdout
