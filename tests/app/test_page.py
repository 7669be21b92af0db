"""The page of `ease serve`, used as a person would, in a real browser.

Scenarios that take `site` hold for any server whose model knows the classes `site.known`, and are run against a real
one too; those that take `fake` need the levers of the stand-in (a token, strange photos, jobs that wait or fail).
"""

from __future__ import annotations

import io
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.fake_server import PAGE, FakeModel, FakeServer

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)
expect = playwright.expect
expect.set_options(timeout=20_000)  # a busy machine is slow, not wrong
Page = Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine")

KNOWN = {"apple": 40, "bicycle": 38, "cup": 25, "lamp": 31, "otter": 22, "rocket": 30}
HARMFUL = '<img src=x onerror="window.harmed=1"><b>bold'


@dataclass(frozen=True)
class Site:
    """Where the page is, and which classes its model knows (five at least)."""

    url: str
    known: tuple[str, ...]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer(FakeModel(KNOWN)) as server:
        yield server


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six digits, quick to make and quick to teach more."""
    from ease import Classifier
    from ease.streams.datasets import load_dataset

    data = load_dataset("digits", None, 4).train
    path = tmp_path_factory.mktemp("original") / "model"
    small: dict[str, Any] = {"input_size": 16, "augment": "gentle"}
    photos: dict[str, list[np.ndarray]] = {}
    for at, label in enumerate(data.labels.tolist()):
        photos.setdefault(f"digit {label}", []).append(data.image(at).permute(1, 2, 0).numpy())
    Classifier.create(path, **small).learn({name: photos[name] for name in sorted(photos)[:6]})
    return path


@pytest.fixture
def real(original: Path, tmp_path: Path) -> Iterator[str]:
    """`ease serve` as it is, but for learning in a thread: a process would take seconds to load torch."""
    import uvicorn

    from ease.app.server.api import make_app
    from ease.app.server.service import Service
    from ease.app.server.telemetry import Log
    from tests.app.serving import InThread

    model = Path(shutil.copytree(original, tmp_path / "served" / "model"))
    with Service(model, start=InThread, log=Log(io.StringIO())) as service:
        server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started or service.model.served is None:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(params=["fake", "real"])
def site(request: pytest.FixtureRequest) -> Site:
    """Every kind of server the scenarios are run against."""
    if request.param == "fake":
        return Site(request.getfixturevalue("fake").url, tuple(KNOWN))
    if find_spec("ease.app.server") is None:
        pytest.skip("there is no server here yet")
    return Site(request.getfixturevalue("real"), tuple(f"digit {n}" for n in range(6)))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Page]]:
    """Open an address in a fresh context. Afterwards: no error in the console, no request to anywhere else."""
    contexts, complaints, asked = [], [], []

    def visit(url: str, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1000, "height": 800}, **options})
        context.set_default_timeout(20_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda line: line.type in ("error", "warning") and complaints.append(line.text))
        page.on("request", lambda request: asked.append((request.url, url.partition("#")[0])))
        page.goto(url)
        expect(page.locator("#state")).to_contain_text("class")
        return page

    yield visit
    for context in contexts:
        context.close()
    refusals = re.compile("Failed to load resource: the server responded")  # those the test itself provoked
    assert [line for line in complaints if not refusals.match(line)] == []
    assert [url for url, home in asked if not url.startswith((home, "blob:" + home, "data:"))] == []


@pytest.fixture
def photo(tmp_path: Path) -> Callable[[str], Path]:
    """A small picture with a name, different for each name."""

    def photo(name: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(zlib.crc32(name.encode())).integers(
            0, 255, (24, 32, 3), dtype=np.uint8
        )
        Image.fromarray(pixels).save(path)
        return path

    return photo


def go(page: Page, name: str) -> None:
    page.get_by_role("navigation").get_by_role("link", name=name).click()


def names_known(page: Page) -> list[str]:
    names: list[str] = page.locator("#acts .name").all_text_contents()
    return sorted(names)


def teach(page: Page, folder: Path) -> None:
    go(page, "Teach")
    page.set_input_files("#teach-folders", folder)


# --- what is this? ---------------------------------------------------------------------------------


def test_a_photo_gets_five_bars_and_a_word_on_the_unknown(site: Site, visit: Any, photo: Any) -> None:
    page = visit(site.url)
    page.set_input_files("#predict-files", photo("mine.png"))
    card = page.locator(".card")
    expect(card.locator(".source")).to_contain_text("Answered by generation")
    shares = card.locator(".bars .share").all_text_contents()
    assert len(shares) == 5
    assert all(re.fullmatch(r"[<>]?\s?\d+\s%", share) for share in shares)
    assert set(card.locator(".bars .name").all_text_contents()) <= set(site.known)
    expect(card.locator("h4, .verdict").filter(has_text=re.compile("classes"))).to_have_count(1)
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
    page.set_input_files(
        "#predict-files", [tmp_path / "broken.png", photo("mine.png"), tmp_path / "letter.txt"]
    )
    expect(page.locator(".card .notice")).to_contain_text("broken.png")
    expect(page.locator(".card .source", has_text="generation")).to_have_count(1)
    expect(page.locator("#predict-error")).to_contain_text("letter.txt")


def test_a_stranger_is_called_one_and_doubt_is_admitted(fake: FakeServer, visit: Any, photo: Any) -> None:
    page = visit(fake.url)
    page.set_input_files("#predict-files", photo("strange.png"))
    expect(page.locator(".card h4")).to_contain_text("none of the 6 classes")
    expect(page.locator(".card .verdict")).to_contain_text(re.compile(r"83\s%"))
    fake.model.calibrated = False
    page.set_input_files("#predict-files", photo("mine.png"))
    expect(page.locator(".card .verdict").first).to_contain_text("Not calibrated")


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


# --- teaching --------------------------------------------------------------------------------------


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
    page.get_by_role("button", name="Learn 2 new classes").click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    expect(page.locator("#outcome-title")).to_contain_text("Learned 2 new classes", timeout=60_000)
    expect(page.locator("#outcome")).to_contain_text("when learned, on ")
    page.get_by_role("link", name="Show all classes").click()
    assert names_known(page) == sorted([*site.known, "plum", "quince"])
    go(page, "What is this?")
    page.set_input_files("#predict-files", tmp_path / "things" / "quince" / "3.png")
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
    go(page, "What is this?")
    expect(page.locator("#strip")).to_be_visible()
    go(page, "Teach")
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#outcome")).to_contain_text("The model was not changed")


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


# --- what it knows ---------------------------------------------------------------------------------


def test_a_class_is_renamed_and_forgotten(site: Site, visit: Any) -> None:
    first, second = site.known[:2]
    page = visit(site.url + "#classes")
    page.locator("#acts summary", has_text=first).click()
    field = page.locator("#acts details[open]").get_by_label("Name")
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
        expect(page.locator("#predict-drop")).to_be_hidden()
        page.get_by_role("link", name="Teach the first classes").click()
        expect(page.get_by_role("heading", name="Teach new classes")).to_be_focused()


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
    assert fake.seen.count("POST /learn") == 3


# --- for everyone ----------------------------------------------------------------------------------


def test_names_are_text_wherever_they_appear(fake: FakeServer, visit: Any, photo: Any) -> None:
    fake.model.learn({HARMFUL: 20}, notes=(f"'{HARMFUL}' has few images",))
    fake.model.learn({HARMFUL: 5})
    page = visit(fake.url)
    page.set_input_files("#predict-files", [photo(f"{at}.png") for at in range(7)])
    expect(page.locator(".card .source", has_text="generation")).to_have_count(7)
    expect(page.locator(".bars .name", has_text=HARMFUL).first).to_be_visible()
    go(page, "Classes")
    expect(page.locator("#acts .name", has_text=HARMFUL)).to_be_visible()
    page.locator("#acts summary", has_text=HARMFUL).click()
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
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ground) == "rgb(20, 23, 28)"

    def fits() -> None:
        assert page.evaluate("document.documentElement.scrollWidth") == 360

    page.set_input_files("#predict-files", [photo(f"{at}{long}.png") for at in range(3)])
    expect(page.locator(".card .source", has_text="generation")).to_have_count(3)
    fits()
    teach(page, tmp_path / long)
    fits()
    go(page, "Classes")
    page.locator("#acts summary", has_text=long).click()
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
    grounds = ("paper", "panel", "accent-soft", "bad-soft", "warm-soft")
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
