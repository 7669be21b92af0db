"""A day on the page of a real server: correct, learn, go back. `examples/daily_loop.py` tells it at length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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


def test_a_large_photo_that_was_corrected_is_known_when_it_is_shown_again(
    real: str, visit: Any, tmp_path: Path
) -> None:
    """The page sends a smaller copy of it, and the same one each time."""
    large = tmp_path / "large.png"
    pixels = np.random.default_rng(0).integers(0, 256, (900, 1000, 3), np.uint8)
    Image.fromarray(pixels).save(large)
    assert large.stat().st_size > 2_000_000
    page = visit(real)
    with page.expect_request("**/predict*") as sent:
        page.set_input_files("#look-files", large)
    expect(page.locator(ANSWERED)).to_have_count(1)
    assert int(sent.value.headers.get("content-length", len(sent.value.post_data_buffer or b""))) < 2_000_000
    card = page.locator(".card").first
    card.get_by_role("button", name="it is …").click()
    card.get_by_role("combobox", name="What is it?").fill("digit 5")
    card.get_by_role("button", name="Save").click()
    expect(card.locator(".noted")).to_have_text("Noted: this is digit 5.")

    again = visit(real)  # as another day: nothing of the first visit is left in the browser
    again.set_input_files("#look-files", large)
    expect(again.locator(".card h4")).to_have_text("digit 5")
    expect(again.locator(".card .verdict")).to_contain_text("A person said so")
