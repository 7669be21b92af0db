"""The wheel holds all that is needed to run outside the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    words = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    built = subprocess.run(words, capture_output=True, text=True, timeout=180)
    assert built.returncode == 0, built.stdout + built.stderr
    return next(folder.glob("*.whl"))


def test_it_carries_weights_presets_types_and_templates(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("weights/ease-vit.safetensors", "weights/ease-vit.md", "presets/released.yaml", "py.typed"):
        assert f"ease/{part}" in names
    assert "ease/reporting/report.html" in names
    for part in ("index.html", "app.js", "style.css", "favicon.svg"):
        assert f"ease/app/page/{part}" in names
    assert not [n for n in names if n.startswith(("tests", "docs")) or "__pycache__" in n]


def test_it_runs_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import ease, sys; assert 'site' in ease.__file__, ease.__file__; from ease.cli import main; main()"
    )
    words = [
        "run",
        "--dataset",
        "digits",
        "--protocol",
        "B0 Inc5",
        "--limit-per-class",
        "6",
        "--input-size",
        "16",
    ]
    result = subprocess.run(
        [sys.executable, "-c", code, *words, "--method", "simplecil", "--out", str(tmp_path / "out")],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "out" / "record.json").exists()
