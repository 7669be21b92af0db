"""The most memory one run holds, in a process of its own. `benchmarks/speed.py` starts it; JSON on the output.

Every task is learned, in one epoch, and the last stage evaluated: every other one needs less. A `crowded` run has more
than 16 MB of test features, so that this budget spills.

    python -m benchmarks.memory ours ease-vit --feature-memory 16 --crowded
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, World, brief, crowded, quick
from benchmarks.clock import peak_memory
from benchmarks.runs import NaiveRun, OurRun
from ease.errors import EaseError

ROOT = Path(__file__).parent.parent


def run_once(side: str, world: World, feature_memory: int) -> dict[str, int]:
    """Bytes at most, and bytes of features that our store was given."""
    tasks = world.stream.tasks
    with tempfile.TemporaryDirectory(prefix="ease-bench-") as folder:
        run: OurRun | NaiveRun
        run = NaiveRun(world, alone=True) if side == "naive" else OurRun(world, Path(folder), feature_memory)
        for task in tasks:
            run.stage(task, evaluate=task is tasks[-1])
    images = sum(len(task.test) for task in tasks)
    return {"peak": peak_memory(), "features": images * len(tasks) * world.backbone.dim * 4}


def in_a_child(
    side: str, backbone: str, feature_memory: int, *, is_crowded: bool, is_quick: bool
) -> dict[str, int]:
    """The same, measured in a fresh process."""
    words = [
        sys.executable,
        "-m",
        "benchmarks.memory",
        side,
        backbone,
        "--feature-memory",
        str(feature_memory),
    ]
    words += ["--crowded"] * is_crowded + ["--quick"] * is_quick
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise EaseError(f"the {side} run of {backbone} for its memory failed: {reason[0]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("side", choices=["naive", "ours"])
    parser.add_argument("backbone", choices=list(CASES))
    parser.add_argument("--feature-memory", type=int, default=256, help="MB of test features held in memory")
    parser.add_argument("--crowded", action="store_true", help="more than 16 MB of test features")
    parser.add_argument("--quick", action="store_true", help="seconds, for a test of the benchmark itself")
    options = parser.parse_args()
    case = CASES[options.backbone]
    case = quick(case) if options.quick else case
    world = World(crowded(case) if options.crowded else brief(case))
    print(json.dumps(run_once(options.side, world, options.feature_memory)))


if __name__ == "__main__":
    main()
