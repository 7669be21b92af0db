"""Records made by hand: three methods over ten stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ease.experiments.record import RunRecord

# Drop per stage, start, share trained: shaped like the real thing, so that the pictures can be judged by eye.
METHODS = {
    "ease": (0.9, 99.5, [36_864] * 10),
    "simplecil": (1.5, 98.0, [0] * 10),
    "finetune": (7.2, 99.5, [2_700_000] * 10),
}


def build_record(method: str = "ease", seed: int = 1, stages: int = 10, **changes: Any) -> RunRecord:
    """A record with some of its values changed; a value of None is left out."""
    values = {**record_values(method, seed, stages), **changes}
    return RunRecord.parse({key: value for key, value in values.items() if value is not None})


def record_values(method: str = "ease", seed: int = 1, stages: int = 10) -> dict[str, Any]:
    """The JSON values of a record."""
    drop, start, trained = METHODS.get(method, METHODS["ease"])
    wobble = 0.4 * ((seed * 7) % 5 - 2)

    def cell(stage: int, task: int) -> float:
        return max(0.0, min(100.0, start - drop * (stage - task) - 0.6 * task + wobble))

    per_task = [[cell(stage, task) for task in range(stage + 1)] for stage in range(stages)]
    accuracy = [sum(row) / len(row) for row in per_task]
    lost = [per_task[t][t] - per_task[-1][t] for t in range(stages - 1)] or [0.0]
    return {
        "format": 1,
        "method": method,
        "dataset": "glyphs",
        "protocol": "B0 Inc5",
        "backbone": "ease-vit",
        "seed": seed,
        "classes": [f"glyph {number}" for number in range(5 * stages)],
        "task_sizes": [5] * stages,
        "accuracy": accuracy,
        "average": sum(accuracy) / stages,
        "last": accuracy[-1],
        "forgetting": sum(lost) / len(lost),
        "backward_transfer": -sum(lost) / len(lost),
        "per_task": per_task,
        "top5": [min(100.0, value + 3) for value in accuracy],
        "task_id_accuracy": [min(100.0, value + 1) for value in accuracy],
        "test_images": [100 * (b + 1) for b in range(stages)],
        "parameters": {
            "backbone": 2_700_000,
            "trained": trained[:stages],
            "stored": sum(trained[:stages]) + 9_600,
        },
        "forward_passes": {"train": 40_000, "prototypes": 11_000, "evaluation": 5_500},
        "passes_repeated": 0,
        "seconds": {"train": 61.4, "prototypes": 6.2, "evaluation": 4.9, "total": 72.5 + seed},
        "peak_memory": 612_000_000,
        "config": {"method": method, "seed": seed, "settings": {"alpha": 0.1, "epochs": 20}},
        "versions": {"ease": "0.1.0", "python": "3.11.9", "torch": "2.13.0"},
        "notes": [],
    }


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    return build_record


@pytest.fixture(scope="session")
def three_methods() -> list[RunRecord]:
    return [build_record(method) for method in METHODS]
