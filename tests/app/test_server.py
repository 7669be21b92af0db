"""The server as its clients see it: right requests, wrong ones, and hard ends."""

from __future__ import annotations

import asyncio
import errno
import gc
import http.client
import io
import json
import os
import re
import shutil
import signal
import socket
import stat
import struct
import tempfile
import threading
import time
import weakref
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ease import Classifier
from ease.app.prediction import Predictions
from ease.app.server.api import make_app
from ease.app.server.guard import Limits, is_loopback, without_paths
from ease.app.server.limits import read_limits
from ease.app.server.routes import explaining
from ease.app.server.telemetry import Log
from ease.errors import EaseError
from ease.experiments.predictor import PredictionCancelledError
from ease.storage.lock import WriterLock
from ease.storage.model_directory import ModelDirectory
from ease.streams.intake.decode import LARGE_IMAGE_PIXELS
from ease.streams.intake.limits import ImageLimits
from ease.streams.intake.sources import (
    NamedFile,
    from_archive,
    from_uploads,
    move_to_class_folders,
    unpack_images,
)
from tests.app.serving import (
    ENDLESS,
    GOOD,
    ROOM,
    TOKEN,
    World,
    bomb,
    check_same_as,
    check_same_as_offline,
    images,
    png,
    script,
    sentence,
    serving,
    state_of,
    zipped,
)
from tests.forked import Forked, ease_command
from tests.test_cli import ease, refused

# --- predicting -----------------------------------------------------------------------------------


