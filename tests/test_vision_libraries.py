"""Importing torchvision and timm beside a CPU-only torch, and without its compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from ease import vision_libraries as cure


def run(code: str, **environment: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
    ).stdout


def test_torchvision_and_timm_work_in_a_fresh_process() -> None:
    code = """
import ease.backbone, torchvision, torch
from torchvision.transforms import v2
print(v2.Resize(8)(torch.zeros(3, 16, 16)).shape[-1], ease.vision_libraries.cure())
"""
    assert run(code).split() == ["8", "False"], "and a second cure finds nothing to do"


def test_a_torchvision_that_imports_by_itself_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    healthy = types.ModuleType("torchvision")
    monkeypatch.setitem(sys.modules, "torchvision", healthy)
    monkeypatch.setattr(cure, "_library", None)
    assert cure.cure() is False
    assert sys.modules["torchvision"] is healthy
    assert cure._library is None, "no operator was declared"


def test_another_error_of_torchvision_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("out of cheese")

    monkeypatch.setattr(cure.importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="out of cheese"):
        cure.cure()


def test_an_answer_needs_neither_torchs_compiler_nor_sympy(tmp_path: Path) -> None:
    code = f"""
import sys, numpy as np
from ease import Classifier
rng = np.random.default_rng(0)
images = [rng.integers(0, 255, (16, 16, 3), dtype=np.uint8) for _ in range(8)]
model = Classifier.create({str(tmp_path / "model")!r}, input_size=16)
model.learn({{"a": images[::2], "b": images[1::2]}})
Classifier.open({str(tmp_path / "model")!r}).predict(images[:2])
print(sorted({{"torch._dynamo", "torch._inductor", "sympy", "lightning_fabric"}} & set(sys.modules)))
"""
    assert run(code).strip() == "[]"


def test_what_must_not_be_compiled_is_still_marked_once_the_compiler_is_there(tmp_path: Path) -> None:
    code = """
import os, sys, tempfile
import ease.backbone, torch
from torchvision import tv_tensors
from torchvision.ops.roi_align import is_compile_supported
image = tv_tensors.Image(torch.zeros(3, 4, 4))
assert type(tv_tensors.wrap(torch.zeros(3, 4, 4), like=image)) is tv_tensors.Image
assert "torch._dynamo" not in sys.modules

assert is_compile_supported("cpu") in (True, False)
assert "torch._dynamo" in sys.modules
assert type(tv_tensors.wrap(torch.zeros(3, 4, 4), like=image)) is tv_tensors.Image
assert os.listdir(tempfile.gettempdir()) == [], "a folder for a cache that nothing is in"

@torch.compile(backend="eager")
def wrapped(x):
    return tv_tensors.wrap(x + 1, like=image) * 2

print(float(wrapped(torch.ones(3, 4, 4)).sum()))
"""
    assert float(run(code, TMPDIR=str(tmp_path))) == 3 * 4 * 4 * 4


def test_a_stand_in_gives_way_to_the_compiler_if_more_is_asked_of_it() -> None:
    code = """
import sys
from ease import vision_libraries
assert "torch._dynamo" not in sys.modules
with vision_libraries._compiler_later():
    from torch._dynamo import OptimizedModule
print(OptimizedModule.__module__, type(sys.modules["torch._dynamo"]).__name__)
"""
    assert run(code).split() == ["torch._dynamo.eval_frame", "module"]
