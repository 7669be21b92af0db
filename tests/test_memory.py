"""A machine with little memory: what people do must fit into 3 GB of address space."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_cli import photos

# One process for all of it: importing torch takes longer than the commands do.
STORY = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 * 2**30, 3 * 2**30))
from ease.cli import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["ease", *words]
    try:
        main()
    except SystemExit as end:
        if end.code:
            sys.exit(f"{words[0]} ended with {end.code}")
"""


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems do not bind the address space"
)
def test_every_command_works_within_three_gigabytes(tmp_path: Path) -> None:
    model, run = str(tmp_path / "model"), str(tmp_path / "run")
    images = str(photos(tmp_path / "photos", {"cat": 6, "dog": 6}))
    digits = ["--dataset", "digits", "--protocol", "B0 Inc5", "--limit-per-class", "4", "--input-size", "16"]
    story = [
        ["learn", images, "--model", model, "--input-size", "16"],
        ["learn", images, "--model", model, "--extend"],
        ["predict", images, "--model", model],
        ["info", model],
        ["run", *digits, "--method", "simplecil", "--out", run],
        ["eval", "--model", run, *digits[:2], "--limit-per-class", "4"],
        ["pack", model, "--out", f"{model}.ease"],
        ["unpack", f"{model}.ease", str(tmp_path / "unpacked")],
    ]
    if importlib.util.find_spec("onnxscript"):
        story.append(["export", model, "--onnx", f"{model}.onnx"])
    words = [sys.executable, "-c", STORY, json.dumps(story)]
    result = subprocess.run(words, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-2000:]
