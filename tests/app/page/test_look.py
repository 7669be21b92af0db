"""The view "Look": answers, corrections and why.

Scenarios that take `site` hold for any server whose model knows the classes `site.known`, and are run against a real
one too; those that take `fake` need the levers of the stand-in.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.app.fake_server import FakeServer
from tests.app.page.browsing import (
    ANSWERED,
    KNOWN,
    Site,
    expect,
    go,
)


def test_a_photo_gets_five_bars_and_a_word_on_the_unknown(site: Site, visit: Any, photo: Any) -> None:
    page = visit(site.url)
    page.set_input_files("#look-files", photo("mine.png"))
    card = page.locator(".card")
    expect(card.locator(".source")).to_contain_text("Answered by generation")
    shares = card.locator(".bars .share").all_text_contents()
    assert len(shares) == 5
    assert all(re.fullmatch(r"[<>]?\s?\d+\s%", share) for share in shares)
    assert set(card.locator(".bars .name").all_text_contents()) <= set(site.known)
    expect(card.locator(".verdict")).to_contain_text(re.compile("sure|none of"))
    expect(card.get_by_role("img", name="mine.png")).to_be_visible()
    expect(page.locator("#status")).to_contain_text("mine.png: ")  # for a screen reader
    page.get_by_role("button", name="Clear").click()
    expect(card).to_have_count(0)


def test_the_keyboard_alone_is_enough(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    mine = photo("mine.png")
    page.on(
        "filechooser", lambda chooser: chooser.set_files(mine)
    )  # before the keys: it takes a moment to be heard
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to content")
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Choose photos")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".card .source")).to_contain_text("generation")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Clear")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(0)


def test_what_is_no_image_gets_the_servers_sentence_and_the_others_their_answer(
    site: Site, visit: Any, photo: Any, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(b"this is text")
    (tmp_path / "letter.txt").write_bytes(b"so is this")
    page = visit(site.url)
    page.set_input_files("#look-files", [tmp_path / "broken.png", photo("mine.png"), tmp_path / "letter.txt"])
    expect(page.locator(".card .notice")).to_contain_text("broken.png")
    expect(page.locator(".card .source", has_text="generation")).to_have_count(1)
    expect(page.locator("#look-error")).to_contain_text("letter.txt")


def test_a_stranger_is_called_one_and_doubt_is_admitted(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("strange.png"))
    expect(page.locator(".card h4")).to_have_text("Nothing I know")
    expect(page.locator(".card .verdict")).to_contain_text(re.compile(r"none of the 6\sclasses"))
    expect(page.locator(ANSWERED)).to_contain_text(re.compile(r"83\s%"))  # in the fold
    fake.model.calibrated = False
    page.set_input_files("#look-files", photo("mine.png"))
    expect(page.locator(".card .verdict").first).to_contain_text("I cannot tell how sure I am")


def test_what_is_dropped_or_pasted_arrives_where_it_should(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    page = visit(fake.url)
    give = """([kind, field, bytes]) => {
        const data = new DataTransfer();
        data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, {type: "image/png"}));
        document.body.dispatchEvent(new (kind === "drop" ? DragEvent : ClipboardEvent)(
            kind, {[field]: data, bubbles: true, cancelable: true}));
    }"""
    content = list(photo("mine.png").read_bytes())
    page.evaluate(give, ["drop", "dataTransfer", content])
    expect(page.locator(".card figcaption")).to_have_text("drop.png")
    page.evaluate(give, ["paste", "clipboardData", content])
    expect(page.locator(".card figcaption")).to_have_text(["paste.png", "drop.png"])
    expect(page.locator(".card .source", has_text="generation")).to_have_count(2)
    go(page, "Teach")
    photo("plum/a/1.png")  # a folder with a folder in it, as a file manager hands it over
    devices = page.context.new_cdp_session(page)
    carried = {"items": [], "files": [str(tmp_path / "plum")], "dragOperationsMask": 1}
    for step in ("dragEnter", "dragOver", "drop"):
        devices.send("Input.dispatchDragEvent", {"type": step, "x": 300, "y": 300, "data": carried})
    expect(page.get_by_label("Name of the class")).to_have_value("a")


def test_the_boldness_of_an_answer_follows_its_confidence(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files(
        "#look-files", [photo(f"{name}.png") for name in ("sure", "mine", "unsure", "strange")]
    )
    expect(page.locator(ANSWERED)).to_have_count(4)
    card = {name: page.locator(".card", has_text=f"{name}.png") for name in ("mine", "unsure", "strange")}
    sure = page.locator(".card", has=page.get_by_role("img", name="Photo sure.png"))
    expect(sure.locator("h4")).to_have_text(re.compile(f"^({'|'.join(KNOWN)})$"))
    expect(card["mine"].locator("h4")).to_have_text(re.compile(r"^Probably \w+$"))
    expect(card["unsure"].locator("h4")).to_have_text(re.compile(r"^Maybe \w+ or \w+$"))
    expect(card["strange"].locator("h4")).to_have_text("Nothing I know")
    weights = [
        int(each.locator("h4").evaluate("each => getComputedStyle(each).fontWeight"))
        for each in (sure, card["mine"], card["unsure"])
    ]
    assert weights == sorted(set(weights), reverse=True)
    expect(card["strange"].get_by_role("button", name="Right")).to_have_count(0)
    expect(card["strange"].get_by_role("button", name="It is …")).to_be_visible()


def test_a_class_with_a_picture_shows_it_in_its_answers(fake: FakeServer, visit: Any, photo: Any) -> None:
    fake.model.thumbnails = {entry["id"]: photo("small.png").read_bytes() for entry in fake.model.classes}
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    picture = page.locator(".card .answer img.class-picture")
    expect(picture).to_have_count(1)
    expect(picture).to_have_js_property("naturalWidth", 32)


def test_a_wrong_answer_is_corrected_learned_and_right_from_then_on(
    fake: FakeServer, visit: Any, photo: Any
) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    page.get_by_role("button", name="Wrong, it is …").click()
    field = page.get_by_role("combobox", name="What is it?")
    expect(field).to_be_focused()
    field.press_sequentially("o")
    options = page.get_by_role("option")
    expect(options).to_have_text(["otter", "rocket"])  # those that start with it come first
    field.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    assert field.get_attribute("aria-activedescendant") == options.first.get_attribute("id")
    field.press("Enter")
    expect(page.locator(".card .noted")).to_have_text("Noted: this is otter.")
    expect(page.locator("#look-learn")).to_contain_text(re.compile(r"1\sphoto waits to be learned: otter"))
    expect(page.locator("#badge-number")).to_have_text("1")
    page.get_by_role("button", name="Learn this photo").click()
    expect(page.locator("#look-learn")).to_contain_text("The model answers the photo rightly now.")
    expect(page.locator(".card h4")).to_have_text("otter")
    expect(page.locator(".card .verdict")).to_contain_text("A person said so")
    expect(page.locator("#badge")).to_be_hidden()


def test_of_two_names_in_an_answer_one_is_chosen_with_one_click(
    fake: FakeServer, visit: Any, photo: Any
) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("unsure.png"))
    expect(page.locator(ANSWERED)).to_have_count(1)
    first, second = page.locator(".card .bars .name").all_text_contents()[:2]
    expect(page.locator(".card h4")).to_have_text(f"Maybe {first} or {second}")
    expect(page.get_by_role("button", name="Right", exact=True)).to_have_count(0)  # it would not say which
    expect(page.get_by_role("button", name=f"It is {first}", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Neither, it is …")).to_be_visible()
    page.get_by_role("button", name=f"It is {second}", exact=True).click()
    expect(page.locator(".card .noted")).to_have_text(f"Noted: this is {second}.")
    assert [each["name"] for each in fake.model.photos] == [second]


def test_a_right_answer_is_counted_and_its_photo_not_kept(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    page.get_by_role("button", name="Right", exact=True).click()
    expect(page.locator(".card .noted")).to_contain_text("is right")
    expect(page.get_by_role("button", name="Undo")).to_have_count(0)
    assert fake.model.looked == [True]
    assert fake.model.photos == []


def test_a_correction_can_be_taken_back(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    page.get_by_role("button", name="Wrong, it is …").click()
    page.get_by_role("combobox").fill("sundew")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("#badge-number")).to_have_text("1")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_role("button", name="Right", exact=True)).to_be_focused()
    assert fake.model.photos == []


def test_a_name_that_is_almost_a_known_one_is_asked_about(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    dialog = page.get_by_role("dialog")
    for choice, given in (("Use “otter”", "otter"), ("“OT ter” is something else", "OT ter")):
        page.get_by_role("button", name="Wrong, it is …").click()
        page.get_by_role("combobox").fill(" OT  ter ")
        page.get_by_role("combobox").press("Enter")
        expect(dialog).to_contain_text("Do you mean “otter”?")
        dialog.get_by_role("button", name=choice).click()
        expect(page.locator(".card .noted")).to_contain_text(f"this is {given}.")
        assert fake.model.photos[-1]["name"] == given
        page.get_by_role("button", name="Undo").click()


def test_without_an_inbox_the_page_says_how_to_turn_it_on(fake: FakeServer, visit: Any, photo: Any) -> None:
    fake.model.collecting = False
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    expect(page.locator(ANSWERED)).to_have_count(1)
    expect(page.locator("#look-off")).to_contain_text("ease serve --inbox")
    expect(page.locator(".card").get_by_role("button", name="Right")).to_have_count(0)
    go(page, "Inbox")
    expect(page.locator("#inbox-lead")).to_contain_text("ease serve --inbox")


def test_an_older_server_lacks_some_parts_and_the_rest_works(
    fake: FakeServer, visit: Any, photo: Any
) -> None:
    fake.model.optional = False
    page = visit(fake.url)
    expect(page.get_by_role("link", name="Inbox")).to_be_hidden()
    page.set_input_files("#look-files", photo("mine.png"))
    page.get_by_role("button", name="Why?").click()
    expect(page.get_by_role("button", name="Why?")).to_have_count(0)
    go(page, "Classes")
    expect(page.locator("#known .name")).to_have_count(len(KNOWN))
    for part in ("#history", "#activity"):
        expect(page.locator(part)).to_be_hidden()


def test_why_is_drawn_over_the_photo_and_said_in_words(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#look-files", photo("mine.png"))
    page.get_by_role("button", name="Why?").click()
    canvas = page.locator(".photo canvas")
    expect(canvas).to_have_attribute(
        "aria-label", re.compile("Heat map over the photo. Most for .* the middle")
    )
    colour = """(canvas) => {
        const pen = canvas.getContext("2d");
        const {data, width, height} = pen.getImageData(0, 0, canvas.width, canvas.height);
        const at = (x, y) => 4 * (Math.floor(y * height) * width + Math.floor(x * width));
        const pixel = (x, y) => [...data.slice(at(x, y), at(x, y) + 4)];
        return [pixel(0.52, 0.4), pixel(0.25, 0.82), pixel(0.02, 0.5)];
    }"""
    warm, cold, outside = canvas.evaluate(colour)
    assert warm[0] > warm[2] + 60  # orange where it speaks for the answer
    assert cold[2] > cold[0] + 60  # blue where it speaks against
    assert max(outside[:3]) - min(outside[:3]) <= 2  # grey where the model does not look
    other = page.locator(".why-panel .chip").nth(1)
    other.click()
    expect(other).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".why-words")).to_contain_text("rather than")
    page.get_by_role("switch", name="Show the colours").uncheck()
    expect(canvas).to_be_hidden()
    page.get_by_role("button", name="Why?", exact=True).click()
    expect(page.locator(".why-panel")).to_have_count(0)


def test_a_page_opened_while_the_server_loads_its_model_finds_the_inbox_afterwards(
    site: Site, visit: Any, photo: Any
) -> None:
    page = visit(site.url)
    refused: set[str] = set()

    def refuse_once(route: Any) -> None:
        loaded = any("classes" in url for url in refused)
        if loaded:
            route.continue_()
        else:
            refused.add(route.request.url)
            route.fulfill(status=503, json={"error": "the model is being loaded: try again in a moment"})

    page.route(re.compile("/(classes|inbox)$"), refuse_once)
    page.reload()
    expect(page.locator("#state")).to_contain_text("Knows")
    page.set_input_files("#look-files", photo("mine.png"))
    expect(page.locator(".card .source")).to_have_count(1)
    expect(page.get_by_text("start the server with").locator("visible=true")).to_have_count(0)
