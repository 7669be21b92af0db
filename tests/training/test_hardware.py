"""Compiled trainings: the same result, and one clear line where nothing can be compiled. Who has bf16."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from ease.errors import EaseError
from ease.methods.ease import Ease, EaseSettings
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.hardware import check_can_compile, emulates_bf16

CPU = torch.device("cpu")


def test_a_compiled_training_ends_where_a_plain_one_does(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traced and differentiated as usual, but not compiled to C++, which takes a minute."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    settings = EaseSettings(epochs=2, lr=0.05, batch_size=16, rank=4, sigma=8.0, dropout=0.0)

    def learned(compiles: bool) -> tuple[Ease, int]:
        engine.compiles = compiles
        learner = Ease(engine, settings)
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        for task in stream.tasks[:2]:
            learner.learn(task)
        return learner, torch._dynamo.utils.counters["stats"]["unique_graphs"] - before

    (plain, none), (compiled, graphs) = learned(False), learned(True)
    assert none == 0
    assert graphs == 2  # full batches, and the shorter last one: not again for each task
    for ours, theirs in zip(compiled.tunings, plain.tunings, strict=True):
        expected = theirs.state_dict()
        assert all(torch.allclose(v, expected[n], atol=1e-5) for n, v in ours.state_dict().items())


def test_where_nothing_can_be_compiled_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("No working C++ compiler found\nand a page of details")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(EaseError) as caught:
        check_can_compile(CPU)
    assert "No working C++ compiler found" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "--compile" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "emulates"),
    [
        ({"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}, True),
        ({"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": False}, False),
        ({"architecture": "aarch64"}, False),
    ],
)
def test_a_processor_without_bf16_is_known(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, object], emulates: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    assert emulates_bf16(CPU) == emulates
