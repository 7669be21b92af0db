"""The Dockerfile and compose.yaml, as far as they can be checked without a container engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
TOKEN = "correct-horse-battery"


def instructions() -> list[tuple[str, str]]:
    """Keyword and the rest of each instruction, with continued lines joined and comments left out."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", " ")
    return [
        (word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines.splitlines() if line)
    ]


def of(keyword: str) -> list[str]:
    return [rest for word, rest in instructions() if word == keyword]


def copied() -> list[str]:
    """What is copied from this repository into the image."""
    return [source for rest in of("COPY") if "--from" not in rest for source in rest.split()[:-1]]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nothing but what the Dockerfile copies."""
    folder = tmp_path_factory.mktemp("build")
    for source in copied():
        path = ROOT / source
        if path.is_dir():
            shutil.copytree(path, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / source)
    return folder


def test_all_that_is_copied_exists_and_is_not_ignored() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied()
    assert set(copied()) == allowed
    for source in copied():
        assert (ROOT / source).exists(), source


def test_the_package_builds_from_what_is_copied(context: Path) -> None:
    """The last pip line, without its dependencies and without a download."""
    (line,) = [rest for rest in of("RUN") if ".[serve]" in rest]
    assert line.split()[1] == "install"
    words = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*words, "--ignore-installed", ".[serve]"], cwd=context, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "Would install ease-cil" in done.stdout


def test_the_torch_of_the_image_is_in_the_range_of_the_package() -> None:
    (line,) = [rest for rest in of("RUN") if "torchvision" in rest]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for requirement in re.findall(r'"(torch[^"]*)"', line):
        assert f'"{requirement}"' in project


def test_the_container_is_not_root_and_keeps_its_model() -> None:
    assert of("USER") == ["10001"]
    assert of("VOLUME") == ["/models"]
    words = json.loads(of("CMD")[-1])
    assert Path(words[words.index("--model") + 1]).parent == Path("/models")
    service = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]["ease"]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["environment"]["EASE_TOKEN"].startswith("${EASE_TOKEN:?")
    assert service["ports"] == ["127.0.0.1:8000:8000"]  # not the whole network
    assert any(volume.endswith(":/models") for volume in service["volumes"])


@pytest.fixture(scope="module")
def server(
    context: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The entry point with its arguments and environment, from the copied sources, in a folder of its own."""
    models = tmp_path_factory.mktemp("models")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = _start(context, models, port, {"EASE_TOKEN": TOKEN})
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(20)


def _start(context: Path, models: Path, port: int, more: dict[str, str]) -> subprocess.Popen[bytes]:
    words: list[str] = json.loads(of("ENTRYPOINT")[0]) + json.loads(of("CMD")[-1])
    assert words[0] == "ease"
    code = "from ease.cli import main; main()"
    own = [word.replace("/models/", f"{models}/").replace("8000", str(port)) for word in words[1:]]
    environment = {key: value for key, value in os.environ.items() if key != "EASE_TOKEN"}
    environment |= {"PYTHONPATH": str(context / "src"), "HOME": "/tmp", **more}
    return subprocess.Popen(
        [sys.executable, "-c", code, *own], cwd=models, env=environment, stderr=subprocess.PIPE
    )


def health(port: int) -> int:
    """The exit code of the health check."""
    (rest,) = of("HEALTHCHECK")
    words: list[Any] = json.loads(rest[rest.index("[") :])
    assert words[0] == "python"
    return subprocess.run(
        [sys.executable, *(word.replace("8000", str(port)) for word in words[1:])], capture_output=True
    ).returncode


def test_the_health_check_passes_on_a_server_that_runs_and_fails_without_one(server: Any) -> None:
    process, port = server
    for _ in range(240):
        if health(port) == 0:
            break
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.5)
    assert health(port) == 0
    assert health(1) != 0


def test_without_a_token_the_server_refuses_to_start(context: Path, tmp_path: Path) -> None:
    process = _start(context, tmp_path, 0, {})
    _, said = process.communicate(timeout=120)
    assert process.returncode == 2
    assert b"give a token" in said