def test_a_prediction_is_what_the_model_says_offline(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    shown = [pictures["d0"][5], pictures["d1"][6], pictures["d2"][7]]
    with serving(model) as world:
        assert world.get("/classes")["thumbnails"] == {"on": False, "images": {}}
        found = world.client.post("/predict?top=99", files=images(*shown)).json()
        check_same_as_offline(found, model, shown)
        assert [one["file"] for one in found["predictions"]] == ["0.png", "1.png", "2.png"]
        few = world.client.post("/predict?top=2", files=images(shown[0])).json()["predictions"][0]["classes"]
        assert [c["name"] for c in few] == [c["name"] for c in found["predictions"][0]["classes"][:2]]
        assert world.litter() == []


def test_answers_do_not_depend_on_the_batch_they_were_in(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    asked = [[pictures["d3"][i % 12] for i in range(20)]]  # keeps the model busy while the others come
    asked += [[pictures[f"d{i}"][j] for j in range(1 + i % 3)] for i in range(10)]

    async def all_at_once(app: Any) -> list[Any]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            posts = [client.post("/predict?top=99", files=images(*each)) for each in asked]
            return [answer.json() for answer in await asyncio.gather(*posts)]

    with serving(model) as world:
        offline = Classifier.open(model)
        for found, shown in zip(asyncio.run(all_at_once(make_app(world.service))), asked, strict=True):
            check_same_as(offline, found, shown)
        text = world.client.get("/metrics").text
    batches = int(re.search(r"ease_batch_images_count (\d+)", text).group(1))  # type: ignore[union-attr]
    assert batches < len(asked)
    assert f"ease_images_predicted_total {sum(map(len, asked))}" in text


def test_a_job_that_is_shown_as_done_is_not_in_the_way_of_the_next(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    seen: list[bool] = []

    class Watching(Log):
        def event(self, kind: str, **fields: Any) -> None:
            if kind == "job" and fields["state"] == "done":  # its thread goes on after this line
                seen.append(world.service.jobs.active)

    with serving(model, log=Watching(io.StringIO())) as world:
        job = world.learn(images(*pictures["d4"][:4], name="d4/{}.png")).json()["job"]
        assert world.job(job)["state"] == "done"
    assert seen == [False]


def test_a_server_that_has_ended_frees_its_model(model: Path) -> None:
    """One that serves several models opens and closes them while it runs, and FastAPI keeps their routes."""
    with serving(model) as world:
        served = world.service.model.served
        assert served is not None
        learner = weakref.ref(served.classifier)
        del served
    gc.collect()
    assert learner() is None


def test_an_empty_model_says_so(tmp_path: Path, pictures: dict[str, list[np.ndarray]]) -> None:
    Classifier.create(tmp_path / "model", input_size=16)
    with serving(tmp_path / "model") as world:
        assert "knows no class" in sentence(
            world.client.post("/predict", files=images(pictures["d0"][0])), 409
        )
        assert world.get("/classes")["classes"] == []


def test_a_new_model_may_take_more_time_over_its_first_images(
    tmp_path: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    settings = {"epochs": 1, "rank": 4, "layers": 1}
    Classifier.create(tmp_path / "model", input_size=16, augment="gentle", settings=settings)
    archive = zipped(
        {f"{name}/{i}.png": png(p) for name in ("d0", "d1") for i, p in enumerate(pictures[name])}
    )
    with serving(tmp_path / "model") as world:
        told = world.get("/classes")
        assert (told["method"], told["tunable"]) == ("strata", True)
        answer = world.learn([("archive", ("photos.zip", archive))], tune="true")
        job = world.job(answer.json()["job"])
        assert job["state"] == "done", job
        assert any("held-out images of the first task" in note for note in job["learned"]["notes"])
        assert world.get("/classes")["tunable"] is False
        again = world.learn(images(*pictures["d2"][:6], name="d2/{}.png"), tune="true")
        assert "cannot be tuned" in sentence(again, 409)
        assert "must be true or false" in sentence(
            world.learn(images(pictures["d2"][0]), tune="perhaps"), 422
        )


def test_too_many_waiting_are_told_to_come_again(model: Path, pictures: dict[str, list[np.ndarray]]) -> None:
    with serving(model, limits=Limits(waiting=1)) as world:
        with world.service.model.admitted(1):
            answer = world.client.post("/predict", files=images(pictures["d0"][0]))
            sentence(answer, 503)
            assert answer.headers["Retry-After"] == "1"
        assert world.client.post("/predict", files=images(pictures["d0"][0])).status_code == 200


# --- learning -------------------------------------------------------------------------------------


def test_an_archive_is_learned_and_served(model: Path, pictures: dict[str, list[np.ndarray]]) -> None:
    members = {f"photos/{n}/{i}.png": png(pictures[n][i]) for n in ("d4", "d5") for i in range(4)}
    members |= {"__MACOSX/photos/d4/._0.png": b"x", "photos/d4/.DS_Store": b"x", "photos/": b""}
    with serving(model) as world:
        answer = world.learn([("archive", ("a.zip", zipped(members)))], thumbnails="true")
        assert answer.status_code == 202
        assert answer.json()["state"] in ("queued", "running")
        job = world.job(answer.json()["job"])
        assert job["state"] == "done", job
        assert job["classes"] == ["d4", "d5"]
        assert (job["progress"], job["error"], job["learned"]["images"]) == (1.0, None, 8)
        assert world.litter() == []
        told = world.get("/classes")
        assert told["generation"] == job["generation"] == world.get("/readyz")["generation"]
        assert [c["name"] for c in told["classes"]] == ["d0", "d1", "d2", "d3", "d4", "d5"]
        assert [c["task"] for c in told["classes"]] == [1, 1, 2, 2, 3, 3]
        assert [task["classes"] for task in told["tasks"]] == [["d0", "d1"], ["d2", "d3"], ["d4", "d5"]]
        shown = [pictures["d4"][5], pictures["d5"][6]]
        check_same_as_offline(world.client.post("/predict?top=99", files=images(*shown)).json(), model, shown)
        assert told["thumbnails"] == {"on": True, "images": {"4": "/thumbnails/4", "5": "/thumbnails/5"}}
        picture = world.client.get("/thumbnails/5")
        assert picture.headers["Content-Type"] == "image/jpeg"
        assert Image.open(io.BytesIO(picture.content)).size == (8, 8)
        sentence(world.client.get("/thumbnails/0"), 404)
        states = [event["state"] for event in world.events() if event["event"] == "job"]
        assert states == ["running", "done"]
        assert 'ease_jobs_total{state="done"} 1' in world.client.get("/metrics").text


def test_parts_are_learned_under_their_folders_or_the_name_given(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    with serving(model) as world:
        parts = images(*pictures["d4"][:2], name="d4/{}.png") + images(*pictures["d0"][8:10])
        assert "known already" in sentence(world.learn(parts, name="d0"), 409)
        answer = world.learn(parts, name="d0", extend="true", unreadable="skip")
        job = world.job(answer.json()["job"])
        assert job["state"] == "done", job
        assert job["learned"]["extended"] == ["d0"]
        counts = {c["name"]: c["count"] for c in world.get("/classes")["classes"]}
        assert (counts["d0"], counts["d4"]) == (6, 2)


def test_a_damaged_image_is_left_out_if_asked_and_named_without_places(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    torn = ("image", ("d4/torn.png", png(pictures["d4"][3])[:60]))
    parts = [*images(*pictures["d4"][:2], name="d4/{}.png"), torn]
    with serving(model) as world:
        assert "d4/torn.png" in sentence(world.learn(parts), 422)
        job = world.job(world.learn(parts, unreadable="skip").json()["job"])
        assert job["state"] == "done", job
        told = json.dumps(world.get("/classes"))
        assert "d4/torn.png" in told
        assert str(world.service.folder) not in told + json.dumps(job)


def test_one_job_at_a_time_and_nothing_else_changes_meanwhile(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    before = state_of(model)
    parts = images(*pictures["d4"][:2], name="d4/{}.png")
    with serving(model, start=ENDLESS) as world:
        job = world.learn(parts).json()["job"]
        assert world.job(job, ("running",))["generation"] is None
        sentence(world.learn(parts), 409)
        sentence(world.client.delete("/classes/0"), 409)
        sentence(world.client.patch("/classes/0", json={"name": "zero"}), 409)
        sentence(world.client.post("/rollback", json={"generation": 1}), 409)
        assert world.client.post("/predict", files=images(pictures["d0"][0])).status_code == 200
        assert world.litter()
        cancelled = world.client.post(f"/jobs/{job}/cancel").json()
        assert cancelled["state"] == "cancelled"
        assert world.litter() == []
        assert world.client.post(f"/jobs/{job}/cancel").json() == cancelled
        assert [one["id"] for one in world.get("/jobs")["jobs"]] == [job]
    assert state_of(model) == before


@pytest.mark.parametrize(
    ("text", "word"), [("import os; os._exit(3)", "code 3"), ("import time; time.sleep(60)", "longer than")]
)
def test_a_process_that_dies_or_does_not_end_fails_its_job(
    model: Path, pictures: dict[str, list[np.ndarray]], text: str, word: str
) -> None:
    with serving(model, start=script(text), limits=Limits(job_seconds=1)) as world:
        job = world.job(world.learn(images(*pictures["d4"][:2], name="d4/{}.png")).json()["job"])
        assert job["state"] == "failed"
        assert word in job["error"]
        assert world.litter() == []
        assert world.get("/readyz")["classes"] == 4


def test_a_second_writer_fails_the_job_with_one_clear_line(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    with serving(model) as world, ModelDirectory(model).writing():
        job = world.job(world.learn(images(*pictures["d4"][:2], name="d4/{}.png")).json()["job"])
        assert job["state"] == "failed"
        assert job["error"].startswith("another process is writing model:")
        sentence(world.client.patch("/classes/0", json={"name": "zero"}), 409)


def test_what_another_process_learned_is_noticed(model: Path, pictures: dict[str, list[np.ndarray]]) -> None:
    with serving(model) as world:
        generation = world.get("/readyz")["generation"]
        Classifier.open(model).rename("d0", "zero")
        for _ in range(1000):
            if world.get("/readyz")["generation"] > generation:
                break
            time.sleep(0.02)
        assert world.get("/classes")["classes"][0]["name"] == "zero"


def test_reading_does_not_wait_for_explanations(
    model: Path, pictures: dict[str, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, in_time = threading.Event(), []

    def slow(*_: Any, **__: Any) -> None:
        in_time.append(go_on.wait(10))
        raise EaseError("enough")

    monkeypatch.setattr(explaining, "explain_pixels", slow)
    with serving(model) as world, ThreadPoolExecutor(40) as clients:
        sent = images(pictures["d0"][0])
        asked = [clients.submit(world.client.post, "/explain", files=sent) for _ in range(40)]
        while world.service.model.waiting < 40:
            time.sleep(0.01)
        world.get("/classes")
        go_on.set()
        assert {one.result().status_code for one in asked} == {422}
    assert all(in_time)


def test_jobs_lose_the_name_of_a_class_that_another_process_forgot_and_keep_that_of_a_renamed_one(
    model: Path, pictures: dict[str, list[np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ease.app.server.model.WATCH_PERIOD", 0.02)
    with serving(model) as world:
        done = world.job(world.learn(images(*pictures["d4"][:2]), name="d4").json()["job"])
        other = Classifier.open(model)
        for change, name in (
            (lambda: other.rename("d4", "four"), "d4"),
            (lambda: other.forget("four"), None),
        ):
            change()
            generation = other.generation
            for _ in range(1000):
                if world.get("/readyz")["generation"] == generation:
                    break
                time.sleep(0.01)
            assert world.get("/jobs")["jobs"][0]["classes"] == ([name] if name else [])
        assert "d4" not in json.dumps(world.get(f"/jobs/{done['id']}"))


def test_jobs_are_remembered_and_an_unfinished_one_was_interrupted(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    parts = images(*pictures["d4"][:2], name="d4/{}.png")
    with serving(model) as world:
        done = world.job(world.learn(parts).json()["job"])
    with serving(model, start=ENDLESS) as world:
        job = world.job(
            world.learn(images(*pictures["d5"][:2], name="d5/{}.png")).json()["job"], ("running",)
        )
    with serving(model) as world:
        newest, oldest = world.get("/jobs")["jobs"]
        assert oldest == done
        assert (newest["id"], newest["state"]) == (job["id"], "interrupted")
        assert "server was stopped" in newest["error"]


def test_a_job_whose_generation_was_written_is_done_even_if_nobody_heard_of_it(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    with serving(model) as world:
        done = world.job(world.learn(images(*pictures["d4"][:2], name="d4/{}.png")).json()["job"])
    book = model.with_name(f"{model.name}.jobs") / f"{done['id']}.json"
    unheard = {"state": "running", "generation": None, "learned": None, "ended": None, "progress": 0.5}
    book.write_text(json.dumps({**json.loads(book.read_text()), **unheard}))
    with serving(model) as world:
        (told,) = world.get("/jobs")["jobs"]
    assert {**told, "ended": done["ended"]} == done


# --- changing -------------------------------------------------------------------------------------


def test_classes_are_renamed_forgotten_and_brought_back(model: Path) -> None:
    with serving(model) as world:
        start = world.get("/readyz")["generation"]
        renamed = world.client.patch("/classes/1", json={"name": " one "}).json()
        assert renamed == {"generation": start + 1, "name": "one"}
        sentence(world.client.patch("/classes/1", json={"name": "d2"}), 409)
        sentence(world.client.patch("/classes/1", json={"name": "a/b"}), 422)
        sentence(world.client.patch("/classes/1", json={"title": "x"}), 422)
        sentence(world.client.patch("/classes/77", json={"name": "x"}), 404)
        assert world.client.post("/rollback", json={"generation": start}).json()["generation"] == start
        assert "known" in sentence(world.client.post("/rollback", json={"generation": 99}), 404)
        gone = world.client.delete("/classes/3").json()
        assert (gone["name"], gone["generation"]) == ("d3", world.get("/readyz")["generation"])
        assert [c["name"] for c in world.get("/classes")["classes"]] == ["d0", "d1", "d2"]
        sentence(world.client.delete("/classes/3"), 404)
        sentence(world.client.post("/rollback", json={"generation": start}), 404)


def test_a_class_is_forgotten_and_renamed_by_its_id_whatever_it_is_called_meanwhile(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ease.app.server.model.WATCH_PERIOD", 1000.0)  # the server has the names of before
    with serving(model) as world:
        other = Classifier.open(model)
        for old, new in (("d0", "x"), ("d1", "d0"), ("x", "d1")):
            other.rename(old, new)
        assert world.client.delete("/classes/0").json()["name"] == "d1"
        assert {c["id"]: c["name"] for c in world.get("/classes")["classes"]} == {1: "d0", 2: "d2", 3: "d3"}
        other.refresh()
        for old, new in (("d2", "x"), ("d3", "d2"), ("x", "d3")):
            other.rename(old, new)
        assert world.client.patch("/classes/2", json={"name": "two"}).json()["name"] == "two"
        assert {c["id"]: c["name"] for c in world.get("/classes")["classes"]} == {1: "d0", 2: "two", 3: "d2"}


# --- bad uploads ----------------------------------------------------------------------------------


def odd_zip(**fields: Any) -> bytes:
    """A zip of one image whose entry is not what it should be."""
    info = zipfile.ZipInfo("cat/a.png")
    for key, value in fields.items():
        setattr(info, key, value)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(info, GOOD)
    return buffer.getvalue()


BAD_IMAGES = {
    "text": b"this is no picture",
    "truncated": png(np.random.RandomState(0).randint(0, 255, (40, 40, 3), dtype=np.uint8))[:900],
    "bomb": bomb(),
    "empty": b"",
}
BAD_ARCHIVES = {
    "no zip": (b"PK nothing", 422),
    "empty": (b"", 422),
    "up": (zipped({"../cat/a.png": GOOD}), 422),
    "up inside": (zipped({"cat/../../a.png": GOOD}), 422),
    "absolute": (zipped({"/cat/a.png": GOOD}), 422),
    "drive": (zipped({"C:\\cat\\a.png": GOOD}), 422),
    "link": (odd_zip(create_system=3, external_attr=(stat.S_IFLNK | 0o777) << 16), 422),
    "no image": (zipped({"cat/a.exe": GOOD}), 422),
    "no class": (zipped({"a.png": GOOD}), 422),
    "nothing": (zipped({}), 422),
    "text inside": (zipped({"cat/a.jpg": b"text"}), 422),
    "bomb inside": (zipped({"cat/a.png": bomb()}), 413),
    "large": (zipped({"cat/a.png": bytes(300_000)}), 413),
    "many": (zipped({f"cat/{i}.png": GOOD for i in range(41)}), 413),
    "truncated": (zipped({"cat/a.png": GOOD})[:-30], 422),
}


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


@pytest.mark.parametrize("kind", BAD_IMAGES)
def test_a_bad_image_is_refused_by_name(standing: World, kind: str) -> None:
    status = 413 if kind == "bomb" else 422
    answer = standing.client.post(
        "/predict", files=[("image", ("good.png", GOOD)), ("image", ("bad.jpg", BAD_IMAGES[kind]))]
    )
    assert "bad.jpg" in sentence(answer, status)
    answer = standing.learn([("image", ("cat/good.png", GOOD)), ("image", ("cat/bad.jpg", BAD_IMAGES[kind]))])
    assert "cat/bad.jpg" in sentence(answer, status)


@pytest.mark.parametrize("kind", BAD_ARCHIVES)
def test_a_bad_archive_is_refused(standing: World, kind: str) -> None:
    content, status = BAD_ARCHIVES[kind]
    sentence(standing.learn([("archive", ("a.zip", content))]), status)


def test_an_encrypted_archive_is_refused(standing: World) -> None:
    content = bytearray(odd_zip())
    content[6] |= 1  # in the entry and in the list of entries
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    assert "password" in sentence(standing.learn([("archive", ("a.zip", bytes(content)))]), 422)


def test_an_archive_that_lies_about_its_size_is_stopped(tmp_path: Path) -> None:
    content = bytearray(zipped({"cat/a.png": bytes(300_000)}))
    at = content.rindex(b"PK\x01\x02") + 24
    content[at : at + 4] = struct.pack("<I", 1000)
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(EaseError):
        unpack_images(tmp_path / "a.zip", tmp_path, ROOM.archive)
    assert sum(path.stat().st_size for path in tmp_path.glob("z*")) <= ROOM.unpacked_bytes


@pytest.mark.parametrize(
    ("files", "fields", "word"),
    [
        ([("picture", ("a.png", GOOD))], {}, "unknown part 'picture'"),
        ([("image", ("cat/a.png", GOOD))], {"colour": "red"}, "unknown part 'colour'"),
        ([("image", ("cat/a.png", GOOD))], {"extend": "perhaps"}, "true or false"),
        ([("image", ("cat/a.png", GOOD))], {"unreadable": "eat"}, "refuse or skip"),
        ([("image", ("a.png", GOOD))], {}, "no class folder"),
        ([("image", ("a.png", GOOD))], {"name": "x" * 5000}, "longer than"),
        ([("image", ("a.png", GOOD))], {"name": ".."}, ".."),
        ([("image", ("../a.png", GOOD))], {}, "not a name for an image"),
        ([("image", ("cat/a.exe", GOOD))], {}, "not an image"),
        (
            [("archive", ("a.zip", zipped({"cat/a.png": GOOD}))), ("image", ("cat/a.png", GOOD))],
            {},
            "not both",
        ),
    ],
)
def test_a_wrong_form_is_told_what_is_wrong(
    standing: World, files: list[Any], fields: dict[str, str], word: str
) -> None:
    answer = standing.learn(files, **fields)
    assert answer.status_code in (413, 422)
    assert word in sentence(answer, answer.status_code)


def test_wrong_requests_get_a_sentence(standing: World) -> None:
    client = standing.client
    sentence(client.post("/predict", content=b"x", headers={"Content-Type": "image/png"}), 415)
    sentence(client.post("/predict", content=b"x", headers={"Content-Type": "multipart/form-data"}), 415)
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    sentence(client.post("/predict", content=b"nothing of the kind", headers=form), 400)
    begun = b'--b\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    sentence(client.post("/predict", content=begun + GOOD, headers=form), 400)
    sentence(client.post("/predict", content=b"--b--\r\n", headers=form), 422)
    sentence(client.post("/predict?top=0", files=images(np.zeros((8, 8, 3), np.uint8))), 422)
    sentence(client.post("/predict?top=many", files=images(np.zeros((8, 8, 3), np.uint8))), 422)
    sentence(client.post("/predict", files=[("image", ("a.png", bytes(2_100_000)))]), 413)
    sentence(client.post("/predict", files=[("image", (f"{i}.png", GOOD)) for i in range(65)]), 413)

    def endless() -> Iterator[bytes]:  # no length declared
        yield begun
        for _ in range(30):
            yield bytes(100_000)

    sentence(client.post("/predict", content=endless(), headers=form), 413)
    sentence(
        client.patch("/classes/0", content=b"{" * 70_000, headers={"Content-Type": "application/json"}), 413
    )
    sentence(client.patch("/classes/0", content=b"{", headers={"Content-Type": "application/json"}), 422)
    sentence(client.post("/rollback", json={"generation": "2"}), 422)
    sentence(client.get("/jobs/no-such"), 404)
    sentence(client.post("/jobs/no-such/cancel"), 404)
    sentence(client.get("/nowhere"), 404)
    sentence(client.get("/assets/..%2fclassifier.py"), 404)
    sentence(client.put("/predict"), 405)
    sentence(client.get("/classes/0"), 405)


def test_an_upload_that_stops_is_given_up(model: Path) -> None:
    async def begun(app: Any) -> Any:
        async def slowly() -> Any:
            yield b"--b\r\n"
            await asyncio.sleep(30)

        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            headers = {"Content-Type": "multipart/form-data; boundary=b"}
            return await client.post("/predict", content=slowly(), headers=headers)

    with serving(model, limits=Limits(idle_seconds=0.1)) as world:
        sentence(asyncio.run(begun(make_app(world.service))), 408)
        assert world.service.model.waiting == 0
        assert world.litter() == []


def test_a_client_that_is_still_sending_sees_the_refusal_not_a_broken_connection(standing: World) -> None:
    config = uvicorn.Config(make_app(standing.service), port=0, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        kind = {"Content-Type": "multipart/form-data; boundary=b"}
        connection.request("POST", "/predict", bytes(30_000_000), kind)  # sends all of it before it reads
        answer = connection.getresponse()
        assert (answer.status, "larger than 2 MB" in answer.read().decode()) == (413, True)
    finally:
        server.should_exit = True
        thread.join()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.text(st.sampled_from("ab./\\:é \x01C"), min_size=1, max_size=12).map(lambda name: name + ".png"),
        min_size=1,
        max_size=4,
        unique=True,
    )
)
def test_whatever_members_are_called_nothing_leaves_the_folder(names: list[str]) -> None:
    with tempfile.TemporaryDirectory() as root:
        inside = Path(root) / "in" / "side"
        inside.mkdir(parents=True)
        (inside / "a.zip").write_bytes(zipped(dict.fromkeys(names, GOOD)))
        try:
            classes = from_archive(inside / "a.zip", inside, ROOM.archive, "some")
            found = move_to_class_folders(classes, inside / "images")
        except EaseError:
            return
        finally:
            everything = [p for p in Path(root).rglob("*") if p.is_file()]
            assert all(p.is_relative_to(inside) for p in everything)
        files = [inside / "images" / path for own in found.values() for path in own]
        assert len({p.resolve() for p in files}) == len(files)
        assert all(p.read_bytes() == GOOD and p.parent.parent == inside / "images" for p in files)


def test_names_that_look_alike_keep_apart(tmp_path: Path) -> None:
    uploads = []
    for i, name in enumerate(("a?/x.png", "a*/x.png", "a*/X.png", "a*/deep/x.png")):
        (tmp_path / str(i)).write_bytes(GOOD)
        uploads.append(NamedFile(name, tmp_path / str(i)))
    found = move_to_class_folders(from_uploads(uploads), tmp_path / "images")
    assert found == {"a?": ["a_/x"], "a*": ["a_ (2)/x", "a_ (2)/X (2)", "a_ (2)/x (3)"]}


# --- safety ---------------------------------------------------------------------------------------


def test_changes_need_the_token_and_the_log_never_has_it(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    with serving(model, "example.org", host="0.0.0.0", token=TOKEN) as world:
        client = world.client
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
            wish = {"name": "zero"}
            answer = client.patch("/classes/0", json=wish, headers=headers)
            assert "token" in sentence(answer, 401)
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            sentence(client.post("/learn", files=images(pictures["d4"][0]), headers=headers), 401)
            sentence(client.delete("/classes/0", headers=headers), 401)
            sentence(client.post("/rollback", json={"generation": 1}, headers=headers), 401)
            sentence(client.post("/jobs/x/cancel", headers=headers), 401)
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert client.patch("/classes/0", json={"name": "zero"}, headers=right).status_code == 200
        assert client.post("/predict", files=images(pictures["d0"][0])).status_code == 200
        assert TOKEN not in world.lines.getvalue()
        assert TOKEN not in client.get("/metrics").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "evil.example"},
        {"Host": "localhost.evil.example:8000"},
    ],
)
def test_another_sites_page_cannot_change_the_model(standing: World, headers: dict[str, str]) -> None:
    sentence(standing.client.patch("/classes/0", json={"name": "zero"}, headers=headers), 403)
    answer = standing.client.post("/learn", files=[("image", ("cat/a.png", GOOD))], headers=headers)
    sentence(answer, 403)


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8000", "10.0.0.1", "[::2]:8000"])
def test_a_page_whose_name_was_made_to_point_here_cannot_read(standing: World, host: str) -> None:
    read = ("/", "/classes", "/thumbnails/0", "/jobs", "/metrics", "/healthz", "/readyz", "/docs")
    for path in (*read, "/openapi.json", "/assets/app.js", "/nowhere"):
        assert "localhost" in sentence(standing.client.get(path, headers={"Host": host}), 403)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST.:8000", "127.0.0.1:8000", "127.1.2.3", "[::1]", "[::1]:1"]
)
def test_the_names_of_this_machine_are_answered(standing: World, host: str) -> None:
    assert standing.client.get("/classes", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "[::1"},
        {"Host": "::1"},
        {"Host": "a b"},
        {"Host": "me@localhost"},
        {"Host": "localhost/x"},
        {"Host": "localhost:80:80"},
        {"Origin": "http://[::1"},
        {"Origin": "http://[::1]x"},
        {"Origin": "http://me@127.0.0.1"},
    ],
    ids=str,
)
def test_a_malformed_host_or_origin_is_a_bad_request(standing: World, headers: dict[str, str]) -> None:
    client = standing.client
    assert "malformed" in sentence(client.get("/classes", headers=headers), 400)
    assert "malformed" in sentence(client.post("/rollback", json={"generation": 1}, headers=headers), 400)
    assert "malformed" in sentence(
        client.post("/predict", files=[("image", ("a", GOOD))], headers=headers), 400
    )


def test_behind_a_proxy_that_keeps_the_name_reading_needs_the_token_too(model: Path) -> None:
    with serving(model, "127.0.0.1", token=TOKEN) as world:
        foreign, right = {"Host": "example.org"}, {"Authorization": f"Bearer {TOKEN}"}
        assert world.client.get("/classes").status_code == 200
        sentence(world.client.get("/classes", headers=foreign), 403)
        sentence(world.client.get("/classes", headers={**foreign, "Authorization": "Bearer wrong"}), 403)
        assert world.client.get("/classes", headers={**foreign, **right}).status_code == 200


def test_beyond_this_machine_reading_is_open_under_any_name(model: Path) -> None:
    with serving(model, "example.org", host="0.0.0.0", token=TOKEN) as world:
        for host in ("example.org", "10.0.0.1:8000", "localhost", "some-container"):
            assert world.client.get("/classes", headers={"Host": host}).status_code == 200
        assert "malformed" in sentence(world.client.get("/classes", headers={"Host": "[::1"}), 400)


@pytest.mark.parametrize("headers", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}])
def test_another_sites_page_cannot_keep_the_model_busy(standing: World, headers: dict[str, str]) -> None:
    sentence(standing.client.post("/predict", files=[("image", ("a.png", GOOD))], headers=headers), 403)


def test_the_body_of_a_request_that_reads_is_limited_too(standing: World) -> None:
    sentence(standing.client.request("GET", "/healthz", content=bytes(100_000)), 413)


def test_a_length_of_many_digits_is_too_much(standing: World) -> None:
    headers = {"Content-Type": "application/json", "Content-Length": "9" * 5000}
    sentence(standing.client.post("/rollback", content=b"{}", headers=headers), 413)


def test_a_plain_html_form_cannot_change_the_model(standing: World) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = standing.client.post(
            "/rollback", content=b'{"generation": 1}', headers={"Content-Type": kind}
        )
        sentence(answer, 415)


def test_its_own_page_can(model: Path) -> None:
    with serving(model, "localhost:8000") as world:
        headers = {"Origin": "http://localhost:8000", "Sec-Fetch-Site": "same-origin"}
        assert world.client.patch("/classes/0", json={"name": "zero"}, headers=headers).status_code == 200


def test_every_answer_has_the_security_headers(standing: World) -> None:
    for path in ("/healthz", "/classes", "/docs", "/nowhere", "/metrics"):
        headers = standing.client.get(path).headers
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert "default-src 'self'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]


def test_an_unforeseen_error_is_a_sentence_and_a_log_line(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(model) as world:
        monkeypatch.setattr(world.service.metrics, "text", lambda gauges: 1 / 0)
        assert "ZeroDivision" not in sentence(world.client.get("/metrics"), 500)
        logged = [event for event in world.events() if event["event"] == "error"]
        assert [event["error"] for event in logged] == ["ZeroDivisionError"]
        assert world.client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("number", "status", "word"),
    [
        (errno.ENOSPC, 507, "disk is full"),
        (errno.EDQUOT, 507, "disk is full"),
        (errno.EIO, 503, "input/output error"),
        (errno.EROFS, 503, "read-only"),
    ],
)
def test_a_disk_that_is_full_or_broken_is_no_fault_of_the_request(
    model: Path, monkeypatch: pytest.MonkeyPatch, pictures: dict[str, list[np.ndarray]],
    number: int, status: int, word: str,
) -> None:  # fmt: skip
    before = state_of(model)

    def fail(point: str, path: Path) -> None:
        if point == "before-write":
            raise OSError(number, os.strerror(number), str(path))

    with serving(model) as world:
        with monkeypatch.context() as patch:
            patch.setattr("ease.storage.files.fault", fail)
            for answer in (
                world.client.patch("/classes/0", json={"name": "zero"}),
                world.learn(images(*pictures["d4"][:2], name="d4/{}.png")),
            ):
                assert word in sentence(answer, status)
                assert str(model) not in answer.text
        errors = [event for event in world.events() if event["event"] == "error"]
        assert any(
            os.strerror(number) in event["error"] or "cannot write" in event["error"] for event in errors
        )
        assert not any("detail" in event for event in errors)  # its cause is known: no traceback
        assert world.litter() == []
        assert {k: v for k, v in state_of(model).items() if k != ".lock"} == {
            k: v for k, v in before.items() if k != ".lock"
        }
        assert world.client.patch("/classes/0", json={"name": "zero"}).status_code == 200


def test_an_upload_that_finds_the_disk_full_is_told_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, data: bytes, start: int, end: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("ease.app.server.uploads._FormWriter._data", full)
    with serving(model) as world:
        parts = [("image", ("cat/a.png", GOOD))]
        assert "disk is full" in sentence(world.learn(parts), 507)
        assert "disk is full" in sentence(world.client.post("/predict", files=parts), 507)


def test_folders_that_were_removed_beneath_the_server_are_made_again(
    model: Path, tmp_path: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    book = model.with_name("model.jobs")
    with serving(model, work=tmp_path / "work", inbox=True) as world:
        sent = images(pictures["d0"][0])
        for gone in (world.service.folder, world.service.uploads, tmp_path / "work", book):
            shutil.rmtree(gone)
            assert world.client.post("/predict", files=sent).status_code == 200
            assert world.client.post("/explain", files=sent).status_code == 200
            assert world.client.post("/check", files=sent, data={"name": "d0"}).status_code in (200, 422)
            assert world.client.post("/feedback", files=sent, data={"name": "d0"}).status_code == 201
            extended = {"name": "d0", "extend": "true"}
            answer = world.learn(images(*pictures["d0"][:2]), **extended)
            assert world.job(answer.json()["job"])["state"] == "done"
            assert stat.S_IMODE(world.service.folder.stat().st_mode) == 0o700
            with pytest.raises(EaseError, match="another server"), serving(model):
                pass  # the lock went with the folder, and was taken again
        assert "Traceback" not in world.lines.getvalue()


def test_a_model_that_was_damaged_or_removed_beneath_the_server_is_no_fault_of_the_request(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ease.app.server.model.WATCH_PERIOD", 1000.0)
    with serving(model) as world:
        for harm, says in (
            (lambda: (model / "manifest.json").write_text("{"), "damaged"),
            (lambda: shutil.rmtree(model), "no manifest.json"),
        ):
            harm()
            assert says in sentence(world.client.delete("/classes/0"), 503)
            assert says in sentence(world.client.patch("/classes/0", json={"name": "zero"}), 503)
            assert says in sentence(world.client.get("/history"), 503)
        assert "known: none" in sentence(world.client.post("/rollback", json={"generation": 1}), 404)


def test_a_job_that_cannot_be_remembered_is_no_fault_of_the_request(
    model: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    book = model.with_name("model.jobs")
    with serving(model) as world:
        shutil.rmtree(book)
        with WriterLock(book).hold():  # of a second server
            sentence(world.learn(images(*pictures["d5"][:2]), name="d5"), 409)
        shutil.rmtree(book, ignore_errors=True)
        book.write_text("in the way")
        sentence(world.learn(images(*pictures["d5"][:2]), name="d5"), 503)
        book.unlink()
        answer = world.learn(images(*pictures["d5"][:2]), name="d5")
        assert world.job(answer.json()["job"])["state"] == "done"


def test_what_counts_as_this_machine() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_messages_lose_the_places_of_the_machine() -> None:
    text = "cannot read '/srv/data/x/manifest.json', C:\\data\\y.txt or /home/me/model: see /jobs, a/b"
    assert without_paths(text, {"/home/me/model": "model"}) == (
        "cannot read 'manifest.json', y.txt or model: see /jobs, a/b"
    )


# --- telling --------------------------------------------------------------------------------------


def test_requests_are_logged_and_counted(model: Path, pictures: dict[str, list[np.ndarray]]) -> None:
    with serving(model) as world:
        world.client.post("/predict?top=3", files=images(*pictures["d0"][:2]))
        world.client.get("/jobs/secret-of-somebody")
        world.client.get("/no/such/route")
        request = next(e for e in world.events() if e["event"] == "request" and e["path"] == "/predict")
        assert {k: request[k] for k in ("method", "status", "generation", "images")} == {
            "method": "POST", "status": 200, "generation": world.get("/readyz")["generation"], "images": 2,
        }  # fmt: skip
        assert request["ms"] > 0
        assert request["time"]
        text = world.client.get("/metrics").text
    for line in (
        'ease_requests_total{route="/predict",method="POST",status="200"} 1',
        'ease_requests_total{route="/jobs/{job}",method="GET",status="404"} 1',
        'ease_requests_total{route="other",method="any",status="404"} 1',
        "ease_images_predicted_total 2",
        'ease_predict_seconds_bucket{le="+Inf"} 1',
        'ease_batch_images_bucket{le="1"} 0',
        'ease_batch_images_bucket{le="2"} 1',
        "ease_classes 4",
        f"ease_generation {request['generation']}",
    ):
        assert line in text.splitlines()
    assert int(re.search(r"^ease_resident_bytes (\d+)$", text, re.M).group(1)) > 10**7  # type: ignore[union-attr]


def test_a_method_that_nobody_knows_is_no_label_and_no_line_of_its_own(model: Path) -> None:
    with serving(model) as world:
        for number in range(3):
            sentence(world.client.request(f"MAKE{number}" + "X" * 500, "/predict"), 405)
        assert world.client.request("PUT", "/predict").status_code == 405
        found = [line for line in world.client.get("/metrics").text.splitlines() if 'status="405"' in line]
        assert found == [
            'ease_requests_total{route="/predict",method="PUT",status="405"} 1',
            'ease_requests_total{route="/predict",method="other",status="405"} 3',
        ]
        assert {e["method"] for e in world.events() if e.get("status") == 405} == {"PUT", "other"}


def test_the_documentation_tells_every_route_and_needs_nothing_from_elsewhere(standing: World) -> None:
    page = standing.client.get("/docs").text
    schema = standing.get("/openapi.json")
    for path in ("/predict", "/learn", "/jobs/{job}", "/classes/{class_id}", "/rollback", "/metrics"):
        assert path in schema["paths"]
        assert path in page
    assert "<script" not in page
    assert not re.search(r"(src|href)='?\"?https?:", page)


def test_the_limits_are_documented_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "serve.md").read_text()
    told = {
        name: float(value.replace(",", ""))
        for name, value in re.findall(r"^\| `(\w+)` \| ([\d,.]+) \|", text, re.M)
    }
    assert told == {name: float(value) for name, value in Limits().model_dump().items()}
    image = ImageLimits()
    for value in (image.side, image.pixels, image.aspect, image.scans, LARGE_IMAGE_PIXELS):
        assert f"{value:,} " in text


def test_only_files_of_the_page_are_served(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "package" / "page").mkdir(parents=True)
    for name in ("index.html", "app.js", "notes.py"):
        (tmp_path / "package" / "page" / name).write_text(name)
    monkeypatch.setattr("ease.app.server.routes.pages.files", lambda package: tmp_path / "package")
    with serving(model) as world:
        assert world.client.get("/").text == "index.html"
        answer = world.client.get("/assets/app.js")
        assert (answer.text, answer.headers["Content-Type"]) == ("app.js", "text/javascript; charset=utf-8")
        sentence(world.client.get("/assets/notes.py"), 404)


def test_the_server_the_command_and_python_give_the_same_document(
    standing: World, model: Path, tmp_path: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    (tmp_path / "0.png").write_bytes(png(pictures["d0"][5]))
    answer = standing.client.post("/predict", files=images(pictures["d0"][5])).json()
    command = json.loads(ease("predict", tmp_path / "0.png", "--model", model, "--json").stdout)
    for found in (answer, command):
        assert Predictions.model_validate(found).model_dump(mode="json") == found
        assert found["version"] == 1
    assert answer["predictions"][0]["file"] == "0.png"
    (expected,) = Classifier.open(model).predict(tmp_path / "0.png")
    assert Predictions.model_validate(command).predictions[0].names == expected.names


def test_a_prediction_that_nobody_waits_for_is_not_computed(
    standing: World, pictures: dict[str, list[np.ndarray]]
) -> None:
    served = standing.service.ready()
    pixels, left = served.classifier.pixels([pictures["d0"][5]]), threading.Event()
    left.set()
    with pytest.raises(PredictionCancelledError):
        standing.service.model.submit(pixels, 1, left).result(60)
    assert len(standing.service.model.submit(pixels, 1).result(60).predictions) == 1


# --- the command ----------------------------------------------------------------------------------


def test_the_command_refuses_in_one_line(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EASE_TOKEN", raising=False)
    assert "no model" in refused(ease("serve", "--model", tmp_path / "nowhere", "--port", 0))
    assert "token" in refused(ease("serve", "--model", model, "--host", "0.0.0.0"))
    assert "--create" in refused(ease("serve", "--model", model, "--augment", "gentle"))
    assert "gentle" in refused(ease("serve", "--model", model, "--create", "--augment", "photos"))
    assert "which is ease" in refused(ease("serve", "--model", model, "--create", "--method", "strata"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port}" in refused(ease("serve", "--model", model, "--port", port))
    with serving(model):
        assert "another server" in refused(ease("serve", "--model", model, "--port", 0))
    (model / "prototypes" / "0000.safetensors").write_bytes(b"damaged")
    assert "damaged" in refused(ease("serve", "--model", model, "--port", 0))
    monkeypatch.setattr("ease.app.server.find_spec", lambda name: None)
    assert "pip install 'ease-cil[serve]'" in refused(ease("serve", "--model", model))


@pytest.mark.parametrize("method", [None, "SimpleCIL", "l2p"])
def test_the_command_creates_a_model_of_any_exemplar_free_method(
    method: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr("ease.app.server.run.serve", lambda model, **options: served.append(options))
    words = ["serve", "--model", tmp_path / "model", "--create", *(["--method", method] if method else [])]
    for _ in range(2):  # started again it finds its model
        assert ease(*words).returncode == 0
    assert ModelDirectory(tmp_path / "model").manifest().method == (method or "strata").lower()
    assert [options["limits"] for options in served] == [Limits(), Limits()]
    assert "icarl" in refused(ease("serve", "--model", tmp_path / "b", "--create", "--method", "icarl"))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("limits.yaml", "predict_files: 100\njob_seconds: 7.5\n"),
        ("limits.json", '{"predict_files": 100, "job_seconds": 7.5}'),
    ],
)
def test_limits_come_from_a_file(
    name: str, text: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[dict[str, Any]] = []
    monkeypatch.setattr("ease.app.server.run.serve", lambda model, **options: served.append(options))
    (tmp_path / name).write_text(text)
    assert ease("serve", "--model", model, "--limits", tmp_path / name).returncode == 0
    assert served[0]["limits"] == Limits(predict_files=100, job_seconds=7.5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("predict_file: 3", "did you mean 'predict_files'?"),
        ("predict_files: 0", "predict_files = 0"),
        ("predict_files: many", "predict_files = 'many'"),
        ("job_seconds: .inf", "job_seconds"),
        ("pixels: 100000000", "pixels"),
        ("- predict_files", "'key: value' lines"),
        ("predict_files: [", "not valid YAML"),
        (None, "does not exist"),
    ],
)
def test_wrong_limits_are_one_line_and_create_no_model(text: str | None, says: str, tmp_path: Path) -> None:
    file = tmp_path / "limits.yaml"
    if text is not None:
        file.write_text(text)
    line = refused(ease("serve", "--model", tmp_path / "model", "--create", "--limits", file))
    assert says in line
    assert "limits.yaml" in line
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    "text", ["job_seconds: 1.0e+10", "job_seconds: 1.0e-9", "keep_alive_seconds: 10000000000"]
)
def test_times_that_no_clock_can_measure_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "limits.yaml").write_text(text)
    with pytest.raises(EaseError, match=text.partition(":")[0]):
        read_limits(tmp_path / "limits.yaml")


class Served:
    """A real `ease serve` in a process of its own."""

    def __init__(self, model: Path, work: Path) -> None:
        work.parent.joinpath("printed").unlink(missing_ok=True)
        self.log, printed = work.with_name("log"), work.with_name("printed")
        self.log.write_text("")
        words = ["serve", "--model", model, "--port", 0, "--work", work]
        self.process = Forked(ease_command(*words), printed, self.log)
        found = None
        while found is None:
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
            found = re.search(r"http://\S+(?=\s)", printed.read_text()) if printed.exists() else None
        self.client = httpx.Client(base_url=found.group(), timeout=120)
        self.until("/readyz", lambda answer: answer.status_code == 200)

    def until(self, path: str, good: Callable[[Any], bool]) -> Any:
        for _ in range(6000):
            answer = self.client.get(path)
            if good(answer):
                return answer.json()
            time.sleep(0.2)
        raise AssertionError(answer.text)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_while_learning_it_comes_back_as_it_was(
    model: Path, tmp_path: Path, pictures: dict[str, list[np.ndarray]]
) -> None:
    work, before = tmp_path / "work", state_of(model)
    parts = [("image", (f"{n}/{i}.png", png(pictures[n][i]))) for n in ("d4", "d5") for i in range(8)]
    first = Served(model, work)
    try:
        shown = images(pictures["d0"][5])
        expected = first.client.post("/predict", files=shown).json()
        job = first.client.post("/learn", files=parts).json()["job"]
        first.until(f"/jobs/{job}", lambda answer: answer.json()["message"] == "learning")
        assert first.client.post("/predict", files=shown).json()["generation"] == expected["generation"]
        assert list(work.rglob("*.png"))
    finally:
        first.process.kill()
        first.process.wait()
    for _ in range(600):  # the learner held the lock; it leaves with its parent
        try:
            with ModelDirectory(model).writing():
                break
        except EaseError:
            time.sleep(0.1)
    else:
        raise AssertionError("the learner goes on")
    second = Served(model, work)
    try:
        told = second.client.get(f"/jobs/{job}").json()
        assert (told["state"], told["generation"]) == ("interrupted", None)
        assert not list(work.rglob("*.png"))
        assert second.client.post("/predict", files=shown).json() == expected
        left = second.client.post("/learn", files=parts).json()["job"]
        second.until(f"/jobs/{left}", lambda answer: answer.json()["state"] == "running")
        second.process.send_signal(signal.SIGINT)
        assert second.process.wait() == 0
    finally:
        second.process.kill()
        second.process.wait()
    assert not list(work.rglob("*"))
    assert json.loads((tmp_path / "model.jobs" / f"{left}.json").read_text())["state"] == "interrupted"
    now = state_of(model)
    assert {k: v for k, v in now.items() if k != ".lock"} == {k: v for k, v in before.items() if k != ".lock"}
    assert all(json.loads(line)["event"] for line in second.log.read_text().splitlines())
