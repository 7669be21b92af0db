"""The view "Classes & history"."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.app.fake_model import FakeModel
from tests.app.fake_server import FakeServer
from tests.app.page.browsing import (
    KNOWN,
    Site,
    expect,
    names_known,
    teach,
)


def test_a_class_is_renamed_and_forgotten(site: Site, visit: Any) -> None:
    first, second = site.known[:2]
    page = visit(site.url + "#classes")
    page.locator("#known summary", has_text=first).click()
    field = page.locator("#known details[open]").get_by_label("Name")
    field.fill(second)
    field.press("Enter")
    expect(page.locator("#classes-error")).to_contain_text(second)  # taken: the server's sentence
    field.fill("pomme")
    field.press("Enter")
    expect(page.locator("#classes-note")).to_contain_text("pomme")
    page.get_by_role("button", name="Forget pomme").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("cannot be undone")
    expect(dialog.get_by_role("button", name="Keep it")).to_be_focused()
    dialog.get_by_role("button", name="Forget pomme").click()
    expect(page.locator("#classes-note")).to_contain_text("“pomme” was forgotten")
    assert names_known(page) == sorted(site.known[1:])


def test_a_new_model_is_met_with_a_first_step(visit: Any) -> None:
    with FakeServer(FakeModel()) as empty:
        page = visit(empty.url)
        expect(page.locator("#look-drop")).to_be_hidden()
        page.get_by_role("link", name="Teach the first classes").click()
        expect(page.get_by_role("heading", name="Teach", exact=True)).to_be_focused()


def test_a_model_can_be_adapted_to_its_first_classes_only(visit: Any, photo: Any, tmp_path: Path) -> None:
    photo("first/plum/1.png")
    photo("second/quince/1.png")
    with FakeServer(FakeModel()) as empty:
        page = visit(empty.url)
        teach(page, tmp_path / "first")
        page.get_by_label("Adapt the model to these images").check()
        page.get_by_role("button", name="Learn 1 new class").click()
        expect(page.locator("#outcome-title")).to_contain_text("Learned 1 new class")
        assert empty.model.tuned is True
        teach(page, tmp_path / "second")
        expect(page.get_by_label("Adapt the model to these images")).to_be_hidden()
        page.get_by_role("button", name="Learn 1 new class").click()
        expect(page.locator("#outcome-title")).to_contain_text("Learned 1 new class")
        assert empty.model.tuned is False


def test_the_token_is_asked_for_once_it_is_needed(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    fake.model.token = "sesame"
    photo("plum/1.png")
    page = visit(fake.url)
    expect(page.locator("#token")).to_be_hidden()
    teach(page, tmp_path / "plum")
    page.locator("#start").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("changing this model needs its token")
    for word in ("wrong", "sesame"):
        dialog.get_by_label("Token").fill(word)
        dialog.get_by_role("button", name="Continue").click()
    expect(page.locator("#outcome-title")).to_contain_text("Learned 1 new class")
    assert fake.seen.count("POST /check") == 3
    assert fake.seen.count("POST /learn") == 1


def test_the_history_tells_what_was_learned_and_how_well(fake: FakeServer, visit: Any) -> None:
    fake.model.learn({"plum": 10, "lamp": 5})
    fake.model.looked = [True] * 9 + [False] * 3
    page = visit(fake.url + "#classes")
    steps = page.locator("#steps > li")
    expect(steps).to_have_count(2)
    expect(steps.first).to_contain_text("Learned plum. More photos of lamp.")
    expect(steps.last).to_contain_text(
        "32 of 37 photos held back that day were recognised (between 68 and 95\u202f%)"
    )
    expect(page.locator("#corrections")).to_have_text(
        "Of 12\u00a0answers people looked at since, 9 were right (between 47 and 91\u202f%)."
    )
    shown = page.locator("#view-classes").inner_text()
    assert "generation" not in shown.lower()  # only in a fold
    assert "passes" not in shown.lower()


def test_the_history_may_arrive_before_the_classes(fake: FakeServer, visit: Any) -> None:
    page = visit(fake.url + "#classes")
    page.evaluate("""async () => {
        const [{model}, {load}] = await Promise.all([import("/assets/server.js"), import("/assets/history.js")]);
        model.now = null;
        await load();
    }""")
    expect(page.locator("#steps > li")).to_have_count(1)
    expect(page.locator("#classes-error")).to_be_empty()


def test_going_back_asks_first(fake: FakeServer, visit: Any) -> None:
    fake.model.learn({"plum": 10})
    page = visit(fake.url + "#classes")
    back = page.get_by_role("button", name="Go back to")
    back.click()
    page.get_by_role("dialog").get_by_role("button", name="Stay here").click()
    expect(back).to_be_focused()
    assert "POST /rollback" not in fake.seen
    back.click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(page.locator("#classes-note")).to_contain_text("It knows again what it knew on")
    assert names_known(page) == sorted(KNOWN)
    expect(page.get_by_role("button", name="Go back to")).to_have_text("Go forward to this")


def test_days_are_drawn_and_drift_is_announced(fake: FakeServer, visit: Any) -> None:
    day = {"images": 10, "confidence": 0.9, "classes": {"apple": 0.6, "cup": 0.4}}
    fake.model.days = [{**day, "date": f"2026-11-{at:02d}", "unknown": at / 20} for at in range(1, 11)]
    fake.model.drift = ["Twice as many photos show nothing it knows."]
    page = visit(fake.url + "#classes")
    expect(page.locator("#drift")).to_have_text("Twice as many photos show nothing it knows.")
    expect(page.locator("#charts svg")).to_have_count(3)
    unknown = page.get_by_role("img", name=re.compile("Share of photos of nothing it knows"))
    expect(unknown).to_have_attribute("aria-label", re.compile("50\u202f% on 10 Nov"))
    points = unknown.locator("polyline").get_attribute("points").split()
    heights = [float(point.split(",")[1]) for point in points]
    assert len(heights) == 10
    assert heights == sorted(heights, reverse=True)  # it grows
    page.get_by_text("The same as a table").click()
    expect(page.locator("#activity-table tbody tr")).to_have_count(10)
