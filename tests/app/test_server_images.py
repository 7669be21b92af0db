"""What images and archives may cost the server: looked at before they are read, and dropped with their client."""

from __future__ import annotations

import asyncio
import io
import math
import shutil
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageFile

from ease.app.server import decoding
from ease.app.server import service as served_models
from ease.app.server.api import make_app
from ease.app.server.decoding import OrderedThreads
from ease.app.server.limits import Limits
from ease.app.server.pending import FairQueue, Turn
from ease.app.server.routes import learning, predicting
from ease.streams.intake import TooLargeError
from ease.streams.intake.sources.archive import CHUNK, unpack_images
from tests.app.serving import GOOD, ROOM, World, png, sentence, serving, state_of, zipped

Pictures = dict[str, list[np.ndarray]]
LAST = Turn(math.inf, 10**9)


@pytest.fixture(scope="module")
def standing(served_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One server for all requests that must not change anything."""
    path = shutil.copytree(served_model, tmp_path_factory.mktemp("standing") / "model")
    before = state_of(path)
    with serving(path) as world:
        yield world
        assert world.get("/jobs")["jobs"] == []
        assert world.litter() == []
    assert state_of(path) == before


def strip(width: int, height: int) -> bytes:
    """The begin of a PNG of this size."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(100_000)))


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("width", "height"), [(1, 49_900_000), (40_000, 400), (2, 401), (8000, 8000)], ids=str
)
def test_an_image_of_no_sensible_size_is_refused_before_a_pixel_is_decoded(
    standing: World, monkeypatch: pytest.MonkeyPatch, width: int, height: int
) -> None:
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda image: 1 / 0)
    content = strip(width, height)
    for answer in (
        standing.client.post("/predict", files=[("image", ("long.png", content))]),
        standing.learn([("image", ("cat/long.png", content))]),
        standing.learn([("image", ("cat/long.png", content))], unreadable="skip"),
        standing.learn([("archive", ("a.zip", zipped({"cat/long.png": content})))]),
    ):
        assert "long.png" in sentence(answer, 413)


def test_an_image_of_too_many_bytes_is_not_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = ("cat/large.png", GOOD + bytes(1000))
    with serving(model, limits=Limits(image_bytes=1000)) as world:
        monkeypatch.setattr(Path, "read_bytes", lambda path: 1 / 0)
        assert "large.png" in sentence(world.learn([("image", large)]), 413)
        assert "large.png" in sentence(world.client.post("/predict", files=[("image", large)]), 413)


def test_tiny_jpegs_are_learned(model: Path, pictures: Pictures) -> None:
    parts = []
    for i, pixels in enumerate(pictures["d4"][:3]):
        buffer = io.BytesIO()
        Image.fromarray(pixels[:5, :6]).save(buffer, "JPEG")
        parts.append(("image", (f"tiny/{i}.jpg", buffer.getvalue())))
    with serving(model) as world:
        assert world.client.post("/predict", files=parts).status_code == 200
        job = world.job(world.learn(parts).json()["job"])
        assert job["state"] == "done", job


# --- clients that leave ---------------------------------------------------------------------------


def form(files: list[tuple[str, bytes]]) -> bytes:
    """A multipart form of images with the boundary b."""
    disposition = 'Content-Disposition: form-data; name="image"; filename="{}"'
    parts = [f"--b\r\n{disposition.format(name)}\r\n\r\n".encode() + data + b"\r\n" for name, data in files]
    return b"".join(parts) + b"--b--\r\n"


