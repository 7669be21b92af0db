"""Importing torchvision beside a CPU-only torch."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

import ease.torchvision_cure as cure


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=120
    ).stdout


def test_torchvision_and_timm_work_in_a_fresh_process() -> None:
    code = """
import ease.backbone, torchvision, torch
from torchvision.transforms import v2
print(v2.Resize(8)(torch.zeros(3, 16, 16)).shape[-1], ease.torchvision_cure.cure())
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
