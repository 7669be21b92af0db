"""The inbox over HTTP."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ease import Classifier
from ease.app.inbox import Inbox
from ease.app.server.routes import predicting
from ease.storage import files as durable
from tests.app.conftest import Digits
from tests.app.serving import TOKEN, World, bomb, png, script, sentence, serving

SMALL: dict[str, Any] = {"input_size": 16, "augment": "gentle", "settings": {"layers": 2}}
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    made = Classifier.create(tmp_path_factory.mktemp("inbox") / "model", **SMALL)
    made.learn(digits("0", "1", "2", "3", "4", count=10))
    return made.path


@pytest.fixture
def path(origin: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(origin, tmp_path / "model"))


@pytest.fixture
def world(path: Path) -> Iterator[World]:
    with serving(path, inbox=True) as made:
        yield made


@pytest.fixture
def photo(digits: Digits) -> bytes:
    return png(digits("5", count=1)["5"][0])


def feedback(world: World, photo: bytes, name: str, **more: str) -> Any:
    return world.client.post("/feedback", files={"image": ("five.png", photo)}, data={"name": name, **more})


def predicted(world: World, photo: bytes) -> Any:
    answer = world.client.post("/predict", files={"image": ("x.png", photo)})
    assert answer.status_code == 200, answer.text
    return answer.json()["predictions"][0]


def test_a_server_without_the_option_keeps_nothing(path: Path, photo: bytes) -> None:
    with serving(path) as world:
        assert world.get("/inbox")["on"] is False
        assert world.get("/classes")["inbox"] == {"on": False, "photos": 0, "bytes": 0}
        assert "--inbox" in sentence(feedback(world, photo, "five"), 409)
        for method, address in (
            ("DELETE", "/inbox"),
            ("DELETE", "/inbox/x"),
            ("POST", "/inbox/learn"),
            ("GET", "/inbox/x/image"),
        ):
            sentence(world.client.request(method, address), 409)
    assert not Inbox(path).on


def test_a_correction_is_kept_answered_and_learned(world: World, photo: bytes, path: Path) -> None:
    before = predicted(world, photo)
    name = before["classes"][-1]["name"]
    assert before["corrected"] is False
    kept = feedback(world, photo, name)
    assert kept.status_code == 201
    assert kept.json() == {
        "id": kept.json()["id"],
        "name": name,
        "known": True,
        "confirmed": False,
        "similar": [],
    }
    after = predicted(world, photo)
    assert (after["classes"][0], after["corrected"]) == ({"name": name, "confidence": 1.0}, True)
    (listed,) = world.get("/inbox")["photos"]
    assert listed["state"] == "corrected"
    assert listed["suggestions"][0]["name"] == before["classes"][0]["name"]
    image = world.client.get(f"/{listed['image']}")
    assert image.content == photo
    assert image.headers["content-type"] == "image/png"
    assert image.headers["cache-control"] == "private, no-store"
    assert world.get("/classes")["inbox"] == {"on": True, "photos": 1, "bytes": len(photo)}
    accepted = world.client.post("/inbox/learn")
    assert accepted.status_code == 202
    job = world.job(accepted.json()["job"])
    assert (job["state"], job["learned"]["extended"]) == ("done", [name])
    assert world.get("/inbox")["photos"] == []
    assert predicted(world, photo)["classes"][0]["name"] == name
    assert world.get("/inbox")["outcomes"] == {"right": 0, "wrong": 0, "since": None}
    assert world.litter() == []
    assert list(Inbox(path).path.glob("*.photo")) == []


def test_a_confirmation_is_counted_and_not_kept(world: World, digits: Digits) -> None:
    sure = png(digits("0", count=1)["0"][0])
    done = feedback(world, sure, "0")
    assert (done.status_code, done.json()["id"], done.json()["confirmed"]) == (201, None, True)
    found = world.get("/inbox")
    assert found["photos"] == []
    assert found["outcomes"]["right"] == 1


def test_photos_are_named_and_discarded(world: World, photo: bytes) -> None:
    number = feedback(world, photo, "five").json()["id"]
    named = world.client.patch(f"/inbox/{number}", json={"name": "fifth"})
    assert (named.json()["name"], named.json()["known"]) == ("fifth", False)
    bare = world.client.patch(f"/inbox/{number}", json={"name": None})
    assert (bare.json()["name"], bare.json()["state"]) == (None, "unsure")
    assert "no photo of the inbox has a name" in sentence(world.client.post("/inbox/learn"), 409)
    assert world.client.delete(f"/inbox/{number}").json() == {"removed": 1}
    sentence(world.client.delete(f"/inbox/{number}"), 404)
    sentence(world.client.patch(f"/inbox/{number}", json={"name": "x"}), 404)
    sentence(world.client.get(f"/inbox/{number}/image"), 404)
    feedback(world, photo, "five")
    assert world.client.delete("/inbox").json() == {"removed": 1}


def test_a_name_like_another_is_refused_until_it_is_confirmed(world: World, photo: bytes) -> None:
    number = feedback(world, photo, "Zebra").json()["id"]
    other = photo + b"\0"
    assert "very like 'Zebra'" in sentence(feedback(world, other, "zebra"), 409)
    assert feedback(world, other, "zebra", confirm="true").status_code == 201
    sentence(world.client.patch(f"/inbox/{number}", json={"name": "ZEBRA"}), 409)
    renamed = world.client.patch(f"/inbox/{number}", json={"name": "ZEBRA", "confirm": True})
    assert renamed.status_code == 200


@pytest.mark.parametrize(
    ("content", "fields", "status"),
    [
        (b"no image", {"name": "x"}, 422),
        (bomb(), {"name": "x"}, 413),
        (b"", {"name": "x"}, 422),
        (None, {"name": "x"}, 422),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", {"name": "x"}, 422),
        (png(np.zeros((8, 8, 3), np.uint8)), {}, 422),
        (png(np.zeros((8, 8, 3), np.uint8)), {"name": "a/b"}, 422),
        (png(np.zeros((8, 8, 3), np.uint8)), {"name": "x", "confirm": "perhaps"}, 422),
        (bytes(3_000_000), {"name": "x"}, 413),
    ],
)
def test_wrong_feedback_is_one_sentence_and_leaves_nothing(
    world: World, content: bytes | None, fields: dict[str, str], status: int
) -> None:
    files = {} if content is None else {"image": ("a.png", content)}
    data: dict[str, Any] = {"files": files, "data": fields} if files else {"files": {"name": (None, "x")}}
    sentence(world.client.post("/feedback", **data), status)
    assert world.get("/inbox")["photos"] == []
    assert world.litter() == []


def test_the_inbox_cannot_be_read_without_the_token(path: Path, photo: bytes) -> None:
    with serving(path, called="example.org", host="0.0.0.0", token=TOKEN, inbox=True) as world:
        sentence(feedback(world, photo, "five"), 401)
        kept = world.client.post(
            "/feedback", files={"image": ("a.png", photo)}, data={"name": "five"}, headers=BEARER
        )
        address = f"/inbox/{kept.json()['id']}"
        for method, where in (
            ("GET", "/inbox"),
            ("GET", f"{address}/image"),
            ("HEAD", "/inbox"),
            ("PATCH", address),
            ("DELETE", address),
            ("DELETE", "/inbox"),
            ("POST", "/inbox/learn"),
        ):
            refused = world.client.request(method, where)
            assert refused.status_code == 401, (method, where)
            assert photo not in refused.content
        assert world.client.get("/inbox", headers=BEARER).json()["photos"][0]["name"] == "five"
        assert world.client.get(f"{address}/image", headers=BEARER).content == photo
        assert world.get("/classes")["inbox"]["photos"] == 1, "how many are kept is no secret"


def test_unsure_photos_are_collected_up_to_the_number_per_day(
    path: Path, digits: Digits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "is_unsure", lambda prediction: not prediction.corrected)
    shots = [png(each) for each in digits("5", count=5)["5"]]
    with serving(path, inbox=True, collect_unsure=3) as world:
        for shot in [shots[0], *shots]:
            predicted(world, shot)
        found = world.get("/inbox")
        assert (found["per_day"], found["today"], len(found["photos"])) == (3, 3, 3)
        assert {photo["state"] for photo in found["photos"]} == {"unsure"}
        named = feedback(world, shots[0], "five").json()
        assert named["id"] == found["photos"][0]["id"]
        assert world.get("/inbox")["photos"][0]["state"] == "named"
    with serving(path, inbox=True, collect_unsure=3) as world:
        predicted(world, shots[4])
        assert world.get("/inbox")["today"] == 3, "a restart does not begin the day again"


def test_a_full_disk_is_507_for_feedback_and_no_matter_for_predictions(
    path: Path, photo: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(point: str, place: Path) -> None:
        if place.parent.suffix == ".inbox" and point == "before-write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(predicting, "is_unsure", lambda prediction: True)
    with serving(path, inbox=True, collect_unsure=9) as world:
        monkeypatch.setattr(durable, "fault", full)
        predicted(world, photo)
        sentence(feedback(world, photo, "five"), 507)
        monkeypatch.undo()
        assert world.get("/inbox")["photos"] == []
        assert feedback(world, photo, "five").status_code == 201


def test_a_job_that_was_killed_leaves_the_photos(path: Path, photo: bytes) -> None:
    with serving(path, inbox=True, start=script("raise SystemExit(9)")) as world:
        feedback(world, photo, "five")
        job = world.job(world.client.post("/inbox/learn").json()["job"])
        assert job["state"] == "failed"
        assert [each["name"] for each in world.get("/inbox")["photos"]] == ["five"]


def test_a_forgotten_class_leaves_the_inbox_of_a_server(world: World, photo: bytes, path: Path) -> None:
    name = predicted(world, photo)["classes"][-1]["name"]
    feedback(world, photo, name)
    number = next(c["id"] for c in world.get("/classes")["classes"] if c["name"] == name)
    assert world.client.delete(f"/classes/{number}").status_code == 200
    assert world.get("/inbox")["photos"] == []
    assert list(Inbox(path).path.glob("*.photo")) == []


def test_an_empty_model_takes_feedback(tmp_path: Path, photo: bytes, digits: Digits) -> None:
    Classifier.create(tmp_path / "empty", **SMALL)
    with serving(tmp_path / "empty", inbox=True) as world:
        sentence(feedback(world, b"no image", "five"), 422)
        assert feedback(world, photo, "five").json()["known"] is False
        assert feedback(world, png(digits("6", count=1)["6"][0]), "six").status_code == 201
        job = world.job(world.client.post("/inbox/learn").json()["job"])
        assert job["learned"]["classes"] == ["five", "six"]
