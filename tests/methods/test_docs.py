"""Every method has its page."""

from __future__ import annotations

import re
from pathlib import Path

from ease.methods import Learner, methods
from ease.methods.ease import EaseSettings

FOLDER = Path(__file__).parents[2] / "docs" / "methods"
PAGES = [page for page in FOLDER.glob("*.md") if page.name != "index.md"]


def names_in_title(page: Path) -> list[str]:
    """A page is about the methods that its title names in code font (adam.md: five), or else about its title."""
    title = page.read_text().splitlines()[0].removeprefix("# ")
    return re.findall(r"`([^`]+)`", title) or [title]


def ours() -> dict[str, type[Learner]]:
    return {name: kind for name, kind in methods().items() if kind.__module__.startswith("ease.methods.")}


def test_every_method_has_one_page_and_every_page_a_method() -> None:
    documented = [name for page in PAGES for name in names_in_title(page)]
    assert sorted(documented) == sorted(ours())


def test_every_page_says_the_same_things() -> None:
    for page in PAGES:
        text = page.read_text()
        for part in ("**Idea.**", "**Where ours differs.**", "**Settings.**", "**Cost.**"):
            assert part in text, f"{page.name} lacks {part}"


def test_the_page_of_ease_lists_every_setting_with_its_default() -> None:
    rows: dict[str, str] = {}
    _, _, table = (FOLDER / "ease.md").read_text().partition("**Settings.**")
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        names = re.findall(r"`(\w+)`", cells[0])
        if len(cells) == 3 and ", ".join(f"`{name}`" for name in names) == cells[0]:
            values = cells[1].split(", ")
            rows |= dict(
                zip(names, values if len(values) == len(names) else [cells[1]] * len(names), strict=True)
            )
    assert rows.keys() == EaseSettings.model_fields.keys()
    for name, field in EaseSettings.model_fields.items():
        default = field.default
        if isinstance(default, bool | str):
            assert rows[name] == str(default).lower(), name
        elif default is not None:
            assert float(rows[name]) == default, name
