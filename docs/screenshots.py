"""Take the pictures of the web page: `python docs/screenshots.py` writes docs/images/page-*.png.

They show the page with the stand-in for the server that its tests use, and with drawn flowers, so that no photo of
anybody is needed and the pictures are the same every time.
"""

from __future__ import annotations

import io
import math
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFilter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.app.fake_model import FakeModel  # noqa: E402
from tests.app.fake_server import FakeServer  # noqa: E402

OUT = ROOT / "docs" / "images"
COLOURS = {
    "tulip": ("#d7263d", "#b81d33"),
    "rose": ("#e85d8a", "#c2386a"),
    "daisy": ("#f7f7f2", "#f2b705"),
    "sunflower": ("#f5b700", "#5d3a1a"),
    "iris": ("#6a4bbc", "#f0c808"),
    "poppy": ("#f0502d", "#2b2118"),
    "sundew": ("#a3c644", "#d1495b"),
}
LARGEST = 150_000
DESKTOP = {"viewport": {"width": 1280, "height": 860}}
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}


def flower(kind: str, seed: int, size: int = 320) -> bytes:
    """A drawn flower as a PNG."""
    chance = random.Random(f"{kind} {seed}")
    width = round(size * 4 / 3)
    ground = chance.choice(["#dfe9d3", "#cfe3ea", "#ece2cf", "#d5ddd0"])
    image = Image.new("RGB", (2 * width, 2 * size), ground)
    pen = ImageDraw.Draw(image)
    for _ in range(14):  # blurred leaves behind
        x, y, r = chance.randrange(2 * width), chance.randrange(2 * size), chance.randrange(40, 130)
        pen.ellipse((x - r, y - r, x + r, y + r), fill=chance.choice(["#b9cfa3", "#a9c48f", "#c9dbb8"]))
    image = image.filter(ImageFilter.GaussianBlur(26))
    pen = ImageDraw.Draw(image)
    x, y = width + chance.randrange(-60, 60), 0.8 * size + chance.randrange(-30, 40)
    r, turn = size * chance.uniform(0.36, 0.46), chance.uniform(0, math.tau)
    petal, heart = COLOURS[kind]
    pen.line((x, y, x + chance.randrange(-40, 40), 2 * size), fill="#4f7d3a", width=18)
    if kind == "tulip":
        pen.ellipse((x - r * 0.7, y - r, x + r * 0.7, y + r), fill=heart)
        for side in (-1, 0, 1):
            tip = x + side * r * 0.5
            pen.polygon([(tip - r * 0.42, y), (tip, y - r * 1.25), (tip + r * 0.42, y)], fill=petal)
        pen.pieslice((x - r * 0.92, y - r * 0.95, x + r * 0.92, y + r * 0.95), 0, 180, fill=petal)
    else:
        number = {"rose": 9, "daisy": 15, "sunflower": 20, "iris": 6, "poppy": 5, "sundew": 12}[kind]
        broad = {"rose": 0.42, "daisy": 0.15, "sunflower": 0.16, "iris": 0.3, "poppy": 0.52, "sundew": 0.1}[
            kind
        ]
        for at in range(number):
            angle = turn + math.tau * at / number
            cx, cy, b = x + math.cos(angle) * r * 0.62, y + math.sin(angle) * r * 0.62, r * broad
            pen.line((x, y, cx, cy), fill=petal, width=round(b * 1.5))
            edge = heart if kind == "rose" else None
            pen.ellipse((cx - b, cy - b, cx + b, cy + b), fill=petal, outline=edge, width=5)
        m = r * (0.5 if kind == "sunflower" else 0.28)
        pen.ellipse((x - m, y - m, x + m, y + m), fill=heart)
    image = image.resize((width, size), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def garden() -> FakeModel:
    """A model of six flowers with a past, photos that wait, and a week that drifts."""
    model = FakeModel({"tulip": 34, "rose": 41, "daisy": 28, "sunflower": 30})
    model.learn({"iris": 22, "poppy": 26}, date="2026-10-05T16:20:00+00:00")
    model.learn({"rose": 12, "tulip": 8}, date="2026-11-09T08:45:00+00:00")
    model.thumbnails = {entry["id"]: flower(entry["name"], 0, 96) for entry in model.classes}
    model.looked = [True] * 9 + [False] * 3
    waiting = ("sundew", "tulip", "sundew", "rose", "sundew", "poppy", "sundew", "daisy")
    for seed, kind in enumerate(waiting, start=1):
        model.wait(flower(kind, seed))
    model.wait(flower("iris", 6), state="corrected", name="iris")
    model.groups = [{"id": 1, "photos": ["p0001", "p0003", "p0005", "p0007"]}]
    chance = random.Random(4)
    for day in range(1, 18):
        late = max(0, day - 11)
        shares = [0.34 - 0.01 * day, 0.24, 0.16 + 0.006 * day, 0.12, 0.08, 0.06 + 0.004 * day]
        unknown, confidence = 0.07 + 0.035 * late + chance.uniform(0, 0.04), 0.86 - 0.02 * late
        model.days.append(
            {
                "date": f"2026-11-{day:02d}",
                "images": chance.randrange(18, 60),
                "unknown": unknown,
                "confidence": confidence + chance.uniform(-0.03, 0.03),
                "classes": dict(zip((entry["name"] for entry in model.classes), shares, strict=True)),
            }
        )
    model.drift = ["Since 12 November more photos than before show nothing it knows: look at the inbox."]
    return model


def take(page: Any, name: str, *, whole: bool = False) -> None:
    """Write one picture, with fewer colours if it is large."""
    page.mouse.move(2, 2)
    page.wait_for_load_state("networkidle")
    content = Image.open(io.BytesIO(page.screenshot(full_page=whole, animations="disabled"))).convert("RGB")
    path = OUT / f"page-{name}.png"
    content.save(path, optimize=True)
    if path.stat().st_size > LARGEST:
        content.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(
        f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB, {content.width} x {content.height}"
    )


def scroll_to(page: Any, what: str) -> None:
    """Scroll until an element is at the top."""
    page.locator(what).evaluate("element => scrollTo(0, element.offsetTop - 16)")


def main() -> None:
    """Visit every view on a desktop and on a phone, in light and dark."""
    from playwright.sync_api import expect, sync_playwright

    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        photos = Path(folder)
        model = garden()
        wanted = model.names.index("tulip")
        for seed in range(200):  # the stand-in answers by the sum of the bytes
            content = flower("tulip", seed)
            if sum(content) % len(model.classes) == wanted:
                (photos / "window-sill.png").write_bytes(content)
                break
        for kind in ("sundew", "poppy"):
            (photos / "new" / kind).mkdir(parents=True)
            for seed in range(7):
                (photos / "new" / kind / f"{seed}.png").write_bytes(flower(kind, seed))
        (photos / "new" / "sundew" / "8.png").write_bytes(flower("poppy", 9))
        model.findings = [
            {"kind": "like-other", "files": ["sundew/8.png"], "class": "sundew", "other": "poppy", "score": 0.97,
             "sentence": "sundew/8.png looks like 'poppy' (97 %), not like 'sundew' (1 %)"}
        ]  # fmt: skip
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])

        def visit(server: FakeServer, where: str, **options: Any) -> Any:
            page = browser.new_context(locale="en-GB", **options).new_page()
            page.goto(server.url + where)
            expect(page.locator("#badge-number")).to_have_text("9")
            return page

        def look(page: Any) -> None:
            page.set_input_files("#look-files", photos / "window-sill.png")
            page.get_by_role("button", name="Why?").click()
            expect(page.locator(".why-words")).to_be_visible()

        with FakeServer(model) as server:
            for name, options in {"look": DESKTOP, "look-phone": PHONE}.items():
                page = visit(server, "#look", **options)
                look(page)
                if options is PHONE:
                    scroll_to(page, ".card")
                take(page, name, whole=options is DESKTOP)
            page = visit(server, "#inbox", **DESKTOP)
            page.locator("#review-photo[src]").wait_for()
            page.keyboard.press("ArrowRight")
            take(page, "inbox", whole=True)
            page = visit(server, "#inbox", **PHONE, color_scheme="dark")
            page.locator("#review-photo[src]").wait_for()
            scroll_to(page, "#review")
            take(page, "inbox-phone-dark")
            page = visit(server, "#classes", **DESKTOP)
            page.locator("#charts svg").first.wait_for()
            take(page, "classes", whole=True)
            page.emulate_media(color_scheme="dark")
            take(page, "classes-dark", whole=True)
            page = visit(server, "#teach", **DESKTOP)
            page.set_input_files("#teach-folders", photos / "new")
            page.locator("#start").click()
            page.locator("#findings li").wait_for()
            take(page, "teach", whole=True)
        browser.close()


if __name__ == "__main__":
    main()