def abandoned(app: Any, path: str, body: bytes, left: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Send a request whose client leaves when `left` returns; what was answered."""
    sent: list[Any] = []

    async def exchange() -> None:
        pieces = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            piece = next(pieces, None)
            if piece is None:
                await left()
                return {"type": "http.disconnect"}
            return piece

        async def send(message: Any) -> None:
            sent.append(message)

        headers = {
            "host": "127.0.0.1",
            "content-type": "multipart/form-data; boundary=b",
            "content-length": str(len(body)),
        }
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": {},
        }
        await app(scope, receive, send)

    asyncio.run(exchange())
    return sent


def test_no_further_image_is_decoded_and_the_model_not_asked_once_the_client_has_left(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, decoded = threading.Event(), threading.Event(), []
    decode = predicting.decode

    def slowly(content: bytes, name: str, *rest: Any) -> Any:
        decoded.append(name)
        begun.set()
        assert go_on.wait(10)
        return decode(content, name, *rest)

    monkeypatch.setattr(predicting, "decode", slowly)
    with serving(model) as world:
        asked: list[Any] = []
        monkeypatch.setattr(world.service.model, "submit", lambda *given: asked.append(given))

        async def left() -> None:
            await asyncio.to_thread(begun.wait, 10)
            threading.Timer(0.1, go_on.set).start()

        body = form([(f"{i}.png", GOOD) for i in range(6)])
        sent = abandoned(make_app(world.service), "/predict", body, left)
        world.service.decoders.small.submit(LAST, int).result()  # whatever was still to come has come
        assert sent == []
        assert decoded == ["0.png"]
        assert asked == []
        assert world.service.model.waiting == 0
        assert world.litter() == []
        assert [e["status"] for e in world.events() if e.get("path") == "/predict"] == [499]


def test_images_to_learn_from_are_not_checked_once_the_client_has_left(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, checked = threading.Event(), []
    check = learning.check_upload

    def slowly(path: Path, name: str, *rest: Any, **named: Any) -> None:
        checked.append(name)
        begun.set()
        threading.Event().wait(0.1)
        check(path, name, *rest, **named)

    monkeypatch.setattr(learning, "check_upload", slowly)
    with serving(model) as world:
        body = form([(f"cat/{i}.png", GOOD) for i in range(40)])
        sent = abandoned(make_app(world.service), "/learn", body, lambda: asyncio.to_thread(begun.wait, 10))
        assert sent == []
        assert 0 < len(checked) < 20
        assert not world.service.jobs.active
        assert world.get("/jobs")["jobs"] == []
        assert world.litter() == []


def test_a_prediction_that_takes_too_long_is_given_up(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, decoded, decode = threading.Event(), [], predicting.decode

    def slowly(content: bytes, name: str, *rest: Any) -> Any:
        decoded.append(name)
        go_on.wait(5)
        return decode(content, name, *rest)

    monkeypatch.setattr(predicting, "decode", slowly)
    with serving(model, limits=Limits(answer_seconds=0.1)) as world:
        answer = world.client.post("/predict", files=[("image", (f"{i}.png", GOOD)) for i in range(6)])
        go_on.set()
        assert "longer than 0.1 seconds" in sentence(answer, 503)
        world.service.decoders.small.submit(LAST, int).result()
        assert decoded == ["0.png"]
        assert world.service.model.waiting == 0


def test_a_prediction_does_not_wait_for_the_large_images_of_others(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, decode = threading.Event(), predicting.decode
    small, large = png(np.zeros((20, 20, 3), np.uint8)), png(np.zeros((60, 60, 3), np.uint8))

    def slowly(content: bytes, name: str, *rest: Any) -> Any:
        assert content == small or go_on.wait(10)
        return decode(content, name, *rest)

    monkeypatch.setattr(predicting, "decode", slowly)
    monkeypatch.setattr(decoding, "LARGE_IMAGE_PIXELS", 1000)

    async def ask(app: Any) -> tuple[int, list[int]]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def post(content: bytes) -> int:
                return (await client.post("/predict", files=[("image", ("a.png", content))])).status_code

            others = [asyncio.ensure_future(post(large)) for _ in range(8)]
            await asyncio.sleep(0.1)
            first = await post(small)
            assert not any(other.done() for other in others)
            go_on.set()
            return first, list(await asyncio.gather(*others))

    with serving(model) as world:
        assert asyncio.run(ask(make_app(world.service))) == (200, [200] * 8)


def test_one_photo_is_not_held_up_by_large_requests_and_of_these_the_first_is_finished_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, decoded, decode = threading.Event(), threading.Event(), [], predicting.decode
    large = [[f"{client}/{i}.png" for i in range(8)] for client in range(12)]

    def slowly(content: bytes, name: str, *rest: Any) -> Any:
        decoded.append(name)
        begun.set()
        assert go_on.wait(10)
        time.sleep(0.005)  # in which a request whose image is done puts in the next one
        return decode(content, name, *rest)

    monkeypatch.setattr(predicting, "decode", slowly)
    monkeypatch.setattr(served_models, "DECODERS", 1)

    async def ask(app: Any) -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:

            async def post(names: list[str]) -> int:
                files = [("image", (name, GOOD)) for name in names]
                return (await client.post("/predict", files=files)).status_code

            others = []
            for names in large:
                others.append(asyncio.ensure_future(post(names)))
                await asyncio.sleep(0.02)
            await asyncio.to_thread(begun.wait, 10)
            mine = asyncio.ensure_future(post(["mine.png"]))
            await asyncio.sleep(0.1)
            go_on.set()
            return list(await asyncio.gather(mine, *others))

    with serving(model) as world:
        assert asyncio.run(ask(make_app(world.service))) == [200] * 13
    # While a request is between two of its images, the thread takes one of the next request.
    assert decoded.index("mine.png") <= 6
    assert decoded.index(large[0][-1]) < len(decoded) // 2


def test_of_what_waits_for_the_model_the_smallest_is_first(standing: World, pictures: Pictures) -> None:
    model, go_on, answered = standing.service.model, threading.Event(), []
    one = standing.service.ready().classifier.pixels([pictures["d0"][5]])
    with ThreadPoolExecutor() as others:
        held = others.submit(model.between, lambda: go_on.wait(10))
        asked = [model.submit(one.expand(count, -1, -1, -1), 1) for count in (40, 40, 1)]
        for name, future in zip(("first", "second", "small"), asked, strict=True):
            future.add_done_callback(lambda _, name=name: answered.append(name))
        go_on.set()
        assert held.result(10)
    assert [len(future.result(60).predictions) for future in asked] == [40, 40, 1]
    assert answered.index("small") < answered.index("second")  # "first" may be the one in four


def test_small_requests_do_not_hold_up_a_large_one_for_ever(standing: World, pictures: Pictures) -> None:
    """A request that fills a batch by itself does not fit into one that small requests have begun."""
    model, go_on, all_answered, answered = standing.service.model, threading.Event(), threading.Event(), []
    one = standing.service.ready().classifier.pixels([pictures["d0"][5]])

    def ask(images: int, more: int = 0) -> None:
        def done(_: object) -> None:
            answered.append(images)
            if more:  # asked at once, so that small requests wait all the time
                ask(images, more - 1)
            if len(answered) == 1 + 6 * 10:
                all_answered.set()

        model.submit(one.expand(images, -1, -1, -1), 1).add_done_callback(done)

    with ThreadPoolExecutor() as others:
        held = others.submit(model.between, lambda: go_on.wait(10))
        ask(64)
        for _ in range(6):
            ask(1, 9)
        go_on.set()
        assert held.result(10)
    assert all_answered.wait(60)
    assert answered.index(64) < 10


@given(st.lists(st.one_of(st.none(), st.integers(1, 3)), max_size=40))
def test_small_requests_are_first_and_one_in_four_is_the_oldest(steps: list[int | None]) -> None:
    """A number puts a request of so many images; None takes one."""
    waiting: list[Turn] = []
    fair: FairQueue[Turn] = FairQueue()
    small, old = [], []
    for arrival, images in enumerate(steps):
        if images is not None:
            turn = Turn(images, arrival)
            waiting.append(turn)
            fair.put((turn, turn))
        elif waiting:
            taken, same = fair.get_nowait()
            assert taken == same
            small.append(taken == min(waiting))
            old.append(taken == waiting[0])
            waiting.remove(taken)
    for four in range(len(small) - 3):
        assert sum(small[four : four + 4]) >= 3
        assert any(old[four : four + 4])
    assert fair.qsize() == len(waiting)


@given(data=st.data(), count=st.integers(0, 8))
def test_work_that_was_cancelled_is_not_done_and_all_other_is_done_once(
    data: st.DataObject, count: int
) -> None:
    threads, go_on, done = OrderedThreads(1, "test"), threading.Event(), []
    threads.submit(Turn(0, 0), go_on.wait)
    turns = [Turn(data.draw(st.integers(1, 3)), n + 1) for n in range(count)]
    futures = [threads.submit(turn, partial(done.append, turn)) for turn in turns]
    cancelled = data.draw(st.sets(st.sampled_from(turns))) if turns else set()
    for turn, future in zip(turns, futures, strict=True):
        if turn in cancelled:
            assert future.cancel()
    go_on.set()
    threads.submit(LAST, int).result(10)
    threads.stop()
    assert sorted(done) == sorted(set(turns) - cancelled)


def test_what_still_waits_when_threads_stop_is_cancelled() -> None:
    threads, begun, go_on = OrderedThreads(1, "test"), threading.Event(), threading.Event()
    running = threads.submit(Turn(1, 0), lambda: begun.set() or go_on.wait(10))
    waiting = threads.submit(Turn(1, 1), int)
    assert begun.wait(10)
    threading.Timer(0.1, go_on.set).start()
    threads.stop()
    assert running.result(0) is True
    assert waiting.cancelled()


# --- archives -------------------------------------------------------------------------------------

SMALL = Limits(image_bytes=300_000, unpacked_bytes=500_000).archive


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("z*"))


def test_a_member_that_is_too_large_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(zipped({"cat/a.png": GOOD, "cat/b.png": bytes(300_001)}))
    with pytest.raises(TooLargeError, match=r"cat/b\.png"):
        unpack_images(tmp_path / "a.zip", tmp_path, SMALL)
    assert written(tmp_path) == len(GOOD)


def test_a_member_that_is_larger_than_it_says_is_unpacked_up_to_the_limit(tmp_path: Path) -> None:
    content = bytearray(zipped({"cat/a.png": bytes(5_000_000)}))
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 290_000)
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(Exception, match=r"damaged|more than"):
        unpack_images(tmp_path / "a.zip", tmp_path, SMALL)
    assert written(tmp_path) <= SMALL.image.bytes


def test_members_are_unpacked_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int | None] = []
    read = zipfile.ZipExtFile.read

    def counted(self: zipfile.ZipExtFile, size: int | None = -1) -> bytes:
        asked.append(size)
        return read(self, size)

    monkeypatch.setattr(zipfile.ZipExtFile, "read", counted)
    members = {f"cat/{i}.png": bytes(100 * i) for i in range(1, 4)}
    (tmp_path / "a.zip").write_bytes(zipped(members))
    found = unpack_images(tmp_path / "a.zip", tmp_path, SMALL)
    assert [upload.path.stat().st_size for upload in found] == [100, 200, 300]
    assert set(asked) == {CHUNK}


def test_all_members_together_have_a_limit(standing: World) -> None:
    members = {f"cat/{i}.png": bytes(90_000) for i in range(3)}
    assert sum(map(len, members.values())) > ROOM.unpacked_bytes
    answer = standing.learn([("archive", ("a.zip", zipped(members)))])
    assert "unpacked" in sentence(answer, 413)


ONE = zipped({"cat/a.png": GOOD})
ENTRY, END = ONE.rindex(b"PK\x01\x02"), ONE.rindex(b"PK\x05\x06")


def directory_at(offset: int, size: int) -> bytes:
    """A zip whose list of members lies somewhere else."""
    record = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, size, offset)
    locator = struct.pack("<4sLQL", b"PK\x06\x07", 0, END, 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, 2**32 - 1, 2**32 - 1, 0)
    return ONE[:END] + record + locator + end


def member_at(offset: int) -> bytes:
    """A zip whose member lies somewhere else."""
    extra = struct.pack("<HHQ", 1, 8, offset)
    entry = bytearray(ONE[ENTRY:END])
    entry[30:32], entry[42:46] = struct.pack("<H", len(extra)), b"\xff" * 4
    entry += extra
    return ONE[:ENTRY] + entry + struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), ENTRY, 0)


FAR = (2**31, 2**62, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize(
    "content",
    [
        *(directory_at(offset, END - ENTRY) for offset in FAR),
        *(directory_at(ENTRY, size) for size in FAR),
        *map(member_at, FAR),
        ONE[: END + 16] + struct.pack("<L", 2**32 - 2) + ONE[END + 20 :],
    ],
    ids=[*(f"directory-{n}" for n in FAR), *(f"size-{n}" for n in FAR), *(f"member-{n}" for n in FAR), "end"],
)
def test_an_archive_that_points_outside_of_itself_is_damaged(standing: World, content: bytes) -> None:
    assert "damaged" in sentence(standing.learn([("archive", ("a.zip", content))]), 422)
