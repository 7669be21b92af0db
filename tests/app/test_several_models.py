"""Several models in one server, each below its own address."""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from ease import Classifier
from ease.app.server import decoding, several
from ease.app.server.model_list import make_app_of_models, merged
from ease.app.server.several import ModelFolder
from ease.app.server.telemetry import Log
from ease.app.server.tokens import read_tokens
from ease.errors import EaseError
from ease.storage.model_directory import ModelDirectory
from ease.streams.intake.decode import count_pixels
from tests.app.conftest import LIGHT
from tests.app.serving import ROOM, InThread, check_same_as_offline, images, png, script, sentence

Pictures = dict[str, list[np.ndarray]]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "LOOK_PERIOD", 0.05)


@pytest.fixture(scope="session")
def two_models(tmp_path_factory: pytest.TempPathFactory, pictures: Pictures) -> Path:
    """Two models of different digits that share a backbone."""
    folder = tmp_path_factory.mktemp("several")
    for name, classes in {"low": ("d0", "d1"), "high": ("d8", "d9")}.items():
        model = Classifier.create(folder / name, input_size=16, augment="gentle", settings=LIGHT)
        model.learn({each: pictures[each][:4] for each in classes}, thumbnails=True)
    return folder


@pytest.fixture
def folder(two_models: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(two_models, tmp_path / "models"))


class Place:
    def __init__(self, models: ModelFolder, client: TestClient, lines: io.StringIO) -> None:
        self.models, self.client, self.lines = models, client, lines

    def get(self, path: str) -> Any:
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def states(self) -> dict[str, str]:
        return {one["name"]: one["state"] for one in self.get("/models")["models"]}

    def until(self, done: Callable[[], bool]) -> None:
        for _ in range(1500):
            if done():
                return
            time.sleep(0.02)
        raise AssertionError(self.get("/models"))


@contextmanager
def hosting(folder: Path, called: str = "127.0.0.1", **options: Any) -> Iterator[Place]:
    lines = io.StringIO()
    options = {"start": InThread, "limits": ROOM, "log": Log(lines), **options}
    with (
        ModelFolder(folder, **options) as models,
        TestClient(
            make_app_of_models(models), base_url=f"http://{called}", raise_server_exceptions=False
        ) as client,
    ):
        place = Place(models, client, lines)
        place.until(lambda: all(one.state != "loading" for one in models.listed()))
        yield place


def test_each_model_answers_below_its_own_address(folder: Path, pictures: Pictures) -> None:
    with hosting(folder) as place:
        assert place.states() == {"high": "ready", "low": "ready"}
        for name, digit in (("low", "d0"), ("high", "d9")):
            shown = pictures[digit][:3]
            found = place.client.post(f"/m/{name}/predict?top=99", files=images(*shown)).json()
            check_same_as_offline(found, folder / name, shown)
        assert [one["name"] for one in place.get("/m/low/classes")["classes"]] == ["d0", "d1"]
        address = place.get("/m/low/classes")["thumbnails"]["images"]["1"]
        assert address == "/m/low/thumbnails/1"
        assert place.client.get(address).headers["content-type"] == "image/jpeg"
        assert place.get("/m/high/history")["current"] == 2
        assert place.get("/m/high/activity")["days"][0]["images"] == 3


def test_the_page_works_below_a_path(folder: Path) -> None:
    with hosting(folder) as place:
        answer = place.client.get("/m/low", follow_redirects=False)
        assert answer.status_code == 307
        landed = place.client.get("/m/low")
        assert landed.url.path == "/m/low/"
        page = landed.text
        assert 'src="assets/app.js"' in page
        assert place.client.get("/m/low/assets/app.js").status_code == 200
        docs = place.client.get("/m/low/docs").text
        assert "href='openapi.json'" in docs
        assert place.get("/m/low/openapi.json")["servers"] == [{"url": "/m/low"}]
        assert place.get("/m/high/openapi.json")["servers"] == [{"url": "/m/high"}]


