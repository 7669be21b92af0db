"""The view "Inbox": naming what waits, mostly with the keyboard."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.fake_server import FakeServer
from tests.app.page.browsing import KNOWN, expect, go


@pytest.fixture
def full(fake: FakeServer, photo: Callable[[str], Path]) -> FakeServer:
    """Ten photos wait, without names."""
    for at in range(10):
        fake.model.wait(photo(f"waiting-{at}.png").read_bytes())
    return fake


def names(server: FakeServer) -> list[str | None]:
    return [photo["name"] for photo in server.model.photos]


def test_ten_photos_are_named_with_ten_keys_and_learned(full: FakeServer, visit: Any) -> None:
    page = visit(full.url + "#inbox")
    expect(page.locator("#badge-number")).to_have_text("10")
    for at in range(10):
        expect(page.locator("#review-title")).to_have_text(f"Photo {at + 1} of 10")
        expect(page.locator("#review-photo")).to_have_js_property("naturalWidth", 32)
        page.keyboard.press("1")
        expect(page.locator(f"#film button:nth-child({at + 1}) .given")).to_have_text(re.compile("."))
    assert names(full) == [photo["suggestions"][0]["name"] for photo in full.model.photos]
    page.get_by_role("button", name="Learn these 10 photos").click()
    expect(page.locator("#inbox-learn")).to_contain_text("The model answers all 10 rightly now.")
    expect(page.locator("#review")).to_be_hidden()
    expect(page.locator("#inbox-lead")).to_contain_text("Nothing waits here")
    assert full.model.photos == []


def test_keys_skip_discard_and_undo(full: FakeServer, visit: Any) -> None:
    page = visit(full.url + "#inbox")
    title = page.locator("#review-title")
    expect(title).to_have_text("Photo 1 of 10")
    page.keyboard.press("s")
    expect(title).to_have_text("Photo 2 of 10")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(title).to_have_text("Photo 10 of 10")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("d")
    expect(title).to_have_text("Photo 1 of 9")
    expect(page.locator("#badge-number")).to_have_text("9")
    assert len(full.model.photos) == 10  # deleted only when the view is left: it can still be undone
    page.keyboard.press("u")
    expect(title).to_have_text("Photo 1 of 10")
    page.keyboard.press("2")
    expect(title).to_have_text("Photo 2 of 10")
    page.keyboard.press("u")
    expect(title).to_have_text("Photo 1 of 10")
    assert names(full) == [None] * 10
    page.keyboard.press("d")
    with page.expect_response(lambda answer: answer.request.method == "DELETE"):
        go(page, "Look")
    expect(page.locator("#badge-number")).to_have_text("9")
    assert full.model.photos[0]["id"] == "p0002"


def test_a_new_name_is_typed_and_offered_from_then_on(full: FakeServer, visit: Any) -> None:
    page = visit(full.url + "#inbox")
    expect(page.locator("#review-title")).to_have_text("Photo 1 of 10")
    page.keyboard.press("n")
    field = page.get_by_role("combobox", name="Another name")
    expect(field).to_be_focused()
    page.keyboard.type("sundew")  # the letters s, u, n, d do nothing else here
    page.keyboard.press("Enter")
    expect(page.locator("#review-title")).to_have_text("Photo 2 of 10")
    expect(page.locator("#review-choices .name", has_text="sundew")).to_be_visible()
    page.keyboard.press("4")  # after the three suggestions
    expect(page.locator("#review-title")).to_have_text("Photo 3 of 10")
    assert names(full)[:3] == ["sundew", "sundew", None]
    page.keyboard.press("n")
    page.keyboard.press("Escape")
    page.get_by_label("Keys:").uncheck()
    page.locator("#review-title").focus()
    page.keyboard.press("d")
    expect(page.locator("#review-title")).to_have_text("Photo 3 of 10")  # keys are switched off


def test_look_alikes_are_named_together(full: FakeServer, visit: Any) -> None:
    full.model.groups = [{"id": 0, "photos": ["p0003", "p0005", "p0008"]}]
    page = visit(full.url + "#inbox")
    expect(page.locator("#groups")).to_contain_text("These 3 photos look alike")
    field = page.get_by_role("combobox", name="Name them together")
    field.fill("sundew")
    page.get_by_role("button", name="Name all 3").click()
    expect(page.locator("#groups")).to_be_hidden()
    expect(page.get_by_role("button", name="Learn these 3 photos")).to_be_visible()
    assert [at for at, name in enumerate(names(full)) if name == "sundew"] == [2, 4, 7]


def test_what_cannot_be_learned_says_why_and_stays(full: FakeServer, visit: Any) -> None:
    full.model.name("p0001", "fail", False)
    page = visit(full.url + "#inbox")
    page.get_by_role("button", name="Learn this photo").click()
    expect(
        page.locator("#inbox-error, #inbox-learn").filter(has_text="no room left on the disk")
    ).to_have_count(1)
    assert len(full.model.photos) == 10


def test_the_inbox_asks_for_the_token_only_when_it_is_opened(full: FakeServer, visit: Any) -> None:
    full.model.token = "sesame"
    page = visit(full.url)
    expect(page.locator("#token")).to_be_hidden()
    go(page, "Inbox")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Token").fill("sesame")
    dialog.get_by_role("button", name="Continue").click()
    expect(page.locator("#review-title")).to_have_text("Photo 1 of 10")
    expect(page.locator("#review-photo")).to_have_js_property("naturalWidth", 32)  # fetched with the token


def test_the_page_lives_at_any_address(full: FakeServer, visit: Any) -> None:
    from tests.app.fake_model import FakeModel

    with FakeServer(FakeModel(KNOWN), prefix="/m/flowers") as there:
        there.model.wait(full.model.pictures["p0001"][0])
        page = visit(there.url + "#inbox")
        expect(page.locator("#review-photo")).to_have_js_property("naturalWidth", 32)
        expect(page.locator("#review-title")).to_contain_text("Photo 1 of 1")
        page.keyboard.press("1")
        page.get_by_role("button", name="Learn this photo").click()
        expect(page.locator("#inbox-learn")).to_contain_text("rightly now")
        assert all(not line.split()[1].startswith("/m/") for line in there.seen)
