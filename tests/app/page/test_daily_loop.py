"""A day on the page of a real server: correct, learn, go back. `examples/daily_loop.py` tells it at length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.app.page.browsing import ANSWERED, expect, go


@pytest.fixture
def digits(tmp_path: Path) -> dict[str, Path]:
    """Photos that the model has not learned from: what each shows is the beginning of its name."""
    from ease.streams.datasets import load_dataset

    data, found = load_dataset("digits").test, {}
    for label in range(6):
        images = data.of_classes([label]).limit(6)
        for at in range(len(images)):
            path = tmp_path / f"digit {label} - {at}.png"
            Image.fromarray(images.image(at).permute(1, 2, 0).numpy()).save(path)
            found[path.name] = path
    return found


def test_a_corrected_answer_is_learned_from_the_inbox_and_rolled_back(
    real: str, visit: Any, digits: dict[str, Path]
) -> None:
    page = visit(real)
    page.set_input_files("#look-files", list(digits.values()))
    expect(page.locator(ANSWERED)).to_have_count(len(digits))
    files = page.locator(".card figcaption").all_text_contents()
    heads = page.locator(".card .bars:not(details .bars) li:first-child .name").all_text_contents()
    file, answer = next(pair for pair in zip(files, heads, strict=True) if not pair[0].startswith(pair[1]))
    shown = file.partition(" - ")[0]
    kept = page.evaluate("fetch('inbox').then(reply => reply.json())")["photos"]
    assert kept  # the model was unsure of some, and the number beside "Inbox" says so at once
    expect(page.locator("#badge-number")).to_have_text(str(len(kept)))

    card = page.locator(".card", has_text=file)
    card.get_by_role("button", name="it is …").click()
    card.get_by_role("combobox", name="What is it?").fill(shown)
    card.get_by_role("button", name="Save").click()
    expect(card.locator(".noted")).to_have_text(f"Noted: this is {shown}.")

    go(page, "Inbox")
    page.get_by_role("button", name="Learn this photo").click()
    expect(page.locator("#inbox-learn")).to_contain_text("rightly now")
    go(page, "Look")
    expect(card.locator("h4")).to_have_text(shown)
    expect(card.locator(".verdict")).to_contain_text("A person said so")

    go(page, "Classes")
    expect(page.locator("#steps > li")).to_have_count(2)
    expect(page.locator("#steps > li").first).to_contain_text(f"More photos of {shown}.")
    page.get_by_role("button", name="Go back to ").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(page.locator("#classes-note")).to_contain_text("It knows again what it knew")
    go(page, "Look")
    page.get_by_role("button", name="Clear").click()
    page.set_input_files("#look-files", digits[file])
    expect(page.locator(ANSWERED)).to_have_count(1)
    expect(page.locator(".card .bars .name").first).to_have_text(answer)
