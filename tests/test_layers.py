"""Imports point downwards only; a method imports no other method."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ease

ROOT = Path(ease.__file__).parent
LEVEL = {
    "errors": 0, "vision_libraries": 0, "filesystem": 1, "documents": 1, "progress": 1, "plugins": 1, "cluster": 1,
    "streams": 2, "storage": 2, "backbone": 3, "tuning": 4, "training": 4, "heads": 5, "presets": 5, "methods": 6,
    "config": 7, "reporting": 9, "experiments": 10, "app": 11, "api": 11, "cli": 12, "__main__": 13,
    # Records are read by whatever draws them, and written by whatever runs.
    "experiments.record": 8, "experiments.metrics": 8,
}  # fmt: skip


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


def name_of(path: Path) -> str:
    """The module in a file."""
    return ".".join(("ease", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


def level(module: str) -> int:
    """How high a module is: by itself if it is named, else by its package."""
    parts = module.split(".")[1:]
    return LEVEL.get(".".join(parts[:2]), LEVEL[parts[0]])


FILES = sorted(p for p in ROOT.rglob("*.py") if p.parent != ROOT or p.stem != "__init__")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    for module in imports(path):
        if module.split(".")[1] != room:
            assert level(module) < level(name_of(path)), f"{room} must not import {module}"


def test_no_underscore_module_is_imported_from_another_package() -> None:
    for path in FILES:
        for module in imports(path):
            package, _, _ = module.rpartition(".")
            private = [part for part in module.split(".") if part.startswith("_") and part != "__main__"]
            assert not private or name_of(path).startswith(package), f"{path} imports {module}"


IDEAS = [path for path in sorted((ROOT / "methods").rglob("*.py")) if not path.stem.startswith("_")]


@pytest.mark.parametrize("path", IDEAS, ids=lambda p: str(p.relative_to(ROOT / "methods")))
def test_a_method_imports_no_other_method(path: Path) -> None:
    own = path.parent.name if path.parent.name != "methods" else path.stem
    others = {m.split(".")[2] for m in imports(path) if m.startswith("ease.methods.")}
    assert all(other.startswith("_") or other == own for other in others)


def test_no_two_public_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
