"""Exactly minimal work: how many passes each method makes, as docs/how-to/performance.md says."""

from __future__ import annotations

from typing import Any

import pytest

from ease.experiments.predictor import Predictor
from ease.methods import find_method, methods
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.features import FeatureStore
from ease.training.memory import Memory

B, N, M, E = 3, 24, 16, 2
"""Tasks, training and test images per task, epochs."""
TRIANGLE = B * (B + 1) // 2

Passes = tuple[int | None, int | None, int]
"""Of training, of prototypes, of evaluation; None where exemplars come on top."""

FIRST_SESSION: Passes = (E * N, 2 * N * B, 2 * M * B)
FINE_TUNED: Passes = (E * N * B, 0, M * TRIANGLE)
PROMPTED: Passes = (E * N * B, 0, 2 * M * TRIANGLE)
EXPECTED: dict[str, Passes] = {
    "ease": (E * N * B, N * TRIANGLE, M * B**2),
    "ease ptm": (E * N * B, N * TRIANGLE + N * B, M * B**2 + M * B),
    "upper-bound": (E * N * B, None, M * B**2),
    **dict.fromkeys(("simplecil", "fecam", "layup", "strata"), (0, N * B, M * B)),
    **dict.fromkeys(("layup first", "strata first"), (E * N, N * B, M * B)),
    "ranpac": (E * N, N * B, M * B),
    **{f"adam-{kind}": FIRST_SESSION for kind in ("adapter", "finetune", "ssf", "vpt-deep", "vpt-shallow")},
    **dict.fromkeys(("finetune", "finetune-adapter", "lwf"), FINE_TUNED),
    "sdc": (E * N * B, N * (2 * B - 1), M * TRIANGLE),
    **dict.fromkeys(("slca", "slca text"), (E * N * B, N * B, M * TRIANGLE)),
    # Later tasks look at the new images before, after, and for their Gaussians.
    **dict.fromkeys(("ssiat", "ssiat text"), (E * N * B, N + 3 * N * (B - 1), M * TRIANGLE)),
    "mos": (E * N * B, N * (2 * B - 2), M * B * (B - 1)),
    "mos text": (E * N * B, N * (2 * B - 1), M * B**2),
    "tuna": (E * N * B, N * B, M * B**2),
    "tuna text": (E * N * B, N * B, M * B**2 + M * (TRIANGLE - 1)),
    **dict.fromkeys(("l2p", "dualprompt", "coda-prompt", "dap"), PROMPTED),
    # After the first task, the offline copy is the online tuning.
    "lae": (E * N * B, 0, 2 * M * TRIANGLE - M),
    "joint": (E * N * TRIANGLE, 0, M * TRIANGLE),
    **dict.fromkeys(("icarl", "foster"), (None, None, M * TRIANGLE)),
    **dict.fromkeys(("der", "memo"), (None, N * TRIANGLE, M * B**2)),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_passes_are_those_of_the_formulas(case: str, engine: Engine, stream: Stream) -> None:
    name, *extras = case.split()
    method = find_method(name)
    wanted: dict[str, Any] = {
        "epochs": E,
        "later_epochs": E,
        "lr": 0.01,
        "batch_size": 12,
        "rank": 4,
        "projection": 64,
        "min_steps": 0,
    }
    wanted |= {"ptm": "ptm" in extras}
    wanted |= {"adapt": "first"} if "first" in extras else {}
    wanted |= {"variant": "text"} if "text" in extras else {}
    settings = {key: value for key, value in wanted.items() if key in method.Settings.model_fields}
    learner = method(engine, method.Settings.model_validate(settings))
    predictor = Predictor(learner, FeatureStore())
    memory = Memory(3, seed=engine.seed) if learner.kind == "exemplar-based" else None
    tests = [task.test for task in stream.tasks]
    for task in stream.tasks:
        assert (len(task.train), len(task.test)) == (N, M)
        learner.learn(task, memory)
        predictor.logits(tests[: task.index + 1])
    trained, prototypes, evaluated = EXPECTED[case]
    made = engine.ledger.passes
    assert trained is None or made["train"] == trained
    assert prototypes is None or made["prototypes"] == prototypes
    assert predictor.computed == evaluated


def test_every_method_has_its_formula() -> None:
    assert {case.partition(" ")[0] for case in EXPECTED} == {*methods()}