def test_the_list_is_a_page_and_a_document(folder: Path) -> None:
    shutil.copytree(folder / "low", folder / "<b>odd & 100% name")
    with hosting(folder) as place:
        page = place.client.get("/").text
        assert "<b>odd" not in page
        (odd,) = [one for one in place.get("/models")["models"] if "odd" in one["name"]]
        assert odd["address"] == "m/%3Cb%3Eodd%20%26%20100%25%20name/"
        assert f"href='{odd['address']}'" in page.replace("&amp;", "&")
        assert place.get("/" + odd["address"] + "readyz")["classes"] == 2
        assert place.get("/readyz")["models"] == place.get("/models")["models"]
        sentence(place.client.get("/nothing"), 404)
        sentence(place.client.post("/models", json={}), 405)
        sentence(place.client.get("/m/nobody/classes"), 404)
        sentence(place.client.get("/m/nobody"), 404)
        sentence(place.client.get("/m//classes"), 404)
        sentence(place.client.get("/m/low/../high/nothing"), 404)


def test_sizes_and_rights_are_those_of_the_route_below_the_path(folder: Path, pictures: Pictures) -> None:
    with hosting(folder, token="right") as place:
        shown = images(pictures["d0"][0])
        assert place.client.post("/m/low/predict", files=shown).status_code == 200  # needs no token
        sentence(place.client.post("/m/low/learn", files=shown, data={"name": "x"}), 401)
        large = [("image", ("0.png", b"\0" * 3_000_000))]
        assert "2 MB" in sentence(place.client.post("/m/low/predict", files=large), 413)
        body = json.dumps({"name": "x" * 70_000})
        head = {"Authorization": "Bearer right", "Content-Type": "application/json"}
        assert "64 KB" in sentence(place.client.patch("/m/low/classes/0", content=body, headers=head), 413)
        assert (
            place.client.patch("/m/low/classes/0", content='{"name": "zero"}', headers=head).status_code
            == 200
        )
        assert place.get("/m/high/classes")["classes"][0]["name"] == "d8"


def test_each_model_can_have_a_token_of_its_own(folder: Path) -> None:
    with hosting(folder, token="common", tokens={"low": "own"}) as place:

        def rename(model: str, token: str) -> int:
            head = {"Authorization": f"Bearer {token}"}
            return place.client.patch(f"/m/{model}/classes/0", json={"name": "n"}, headers=head).status_code

        assert (rename("low", "common"), rename("high", "own")) == (401, 401)
        assert (rename("low", "own"), rename("high", "common")) == (200, 200)


def test_foreign_host_names_and_pages_are_refused_everywhere(folder: Path, pictures: Pictures) -> None:
    with hosting(folder) as place:
        for path in ("/", "/models", "/metrics", "/m/low/classes", "/m/nobody/classes"):
            sentence(place.client.get(path, headers={"Host": "evil.example"}), 403)
        shown, head = images(pictures["d0"][0]), {"Origin": "http://evil.example"}
        sentence(place.client.post("/m/low/predict", files=shown, headers=head), 403)


def test_a_broken_model_does_not_stop_the_others_and_is_tried_again_when_it_is_mended(folder: Path) -> None:
    manifest = folder / "high" / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:-30])
    with hosting(folder) as place:
        assert place.states() == {"high": "failed", "low": "ready"}
        assert "damaged" in sentence(place.client.get("/m/high/classes"), 503)
        assert "damaged" in place.client.get("/").text
        assert place.get("/m/low/readyz")["classes"] == 2
        manifest.write_bytes(whole)
        place.until(lambda: place.states()["high"] == "ready")
        assert place.get("/m/high/readyz")["classes"] == 2


def test_a_model_whose_weights_are_damaged_is_listed_with_the_reason(folder: Path) -> None:
    files = ModelDirectory(folder / "low").manifest().files
    entry = next(each for name, each in files.items() if not name.startswith("thumbnails"))
    file = folder / "low" / entry.path
    os.chmod(file, 0o600)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with hosting(folder) as place:
        place.until(lambda: place.states()["low"] == "failed")
        (low,) = [one for one in place.get("/models")["models"] if one["name"] == "low"]
        assert "checksum" in low["error"]
        assert str(folder) not in low["error"]
        assert place.states()["high"] == "ready"


