"""The documentation: links lead somewhere, commands and options exist, and every method has its lines."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from ease.cli import parser
from ease.methods import methods

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)\s]+)\)")
COMMANDS = parser()


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def listed(nav: object) -> list[str]:
    """All pages that a navigation names."""
    if isinstance(nav, str):
        return [nav]
    parts = nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else []
    return [page for part in parts for page in listed(part)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in LINK.findall(text):
        path, _, heading = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{name(page)} links to {link}"
        if heading:
            titles = re.findall(r"^#+ (.+)$", target.read_text(encoding="utf-8"), flags=re.M)
            slugs = [
                re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title.lower())).strip("-") for title in titles
            ]
            assert heading in slugs, f"{name(page)} links to {link}"


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    entries = listed(site["nav"])
    assert len(entries) == len(set(entries))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert set(entries) == pages | {"changelog.md", "contributing.md", "security.md"}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_benchmarks_that_a_page_names_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md" or page == DOCS / "design" / "log.md":
        return  # they tell history
    for module in re.findall(r"\bbenchmarks[./](\w+)(?:\.py)?\b", page.read_text(encoding="utf-8")):
        assert (ROOT / "benchmarks" / f"{module}.py").exists(), f"{name(page)} names benchmarks/{module}.py"


def test_the_readme_names_every_package() -> None:
    _, _, section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## What is where")
    rows = "".join(line.split("|")[1] for line in section.splitlines() if line.startswith("| `"))
    source = ROOT / "src" / "ease"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    assert set(re.findall(r"`(\w+)/`", rows)) == packages - {"presets"}


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/design/notes.md"])
def test_modules_that_a_page_names_exist(page: str) -> None:
    paths = re.findall(r"`((?:\w+/)+\w+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
    assert paths
    for path in paths:
        assert (ROOT / "src" / "ease" / path).exists() or (ROOT / path).exists(), f"{page} names {path}"


def shown_commands() -> list[tuple[str, str]]:
    """All `ease ...` lines of the shell blocks, with their page."""
    found = []
    for page in PAGES:
        for block in re.findall(r"^ *```sh\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S | re.M):
            for line in block.replace("\\\n", " ").splitlines():
                match = re.match(r"\s*(?:[A-Z_]+=\S* +)*ease ", line)
                found += [(name(page), line[match.end() :])] if match else []
    return found


def test_the_documentation_shows_commands() -> None:
    assert len(shown_commands()) > 40


@pytest.mark.parametrize(("page", "line"), shown_commands(), ids=lambda text: text.split("  ")[0])
def test_commands_and_their_options_exist(page: str, line: str) -> None:
    words = shlex.split(line.replace("...", ""), comments=True)
    command: Any = COMMANDS
    while words and words[0] in getattr(command, "commands", {}):
        command, *words = command.commands[words[0]], *words[1:]
    assert command is not COMMANDS, f"{page}: there is no such command: ease {line}"
    options = {"--help", *(option for parameter in command.params for option in parameter.opts)}
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{page}: there is no {word}: ease {line}"


@pytest.mark.parametrize("page", ["methods/index.md", "reproducibility.md"])
def test_every_method_has_a_line(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[?`([\w-]+)\*?`", text, flags=re.M) + re.findall(
        r"^\*\*Ceiling.*`(\w+)`", text, flags=re.M
    )
    ours = {key for key, kind in methods().items() if kind.__module__.startswith("ease.methods.")}
    assert set(rows) == {"adam-" if key.startswith("adam-") else key for key in ours}


def test_the_quickstart_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code, *_) = re.findall(
        r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.S
    )
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    for at, folder in enumerate(["march/cat", "march/dog", "april/cow", "april/hen"]):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for number in range(3):
            colour = (60 * at, 255 - 50 * at, 20 * number)
            Image.new("RGB", (32, 32), colour).save(tmp_path / "photos" / folder / f"{number}.png")
    for photo in ("a.jpg", "b.jpg"):
        Image.new("RGB", (32, 32), (180, 105, 10)).save(tmp_path / photo)
    exec(compile(code, "README.md", "exec"), {})
    first, second, record = capsys.readouterr().out.splitlines()[-3:]
    assert first == second
    assert first.split()[0] in ("cat", "dog", "cow", "hen")
    assert all(0 < float(word) <= 100 for word in record.split())
