"""The second half of `daily_loop.py`: the same day in Chromium, on the page of a real `ease serve`."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

if TYPE_CHECKING:
    from daily_loop import Story

CORRECTED, NAMED = 2, 6
LARGEST = 150_000  # bytes of a picture
DESKTOP = {"width": 1180, "height": 820}
PHONE = {"width": 390, "height": 844}


@contextmanager
def serving(story: Story) -> Iterator[str]:
    """`ease serve` as a process of its own; gives its address."""
    words = ["serve", "--model", "served", "--inbox", "--collect-unsure", "20", "--port", "0"]
    print(f"$ ease {' '.join(words)}")
    command = [sys.executable, "-m", "ease", *words]
    with subprocess.Popen(
        command, cwd=story.place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            print(line.rstrip())
            yield re.findall(r"http://\S+", line)[0]
        finally:
            server.terminate()


class Camera:
    """Takes pictures of the page, if a folder for them was given."""

    def __init__(self, page: Any, folder: Path | None) -> None:
        self.page, self.folder = page, folder

    def take(self, name: str, *, top: str | None = None, dark: bool = False, phone: bool = False) -> None:
        if self.folder is None:
            return
        self.page.set_viewport_size(PHONE if phone else DESKTOP)
        self.page.emulate_media(color_scheme="dark" if dark else "light")
        self.page.mouse.move(2, 2)
        self.page.wait_for_load_state("networkidle")
        self.page.evaluate("top => scrollTo(0, top ? document.querySelector(top).offsetTop - 16 : 0)", top)
        content = Image.open(io.BytesIO(self.page.screenshot(animations="disabled"))).convert("RGB")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"story-{name}.png"
        content.save(path, optimize=True)
        if path.stat().st_size > LARGEST:
            content.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
        self.page.set_viewport_size(DESKTOP)
        self.page.emulate_media(color_scheme="light")


def in_the_browser(story: Story, pictures: Path | None) -> None:
    """The story on the page: correct, name with keys, learn, go back."""
    from playwright.sync_api import sync_playwright

    story.ease("learn", "learn", "--model", "served", "--thumbnails")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with serving(story) as url, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(locale="en-GB", viewport=DESKTOP).new_page()
        page.set_default_timeout(60_000)
        complaints: list[str] = []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(url)
        tell(story, page, Camera(page, pictures))
        browser.close()
        story.promise(not complaints, f"the page reports errors: {complaints}")


def tell(story: Story, page: Any, camera: Camera) -> None:
    """What a person does on the page."""
    from playwright.sync_api import expect

    expect.set_options(timeout=60_000)
    expect(page.locator("#state")).to_contain_text("class")  # the page knows its model
    photos = sorted((story.place / "new").rglob("*.png"))
    page.set_input_files("#look-files", photos)
    cards = page.locator(".card")
    expect(page.locator(".card .source")).to_have_count(len(photos))
    heads = {
        card["file"]: card["head"]
        for card in cards.evaluate_all(
            """all => all.map(card => ({file: card.querySelector("figcaption").textContent,
               head: card.querySelector(".bars .name").textContent}))"""
        )
    }
    wrong = [file for file in sorted(heads) if heads[file] != story.truth[file]]
    print(f"  the page answers {len(heads)} photos; {len(wrong)} answers are wrong")

    waiting = page.evaluate("fetch('inbox').then(reply => reply.json())")["photos"]
    unsure = [each["file"] for each in waiting]
    told = [file for file in wrong if file not in unsure][:CORRECTED]
    story.promise(
        len(told) == CORRECTED and len(unsure) >= NAMED, "too few mistakes and doubts for this story"
    )
    expect(page.locator("#badge-number")).to_have_text(str(len(unsure)))
    page.get_by_role("button", name="Clear").click()
    page.set_input_files("#look-files", [story.place / "new" / story.truth[file] / file for file in told])
    for at, file in enumerate(told):
        card = cards.filter(has_text=file)
        card.get_by_role("button", name=re.compile("it is …", re.IGNORECASE)).click()
        field = card.get_by_role("combobox", name="What is it?")
        field.press_sequentially(story.truth[file])
        if at == 0:
            camera.take("correct")
        field.press("Enter")
        expect(card.locator(".noted")).to_have_text(f"Noted: this is {story.truth[file]}.")
        print(f"  {file}: “{heads[file]}” was wrong, it is {story.truth[file]}")

    page.get_by_role("navigation").get_by_role("link", name="Inbox").click()
    page.locator("#review-photo[src]").wait_for()
    named: list[str] = []
    for _ in range(NAMED):
        file = page.locator("#review-file").text_content().rpartition(", ")[0]
        names = page.locator("#review-choices .name").all_text_contents()
        key = str(names.index(story.truth[file]) + 1)
        page.keyboard.press(key)
        expect(page.locator("#review-file")).not_to_contain_text(file)
        named.append(file)
        print(f"  {file}: key {key} names it {story.truth[file]}")
        if len(named) == 3:
            camera.take("inbox")
            camera.take("inbox-phone-dark", top="#review", dark=True, phone=True)
    total = CORRECTED + NAMED
    page.get_by_role("button", name=f"Learn these {total} photos").click()
    expect(page.locator("#inbox-learn")).to_contain_text("rightly now")
    print(f"  {page.locator('#inbox-learn').text_content().strip()}")
    camera.take("learned")

    page.get_by_role("navigation").get_by_role("link", name="Look").click()
    for file in told:
        card = cards.filter(has_text=file)
        expect(card.locator("h4")).to_have_text(story.truth[file])
        expect(card.locator(".verdict")).to_contain_text("A person said so")
    camera.take("answers-phone", top=".card", phone=True)

    page.get_by_role("navigation").get_by_role("link", name="Classes").click()
    steps = page.locator("#steps > li")
    expect(steps).to_have_count(2)
    camera.take("history")
    camera.take("history-dark", dark=True)
    for line in steps.all_inner_texts():
        print("  history: " + " | ".join(line.split("\n")))
    page.get_by_role("button", name=re.compile("^Go back to ")).click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    expect(page.locator("#classes-note")).to_contain_text("It knows again what it knew")
    print(f"  {page.locator('#classes-note').text_content()}")
    page.get_by_role("navigation").get_by_role("link", name="Look").click()
    page.get_by_role("button", name="Clear").click()
    page.set_input_files("#look-files", [story.place / "new" / story.truth[file] / file for file in told])
    for file in told:
        card = cards.filter(has_text=file)
        expect(card.locator(".bars .name").first).to_have_text(heads[file])
    print("  the corrected photos are answered as before\n")