def test_a_large_photo_for_a_model_that_is_not_served_is_told_why(folder: Path) -> None:
    (folder / "low" / "manifest.json").write_text("{}")
    photo = [("image", ("0.png", bytes(300_000)))]
    with hosting(folder, token="right") as place:
        assert "cannot be served" in sentence(place.client.post("/m/low/predict", files=photo), 503)
        assert "no such model" in sentence(place.client.post("/m/nobody/predict", files=photo), 404)
        sentence(place.client.post("/m/nobody/learn", files=photo), 401)


def test_models_come_and_go_with_their_folders(folder: Path, tmp_path: Path) -> None:
    with hosting(folder) as place:
        os.rename(folder / "high", tmp_path / "away")
        place.until(lambda: place.states() == {"low": "ready"})
        sentence(place.client.get("/m/high/classes"), 404)
        os.rename(tmp_path / "away", folder / "again")
        place.until(lambda: place.states() == {"low": "ready", "again": "ready"})
        assert place.get("/m/again/readyz")["classes"] == 2
        assert sorted(path.name for path in folder.iterdir() if "jobs" not in path.name) == ["again", "low"]


@pytest.mark.parametrize("in_time", [True, False])
@pytest.mark.parametrize("replaced", [True, False])
def test_requests_under_way_are_answered_when_their_model_goes(
    folder: Path, pictures: Pictures, monkeypatch: pytest.MonkeyPatch, in_time: bool, replaced: bool
) -> None:
    monkeypatch.setattr(several, "GRACE", 20.0 if in_time else 0.05)
    begun, go_on = threading.Event(), threading.Event()

    def slow(*about: Any) -> int:
        begun.set()
        go_on.wait(20)
        return count_pixels(*about)

    monkeypatch.setattr(decoding, "count_pixels", slow)
    with hosting(folder) as place, ThreadPoolExecutor(1) as client:
        files = images(*pictures["d8"][:2])
        answer = client.submit(place.client.post, "/m/high/predict", files=files)
        assert begun.wait(20)
        os.rename(folder / "high", folder / ".away")
        if replaced:
            shutil.copytree(folder / ".away", folder / "high")
        place.until(lambda: "high" not in place.models.services())
        if in_time:
            go_on.set()
            assert len(answer.result().json()["predictions"]) == 2
        else:
            assert "closed" in sentence(answer.result(), 503)
            go_on.set()
        if replaced:
            place.until(lambda: place.states() == {"high": "ready", "low": "ready"})
            assert place.client.post("/m/high/predict", files=files).status_code == 200
        else:
            place.until(lambda: place.states() == {"low": "ready"})
        assert "Traceback" not in place.lines.getvalue()


def test_more_models_than_allowed_are_listed_but_not_loaded(folder: Path) -> None:
    limits = ROOM.model_copy(update={"models": 1})
    with hosting(folder, limits=limits) as place:
        assert place.states() == {"high": "ready", "low": "failed"}
        assert "raise the limit 'models'" in sentence(place.client.get("/m/low/classes"), 503)
        shutil.rmtree(folder / "high")
        place.until(lambda: place.states() == {"low": "ready"})


def test_equal_backbones_are_one_object(folder: Path) -> None:
    with hosting(folder) as place:
        served = [service.model.served for service in place.models.services().values()]
        engines = {id(one.classifier.learner.engine.backbone) for one in served if one is not None}
        assert len(served) == 2
        assert len(engines) == 1
        assert place.models.shared.arrivals is place.models.services()["low"].shared.arrivals


