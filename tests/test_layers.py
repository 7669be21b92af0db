"""Imports point downwards only; a method imports no other method."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ease

ROOT = Path(ease.__file__).parent
LEVEL = {
    "errors": 0, "torchvision_cure": 0, "filesystem": 1, "documents": 1, "streams": 2, "backbone": 2, "tuning": 3,
    "engine": 3, "heads": 3, "presets": 3, "methods": 4, "config": 5, "studies": 6, "app": 6, "cli": 7, "__main__": 8,
}  # fmt: skip
BESIDE = {("engine", "streams"), ("tuning", "backbone"), ("engine", "backbone")}
PLUMBING = {
    "base",
    "registry",
    "model",
    "sequential",
    "stored_scatter",
    "expanding",
    "compaction",
    "ease_compaction",
    "first_session",
    "prompting",
    "tuned_head",
    "__init__",
}


def imports(path: Path) -> list[str]:
    """Modules of ours that a file imports when it runs; type-checking imports do not count."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    names = []
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ease."):
            names.append(node.module)
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names if alias.name.startswith("ease.")]
    return names


FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for module in imports(path):
        other = module.split(".")[1]
        if other == room:
            continue
        assert LEVEL[other] < LEVEL[room], f"{room} must not import {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "methods").glob("*.py")), ids=lambda p: p.stem)
def test_a_method_imports_no_other_method(path: Path) -> None:
    if path.stem in PLUMBING:
        return
    others = {m.split(".")[2] for m in imports(path) if m.startswith("ease.methods.")}
    assert others <= PLUMBING
