"""The view "Teach": folders, images, the camera, the check of labels, and the job."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tests.app.fake_server import FakeServer
from tests.app.page.browsing import (
    Site,
    expect,
    go,
    names_known,
    teach,
)


def test_two_classes_are_taught_and_known_afterwards(
    site: Site, visit: Any, photo: Any, tmp_path: Path
) -> None:
    for at in range(6):
        photo(f"things/deep/plum/{at}.png")
        photo(f"things/quince/{at}.png")
    (tmp_path / "things" / "quince" / ".DS_Store").write_bytes(b"litter")
    (tmp_path / "things" / "quince" / "notes.txt").write_bytes(b"no image")
    page = visit(site.url)
    teach(page, tmp_path / "things")
    rows = page.locator(".staged")
    expect(rows).to_have_count(2)
    assert [row.input_value() for row in rows.get_by_role("textbox").all()] == ["plum", "quince"]
    expect(rows.locator("canvas")).to_have_count(12)
    expect(page.locator("#teach-note")).to_have_text("One file is not an image and was left out.")
    expect(page.locator("#privacy")).to_contain_text("deleted from the server after learning")
    page.locator("#check-labels").uncheck()  # the pictures are noise: any label looks wrong
    page.get_by_role("button", name="Learn 2 new classes").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#outcome-title")).to_contain_text("Learned 2 new classes", timeout=60_000)
    expect(page.locator("#outcome")).to_contain_text("when learned, on ")
    page.get_by_role("link", name="Show all classes").click()
    assert names_known(page) == sorted([*site.known, "plum", "quince"])
    go(page, "Look")
    page.set_input_files("#look-files", tmp_path / "things" / "quince" / "3.png")
    expect(page.locator(".card .bars .name").filter(has_text="quince")).to_have_count(1)


def test_a_reload_finds_the_job_again_and_it_can_be_cancelled(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    photo("plum/1.png")
    fake.model.patient = True
    page = visit(fake.url)
    teach(page, tmp_path / "plum")
    page.get_by_role("button", name="Learn 1 new class").click()
    expect(page.locator("#job-message")).to_have_text("waiting")
    page.reload()
    expect(page.locator("#job-title")).to_contain_text("Waiting to learn 1")
    go(page, "Look")
    expect(page.locator("#strip")).to_be_visible()
    go(page, "Teach")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#outcome")).to_contain_text("Nothing was changed")


def test_what_failed_can_be_tried_again(fake: FakeServer, visit: Any, photo: Any, tmp_path: Path) -> None:
    photo("fail/1.png")
    page = visit(fake.url)
    teach(page, tmp_path / "fail")
    page.locator("#start").click()
    expect(page.locator("#outcome")).to_contain_text("no room left on the disk: free some")
    expect(page.locator(".staged .number")).to_contain_text("1")


def test_a_name_that_is_known_means_more_images_of_it(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    page = visit(fake.url)
    go(page, "Teach")
    page.set_input_files("#teach-files", [photo("1.png"), photo("2.png")])
    name = page.get_by_label("Name of the class")
    expect(name).to_be_focused()
    page.locator("#start").click()
    expect(page.locator("#teach-error")).to_contain_text("no name yet")
    name.fill("a/b")
    expect(page.locator(".row-note")).to_contain_text("A name cannot")
    name.fill("lamp")
    expect(page.locator(".row-note")).to_contain_text("Known already: these images are added")
    page.get_by_role("button", name="Add to 1 known class").click()
    expect(page.locator("#outcome-title")).to_contain_text("Learned more of 1 known class")
    assert next(entry for entry in fake.model.classes if entry["name"] == "lamp")["count"] == 33


def test_pasted_images_leave_the_cursor_in_the_field_for_their_name(fake: FakeServer, visit: Any) -> None:
    """The view changes with them, and what the browser reports of that comes later."""
    page = visit(fake.url)
    go(page, "Classes")
    page.evaluate("""async () => {
        const clipboardData = new DataTransfer();
        clipboardData.items.add(new File(["x"], "1.png", {type: "image/png"}));
        const changed = new Promise((resolve) => addEventListener("hashchange", () => setTimeout(resolve)));
        document.body.dispatchEvent(new ClipboardEvent("paste", {clipboardData, bubbles: true}));
        await changed;
    }""")
    expect(page.get_by_label("Name of the class")).to_be_focused()


def test_folders_are_read_to_the_end_however_deep(fake: FakeServer, visit: Any) -> None:
    """Browsers hand out a folder in portions, and only through the entries of a real drop: here they are made up."""
    page = visit(fake.url)
    found = page.evaluate("""async () => {
        const {dropped} = await import("/assets/pictures.js");
        const file = (path) => ({isFile: true, fullPath: path,
            file: (give) => give(new File(["x"], path.split("/").at(-1)))});
        const folder = (path, portions) => ({isFile: false, fullPath: path,
            createReader: () => ({readEntries: (give) => give(portions.shift() ?? [])})});
        const many = (from) => Array.from({length: 100}, (_, i) => file(`/pets/cats/${from + i}.jpg`));
        const tree = folder("/pets", [[
            folder("/pets/cats", [many(0), many(100)]),
            folder("/pets/more", [[folder("/pets/more/dogs", [[file("/pets/more/dogs/1.jpg")]])]]),
            file("/pets/.DS_Store"),
        ]]);
        const items = [tree, file("/loose.jpg")].map((entry) => ({webkitGetAsEntry: () => entry}));
        return (await dropped({items, files: []})).map(({folder, file}) => [folder, file.name]);
    }""")
    assert len(found) == 202
    assert [each for each in found if each[0] != "cats"] == [[None, "loose.jpg"], ["dogs", "1.jpg"]]


def test_large_and_foreign_photos_travel_as_jpeg(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    sent = page.evaluate(
        """async (bytes) => {
        const {shrunk} = await import("/assets/pictures.js");
        const small = new Uint8Array(bytes), padding = new Uint8Array(2_500_000);
        const files = [["small.png", [small]], ["large.png", [small, padding]], ["odd.jfif", [small]],
            ["broken.png", [padding]]].map(([name, parts]) => new File(parts, name));
        return Promise.all(files.map(async (file) => {
            const copy = await shrunk(file);
            return [copy.name, copy === file, copy.size < 100_000];
        }));
    }""",
        list(photo("mine.png").read_bytes()),
    )
    same, shrunk, turned, hopeless = sent
    assert same == ["small.png", True, True]
    assert shrunk == ["large.jpg", False, True]
    assert turned == ["odd.jpg", False, True]
    assert hopeless == ["broken.png", True, False]


def test_images_that_are_chosen_twice_in_a_row_are_two_classes(
    fake: FakeServer, visit: Any, photo: Any
) -> None:
    page = visit(fake.url)
    go(page, "Teach")
    for at in (1, 2):
        page.set_input_files("#teach-files", [photo(f"{at}a.png"), photo(f"{at}b.png")])
        page.keyboard.type(f"thing {at}")
    rows = page.locator(".staged")
    assert [row.input_value() for row in rows.get_by_role("textbox").all()] == ["thing 1", "thing 2"]
    expect(rows.locator(".number")).to_have_text([re.compile(r"2\simages")] * 2)


def test_the_camera_takes_several_photos_of_each_class(fake: FakeServer, visit: Any) -> None:
    page = visit(fake.url, permissions=["camera"])
    go(page, "Teach")
    page.get_by_role("button", name="Use the camera").click()
    dialog = page.get_by_role("dialog")
    name = dialog.get_by_role("combobox", name="What do you show?")
    expect(name).to_be_focused()
    expect(dialog.locator("video")).not_to_have_js_property("videoWidth", 0)
    for what, shots in (("mug", 3), ("spoon", 2)):
        name.fill(what)
        for at in range(shots):
            dialog.get_by_role("button", name="Take a photo").click()
            expect(dialog.locator("#camera-shots canvas")).to_have_count(at + 1)
        dialog.get_by_role("button", name="Next class" if what == "mug" else "Done").click()
    expect(dialog).to_be_hidden()
    expect(page.locator("#camera-video")).to_have_js_property("srcObject", None)  # the camera is off
    rows = page.locator(".staged")
    assert [row.input_value() for row in rows.get_by_role("textbox").all()] == ["mug", "spoon"]
    expect(rows.locator(".number")).to_have_text([re.compile(r"3\simages"), re.compile(r"2\simages")])
    page.locator("#start").click()
    expect(page.locator("#outcome-title")).to_contain_text("Learned 2 new classes")
    assert [entry["count"] for entry in fake.model.classes[-2:]] == [3, 2]


def test_without_a_camera_the_dialog_for_files_takes_its_place(
    fake: FakeServer, visit: Any, photo: Any
) -> None:
    page = visit(fake.url)
    page.evaluate("Object.defineProperty(navigator, 'mediaDevices', {value: undefined})")  # as on plain http
    go(page, "Teach")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Use the camera").click()
    chooser.value.set_files(photo("shot.png"))
    expect(page.locator(".staged .number")).to_contain_text("1")


def test_every_doubtful_label_is_decided_before_learning(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    for at in range(3):
        photo(f"things/plum/{at}.png")
        photo(f"things/quince/{at}.png")
    pad = [tmp_path / "things" / kind / "1.png" for kind in ("plum", "quince")]  # same name, size and date
    for path in pad:
        path.write_bytes(path.read_bytes().ljust(4000, b"\0"))
        os.utime(path, (1_700_000_000, 1_700_000_000))

    def finding(kind: str, files: list[str], sentence: str, other: str | None = None) -> dict[str, Any]:
        own = files[0].partition("/")[0]
        return {
            "kind": kind,
            "files": files,
            "class": own,
            "other": other,
            "score": 0.9,
            "sentence": sentence,
        }

    fake.model.findings = [
        finding("unlike", ["plum/0.png"], "Odd one out."),
        finding("like-other", ["plum/1.png"], "A quince?", "quince"),
        finding("duplicate", ["quince/0.png", "quince/1.png"], "Twice."),
    ]
    page = visit(fake.url)
    teach(page, tmp_path / "things")
    page.locator("#start").click()
    expect(page.locator("#audit-title")).to_have_text(re.compile(r"3\slabels to look at"))
    expect(page.locator("#audit-title")).to_be_focused()
    findings = page.locator("#findings > li")
    expect(findings.locator("canvas")).to_have_count(4)
    assert fake.seen.count("POST /learn") == 0
    findings.nth(0).get_by_role("button", name="Remove photo").click()
    findings.nth(1).get_by_role("button", name="Move to “quince”").click()
    expect(findings.nth(2).get_by_role("button", name="Remove the copies")).to_be_visible()
    findings.nth(2).get_by_role("button", name="Keep").click()
    expect(page.locator("#start")).to_be_focused()
    expect(page.locator(".staged .number")).to_have_text([re.compile(r"1\simage$"), re.compile(r"4\simages")])
    page.keyboard.press("Enter")
    expect(page.locator("#outcome-title")).to_contain_text("Learned 2 new classes")
    assert {entry["name"]: entry["count"] for entry in fake.model.classes[-2:]} == {"plum": 1, "quince": 4}
    assert fake.seen.count("POST /check") == 1


def test_two_classes_that_are_one_are_made_one(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    photo("things/plum/0.png")
    photo("things/prune/1.png")
    fake.model.findings = [
        {
            "kind": "same-classes",
            "files": [],
            "class": "plum",
            "other": "prune",
            "score": 0.9,
            "sentence": "Alike.",
        }
    ]
    page = visit(fake.url)
    teach(page, tmp_path / "things")
    page.locator("#start").click()
    page.get_by_role("button", name="Make “plum” and “prune” one class").click()
    expect(page.locator(".staged")).to_have_count(1)
    expect(page.locator(".staged .number")).to_have_text(re.compile(r"2\simages"))


def test_labels_are_not_checked_when_nobody_wants_it(
    fake: FakeServer, visit: Any, photo: Any, tmp_path: Path
) -> None:
    photo("plum/0.png")
    page = visit(fake.url)
    teach(page, tmp_path / "plum")
    page.get_by_label("Look for mislabelled photos first").uncheck()
    page.locator("#start").click()
    expect(page.locator("#outcome-title")).to_contain_text("Learned 1 new class")
    assert "POST /check" not in fake.seen


def test_the_time_left_is_said_in_words(fake: FakeServer, visit: Any) -> None:
    page = visit(fake.url)
    said = page.evaluate("""async () => {
        const {timeLeft} = await import("/assets/job.js");
        const times = [[1, 0.5], [60, 0.01], [10, 0.9], [30, 0.5], [60, 0.5], [600, 0.5], [7200, 0.25]];
        return times.map((each) => timeLeft(...each));
    }""")
    assert said == [
        "",
        "",
        "a few seconds left",
        "about 30 seconds left",
        "about a minute left",
        "about 10 minutes left",
        "about 6 hours left",
    ]