def test_learning_is_of_one_model_and_jobs_take_turns(folder: Path, pictures: Pictures) -> None:
    with hosting(folder, start=script("import time; time.sleep(60)")) as place:

        def learn(model: str) -> str:
            files = [("image", ("a.png", png(pictures["d5"][0])))]
            answer = place.client.post(f"/m/{model}/learn", files=files, data={"name": "five"})
            assert answer.status_code == 202, answer.text
            return str(answer.json()["job"])

        first = learn("low")
        place.until(lambda: place.get(f"/m/low/jobs/{first}")["state"] == "running")
        second = learn("high")
        assert place.get("/m/low/jobs")["jobs"][0]["id"] == first
        assert [one["id"] for one in place.get("/m/high/jobs")["jobs"]] == [second]
        time.sleep(0.3)
        assert place.get(f"/m/high/jobs/{second}")["state"] == "queued"
        assert place.client.post(f"/m/low/jobs/{first}/cancel").status_code == 200
        place.until(lambda: place.get(f"/m/high/jobs/{second}")["state"] == "running")
        third = learn("low")
        assert (
            place.client.post(f"/m/low/jobs/{third}/cancel").json()["state"] == "cancelled"
        )  # while it waits
        assert place.client.post(f"/m/high/jobs/{second}/cancel").json()["state"] == "cancelled"


def test_metrics_are_labelled_by_model_and_lines_of_the_log_too(folder: Path, pictures: Pictures) -> None:
    with hosting(folder) as place:
        assert place.client.post("/m/low/predict", files=images(pictures["d0"][0])).status_code == 200
        text = place.client.get("/metrics").text
        assert 'ease_images_predicted_total{model="low"} 1' in text
        assert 'ease_images_predicted_total{model="high"} 0' in text
        assert 'ease_requests_total{model="low",route="/predict",method="POST",status="200"} 1' in text
        assert text.count("# TYPE ease_images_predicted_total counter") == 1
        assert text.count("\nease_resident_bytes ") == 1
        assert "ease_images_predicted_total 1" in place.client.get("/m/low/metrics").text
        lines = [json.loads(line) for line in place.lines.getvalue().splitlines()]
        (asked,) = [line for line in lines if line.get("path") == "/m/low/predict"]
        assert asked["model"] == "low"


def test_families_of_metrics_stay_together() -> None:
    one = '# HELP a x\n# TYPE a counter\na{k="}"} 1\n# HELP b y\n# TYPE b gauge\nb 2\n'
    lines = merged({"m": one, 'q"': one}).splitlines()
    assert lines[:7] == [
        "# HELP a x",
        "# TYPE a counter",
        'a{model="m",k="}"} 1',
        'a{model="q\\"",k="}"} 1',
        "# HELP b y",
        "# TYPE b gauge",
        'b{model="m"} 2',
    ]


def test_a_folder_without_models_is_served_and_one_that_is_missing_is_not(tmp_path: Path) -> None:
    with hosting(tmp_path) as place:
        assert "no model yet" in place.client.get("/").text
    with pytest.raises(EaseError, match="no folder of models"), ModelFolder(tmp_path / "nowhere"):
        pass
    with pytest.raises(EaseError, match="token"):
        ModelFolder(tmp_path, host="0.0.0.0")


def test_a_reachable_model_without_a_token_is_not_served(folder: Path) -> None:
    with hosting(folder, host="0.0.0.0", tokens={"low": "own"}) as place:
        assert place.states() == {"high": "failed", "low": "ready"}


def test_the_tokens_file_must_be_private_and_hold_text(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("low: secret\n'1': '2'\n")
    path.chmod(0o640)
    with pytest.raises(EaseError, match="chmod 600"):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == {"low": "secret", "1": "2"}
    path.write_text("low: 12345\n")
    with pytest.raises(EaseError, match="quotes"):
        read_tokens(path)
    with pytest.raises(EaseError, match="does not exist"):
        read_tokens(tmp_path / "none.yaml")


def test_the_command_wants_one_model_or_a_folder(ease, folder: Path) -> None:  # type: ignore[no-untyped-def]
    for words in ((), ("--model", folder / "low", "--models", folder)):
        told = ease("serve", *words)
        assert told.code == 2
        assert "either --model" in told.err
    told = ease("serve", "--models", folder, "--create")
    assert told.code == 2
    assert "--create" in told.err
    told = ease("serve", "--models", folder / "nowhere", "--port", 0)
    assert told.code == 2
    assert "no folder of models" in told.err
