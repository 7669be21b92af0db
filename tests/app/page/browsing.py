"""What the tests of the page share: waiting in the browser, and the steps of a person."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = playwright.expect
expect.set_options(timeout=20_000)  # a busy machine is slow, not wrong
Page = Any

KNOWN = {"apple": 40, "bicycle": 38, "cup": 25, "lamp": 31, "otter": 22, "rocket": 30}
HARMFUL = '<img src=x onerror="window.harmed=1"><b>bold'
ANSWERED = ".card .source"


@dataclass(frozen=True)
class Site:
    """Where the page is, and which classes its model knows (five at least)."""

    url: str
    known: tuple[str, ...]


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()


def names_known(page: Page) -> list[str]:
    names: list[str] = page.locator("#known .name").all_text_contents()
    return sorted(names)


def teach(page: Page, folder: Path) -> None:
    go(page, "Teach")
    page.set_input_files("#teach-folders", folder)


def focused(page: Page) -> Any:
    return page.locator(":focus")
