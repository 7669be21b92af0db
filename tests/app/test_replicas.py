"""Replicas of a served model, on a cluster that is played by threads of this process."""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ease.app.classifier import Classifier
from ease.app.server import replicas as module
from ease.app.server.model import Model
from ease.app.server.replicas import Replicas
from ease.app.server.telemetry import Log, Metrics
from ease.errors import EaseError
from ease.experiments.predictor import PredictionCancelledError
from ease.storage.model_directory import ModelDirectory
from tests.app.conftest import LIGHT, Digits


class LostError(Exception):
    """The process of an actor is gone."""


class FailedError(LostError):
    """An actor raised an error."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class LateError(LostError):
    """A result is not there yet."""


class Actor:
    """An object with a thread of its own that answers calls one after the other."""

    def __init__(self, kind: type, *given: Any) -> None:
        self._thread, self.lost = ThreadPoolExecutor(1), threading.Event()
        self.hold = threading.Event()
        self.hold.set()
        self.object: Any = None
        self._made = self._thread.submit(self._make, kind, given)

    def _make(self, kind: type, given: tuple[Any, ...]) -> None:
        self.object = kind(*given)

    def __getattr__(self, name: str) -> Any:
        def call(*given: Any) -> Any:
            self.hold.wait(30)
            if self.lost.is_set():
                raise LostError("lost")
            try:
                self._made.result()
                return getattr(self.object, name)(*given)
            except Exception as error:
                raise FailedError(error) from error

        return SimpleNamespace(remote=lambda *given: self._thread.submit(call, *given))


class Ray:
    """As much of Ray as replicas use."""

    exceptions = SimpleNamespace(RayError=LostError, RayTaskError=FailedError, GetTimeoutError=LateError)

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.has_room = True

    def remote(self, kind: type) -> Any:
        def make(*given: Any) -> Actor:
            self.actors.append(Actor(kind, *given))
            if not self.has_room:
                self.actors[-1].hold.clear()
            return self.actors[-1]

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def get(self, future: Future[Any], timeout: float | None = None) -> Any:
        try:
            return future.result(timeout)
        except NotYetError:
            raise LateError from None

    def kill(self, actor: Actor) -> None:
        actor.lost.set()


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, digits: Digits) -> Path:
    path = tmp_path_factory.mktemp("replicas") / "model"
    Classifier.create(path, input_size=16, settings=LIGHT).learn(digits("0", "1", count=10))
    return path


@pytest.fixture
def path(learned: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(learned, tmp_path / "model"))


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    played = Ray()
    monkeypatch.setattr(module, "import_ray", lambda: played)
    monkeypatch.setattr(module, "node_name", lambda: "here")
    monkeypatch.setattr(module, "LOOK", 0.01)
    return played


@pytest.fixture
def replicas(path: Path, ray: Ray) -> Iterator[Replicas]:
    with Replicas(path, 2) as found:
        yield found


def checksum(path: Path) -> str:
    return ModelDirectory(path).manifest().checksum


def wait_for(found: Callable[[], Any]) -> None:
    until = time.monotonic() + 30
    while not found():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.005)


def never() -> bool:
    return False


def test_replicas_score_as_the_classifier_does(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    model = Classifier.open(path)
    pixels = model.pixels(digits("0", "1", count=3, skip=20)["0"])
    assert replicas.take_over(checksum(path), never)
    wait_for(lambda: len(replicas._all) == 2)
    for _ in range(4):
        found = replicas.logits(model, checksum(path), pixels, never)
        assert torch.equal(found, model.predictor.logits(pixels))


def test_a_batch_whose_replica_is_lost_is_scored_by_another_and_the_replica_is_replaced_once(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    model = Classifier.open(path)
    pixels = model.pixels(digits("0", count=1)["0"])
    replicas.take_over(checksum(path), never)
    wait_for(lambda: len(replicas._all) == 2)
    ray.actors[0].lost.set()
    for _ in range(4):
        found = replicas.logits(model, checksum(path), pixels, never)
        assert torch.equal(found, model.predictor.logits(pixels))
    wait_for(lambda: len(replicas._all) == 2)
    assert len(ray.actors) == 3
    assert ray.actors[0] not in replicas._all


def test_a_generation_is_announced_when_every_replica_has_it_and_the_one_before_is_kept(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    old, before = Classifier.open(path), checksum(path)
    pixels = old.pixels(digits("0", count=1)["0"])
    replicas.take_over(before, never)
    wait_for(lambda: len(replicas._all) == 2)
    Classifier.open(path).learn(digits("2", count=10))
    after = checksum(path)
    ray.actors[1].hold.clear()  # still busy with a batch
    done: list[bool] = []
    announcing = threading.Thread(target=lambda: done.append(replicas.take_over(after, never)))
    announcing.start()
    wait_for(lambda: after in ray.actors[0].object._loaded)
    assert done == []
    ray.actors[1].hold.set()
    announcing.join(30)
    assert done == [True]
    new = Classifier.open(path)
    for _ in range(2):
        assert replicas.logits(old, before, pixels, never).shape == (1, 2)
        assert torch.equal(replicas.logits(new, after, pixels, never), new.predictor.logits(pixels))
    Classifier.open(path).learn(digits("3", count=10))
    assert replicas.take_over(checksum(path), never)
    assert all(len(actor.object._loaded) == 2 for actor in ray.actors)


def test_a_model_that_moves_on_while_it_is_loaded_is_noticed(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    first = checksum(path)
    assert replicas.take_over(first, never)
    Classifier.open(path).learn(digits("2", count=10))
    assert not replicas.take_over(first, never)


def test_a_batch_that_nobody_waits_for_ends_also_without_any_replica(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    model = Classifier.open(path)
    pixels = model.pixels(digits("0", count=1)["0"])
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(PredictionCancelledError):
        replicas.logits(model, checksum(path), pixels, cancelled)
    assert asked == 4


def test_a_model_that_no_replica_can_open_is_one_line(tmp_path: Path, path: Path, ray: Ray) -> None:
    with Replicas(path, 2, weights=tmp_path / "nothing.safetensors") as found:
        (path / "manifest.json").write_text("{")
        with pytest.raises(EaseError, match=r"manifest"):
            found.take_over("x", never)


def test_a_served_model_answers_from_several_replicas_and_changes_between_batches(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    log = Log()
    model = Model(path, log=log, metrics=Metrics(), scorer=replicas)
    model.start()
    try:
        wait_for(lambda: model.served is not None and len(replicas._all) == 2)
        served = model.served
        assert served is not None
        pixels = served.classifier.pixels(digits("0", count=1)["0"])
        seen: list[int] = []
        leave = threading.Event()

        def ask() -> None:
            own = []
            while not leave.is_set():
                own.append(model.submit(pixels, 3).result(30).served.generation)
            assert own == sorted(own)
            seen.extend(own[-1:])

        with ThreadPoolExecutor(4) as clients:
            asking = [clients.submit(ask) for _ in range(4)]
            for name in "23":
                model.change(lambda each, name=name: each.learn(digits(name, count=10)))
                ray.actors[-1].lost.set()
            current = Classifier.open(path).generation
            wait_for(lambda: model.submit(pixels, 3).result(30).served.generation == current)
            leave.set()
            for each in asking:
                each.result(30)
        assert len(seen) == 4
    finally:
        model.stop()


def test_a_server_whose_replicas_wait_for_a_node_says_so_and_can_be_stopped(
    path: Path, ray: Ray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAY_AFTER", 0.0)
    ray.has_room = False
    stream = io.StringIO()
    with Replicas(path, 2, log=Log(stream)) as found:
        model = Model(path, log=Log(stream), metrics=Metrics(), scorer=found)
        model.start()
        try:
            wait_for(lambda: stream.getvalue().count("for a node with a free core and 1 GB of memory") == 2)
            stopping = threading.Thread(target=model.stop, daemon=True)
            stopping.start()
            stopping.join(30)
            assert not stopping.is_alive()
            assert model.failure is None
        finally:
            for actor in ray.actors:
                actor.hold.set()


def test_a_batch_that_nobody_waits_for_ends_also_if_its_replica_does_not_answer(
    path: Path, ray: Ray, replicas: Replicas, digits: Digits
) -> None:
    model = Classifier.open(path)
    pixels = model.pixels(digits("0", count=1)["0"])
    replicas.take_over(checksum(path), never)
    wait_for(lambda: len(replicas._all) == 2)
    for actor in ray.actors:
        actor.hold.clear()
    until = time.monotonic() + 0.1
    try:
        with pytest.raises(PredictionCancelledError):
            replicas.logits(model, checksum(path), pixels, lambda: time.monotonic() > until)
    finally:
        for actor in ray.actors:
            actor.hold.set()
    found = replicas.logits(model, checksum(path), pixels, never)
    assert torch.equal(found, model.predictor.logits(pixels))
