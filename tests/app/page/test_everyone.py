"""For everyone: narrow and dark screens, contrast, the keyboard, screen readers, names that are code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.app.fake_server import PAGE, FakeServer
from tests.app.page.browsing import (
    ANSWERED,
    HARMFUL,
    expect,
    focused,
    go,
    teach,
)


def test_names_are_text_wherever_they_appear(fake: FakeServer, visit: Any, photo: Any) -> None:
    fake.model.learn({HARMFUL: 20}, notes=(f"'{HARMFUL}' has few images",))
    fake.model.learn({HARMFUL: 5})
    page = visit(fake.url)
    page.set_input_files("#look-files", [photo(f"{at}.png") for at in range(7)])
    expect(page.locator(".card .source", has_text="generation")).to_have_count(7)
    expect(page.locator(".bars .name", has_text=HARMFUL).first).to_be_visible()
    go(page, "Classes")
    expect(page.locator("#known .name", has_text=HARMFUL)).to_be_visible()
    page.locator("#known summary", has_text=HARMFUL).click()
    page.get_by_role("button", name="Forget <img").click()
    expect(page.get_by_role("dialog")).to_contain_text(HARMFUL)
    assert page.evaluate("window.harmed") is None
    assert page.locator("b").count() == 0


def test_a_narrow_screen_scrolls_one_way_only_and_can_be_dark(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    long = "Donaudampfschifffahrtsgesellschaftskapitänsmützenabzeichen"
    fake.model.learn({long: 7}, notes=(f"class '{long}' has few images",))
    photo(f"{long}/1.png")
    page = visit(fake.url, viewport={"width": 360, "height": 740}, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(247, 248, 250)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == "rgb(20, 23, 28)"

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") == 360

    page.set_input_files("#look-files", [photo(f"{at}{long}.png") for at in range(3)])
    expect(page.locator(".card .source", has_text="generation")).to_have_count(3)
    fits()
    teach(page, tmp_path / long)
    fits()
    go(page, "Classes")
    page.locator("#known summary", has_text=long).click()
    fits()
    page.get_by_role("button", name=f"Forget {long}").click()
    fits()


def luminance(colour: str) -> float:
    """Of `#rrggbb`, as WCAG defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_on_every_ground(scheme: int) -> None:
    block = re.findall(r":root \{(.*?)\}", (PAGE / "style.css").read_text(), re.DOTALL)[scheme]
    colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
    grounds = ("ground", "paper", "panel", "accent-soft", "bad-soft", "warm-soft")
    pairs = [(text, ground) for text in ("ink", "muted") for ground in grounds]
    pairs += [
        ("on-accent", "accent"),
        ("paper", "bad"),
        ("paper", "warm"),
        ("bad", "paper"),
        ("warm", "paper"),
    ]
    pairs += [("accent", "accent-soft"), ("good", "panel"), ("bad", "bad-soft")]
    for text, ground in pairs:
        dark, bright = sorted(luminance(colour[name]) for name in (text, ground))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, f"{text} on {ground}"
    for edge in ("edge", "accent"):  # controls and bars need 3 to 1
        dark, bright = sorted(luminance(colour[name]) for name in (edge, "paper"))
        assert (bright + 0.05) / (dark + 0.05) >= 3, f"{edge} on paper"


LIVES = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


@pytest.mark.parametrize("life", LIVES)
def test_axe_finds_nothing_to_complain_about(
    life: str, fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    """WCAG 2.2 A and AA as far as axe-core can tell, in every view with something in it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    for at in range(4):
        fake.model.wait(photo(f"w{at}.png").read_bytes())
    fake.model.name("p0004", "lamp", False)
    fake.model.groups = [{"id": 0, "photos": ["p0001", "p0002"]}]
    fake.model.looked = [True, False]
    fake.model.learn({"plum": 10})
    fake.model.drift = ["Twice as many photos show nothing it knows."]
    fake.model.days = [
        {
            "date": f"2026-11-{day:02d}",
            "images": 3,
            "unknown": 0.2,
            "confidence": 0.9,
            "classes": {"apple": 1.0},
        }
        for day in (1, 2, 3)
    ]
    photo("plum/0.png")
    photo("plum/1.png")
    fake.model.findings = [
        {
            "kind": "unlike",
            "files": ["plum/0.png"],
            "class": "plum",
            "other": None,
            "score": 1.0,
            "sentence": "Odd.",
        }
    ]
    page = visit(fake.url, reduced_motion="reduce", **LIVES[life])
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

    def sound(where: str) -> None:
        found = axe.run(page, options={"runOnly": rules, "resultTypes": ["violations"]}).response[
            "violations"
        ]
        said = [f"{where}: {each['id']}: {node['html']}" for each in found for node in each["nodes"]]
        assert said == []

    sound("nothing yet")
    page.set_input_files("#look-files", [photo(f"{name}.png") for name in ("sure", "unsure", "strange")])
    expect(page.locator(ANSWERED)).to_have_count(3)
    page.get_by_role("button", name="Why?").first.click()
    expect(page.locator(".why-panel")).to_be_visible()
    page.get_by_role("button", name="It is …", exact=True).click()
    page.get_by_role("combobox").fill("o")
    expect(page.get_by_role("option").first).to_be_visible()
    sound("answers")
    go(page, "Inbox")
    expect(page.locator("#review-photo")).to_have_js_property("naturalWidth", 32)
    sound("inbox")
    teach(page, tmp_path / "plum")
    page.locator("#start").click()
    expect(page.locator("#findings li")).to_have_count(1)
    sound("teach")
    go(page, "Classes")
    expect(page.locator("#charts svg")).to_have_count(3)
    page.locator("#technical summary").click()
    page.locator("#known summary").first.click()
    sound("classes")
    page.get_by_role("button", name="Forget plum").click()
    sound("a question")


def test_the_daily_loop_works_with_the_keyboard_alone(fake: FakeServer, visit: Any, photo: Any) -> None:
    """From choosing a photo to a correction that is learned, without the mouse."""
    page = visit(fake.url)
    mine = photo("mine.png")
    page.on("filechooser", lambda chooser: chooser.set_files(mine))

    def tab_to(text: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if text in (focused(page).inner_text() or ""):
                assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                return
        raise AssertionError(f"the Tab key never came to {text}")

    tab_to("Choose photos")
    page.keyboard.press("Enter")
    expect(page.locator(ANSWERED)).to_have_count(1)
    tab_to("Why?")
    page.keyboard.press("Enter")
    expect(page.locator(".why-words")).to_be_visible()
    expect(page.get_by_role("button", name="Why?", exact=True)).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(focused(page)).to_have_text("Wrong, it is …")
    page.keyboard.press("Enter")
    page.keyboard.type("ott")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(focused(page)).to_have_text("Undo")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    expect(focused(page)).to_have_text("Learn this photo")
    page.keyboard.press("Enter")
    expect(page.locator("#look-learn")).to_contain_text("The model answers the photo rightly now.")
