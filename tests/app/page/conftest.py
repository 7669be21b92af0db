"""A browser, and the servers that it visits."""

from __future__ import annotations

import io
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.app.fake_model import FakeModel
from tests.app.fake_server import FakeServer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    from tests.app.page.browsing import KNOWN

    with FakeServer(FakeModel(KNOWN)) as server:
        yield server


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six digits, quick to make and quick to teach more."""
    from ease import Classifier
    from ease.streams.datasets import load_dataset

    data = load_dataset("digits", None, 4).train
    path = tmp_path_factory.mktemp("original") / "model"
    small: dict[str, Any] = {"input_size": 16, "augment": "gentle", "settings": {"layers": 1}}
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
    with Service(model, start=InThread, inbox=True, collect_unsure=20, log=Log(io.StringIO())) as service:
        server = uvicorn.Server(uvicorn.Config(make_app(service), port=0, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started or service.model.served is None:
            time.sleep(0.02)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
        server.should_exit = True
        thread.join()


@pytest.fixture(params=["fake", "real"])
def site(request: pytest.FixtureRequest) -> Any:
    """Every kind of server the scenarios are run against."""
    from tests.app.page.browsing import KNOWN, Site

    if request.param == "fake":
        return Site(request.getfixturevalue("fake").url, tuple(KNOWN))
    return Site(request.getfixturevalue("real"), tuple(f"digit {n}" for n in range(6)))


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """For the tests of this folder only: as long as it is there, asyncio has a running loop in this thread."""
    from tests.app.page.browsing import playwright

    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a fresh context. Afterwards: no error in the console, no request to anywhere else."""
    from tests.app.page.browsing import expect

    contexts, complaints, asked = [], [], []

    def visit(url: str, **options: Any) -> Any:
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
    assert [url for url, home in asked if not url.startswith((home, f"blob:{home[:20]}", "data:"))] == []


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
