"""A server with replicas on a Ray cluster: answers go on when a node is lost, and generations never go back."""

from __future__ import annotations

import http.client
import io
import json
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from ease.app.classifier import Classifier
from tests.app.conftest import digits
from tests.cluster.conftest import TwoNodes
from tests.cluster.tools import PATIENCE, Command, running, wait_for

__all__ = ["digits"]


@pytest.fixture(scope="session")
def learned(tmp_path_factory: pytest.TempPathFactory, digits: Any) -> Path:
    path = tmp_path_factory.mktemp("served") / "model"
    Classifier.create(path, input_size=16).learn(digits("0", "1", count=10))
    return path


class Server:
    """The command, its address and its log."""

    def __init__(self, command: Command) -> None:
        self.command = command
        found = wait_for(self._address, "the address of the server", unless=command.has_ended)
        self.port = int(found[1])

    def _address(self) -> re.Match[str] | None:
        return re.search(r"http://127.0.0.1:(\d+)/", self.command.printed)

    def replicas(self, state: str) -> int:
        """How many replicas the log says to be in this state."""
        events = [json.loads(line) for line in self.command.error_lines if line.startswith("{")]
        return sum(event.get("event") == "replica" and event["state"] == state for event in events)

    def wait_for(self, found: Callable[[], Any], what: str) -> None:
        wait_for(found, what, unless=self.command.has_ended)


@contextmanager
def serving(model: Path, address: str) -> Iterator[Server]:
    words = ["serve", "--model", str(model), "--port", "0", "--ray", address, "--replicas", "2"]
    with running(words) as command:
        server = Server(command)
        server.wait_for(lambda: server.replicas("ready") == 2, "two replicas")
        yield server
        command.process.send_signal(signal.SIGTERM)
        assert command.end() == 0, command.errors[-2000:]


def form(image: Any) -> tuple[bytes, dict[str, str]]:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    head = b'--x\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    return head + buffer.getvalue() + b"\r\n--x--\r\n", {"content-type": "multipart/form-data; boundary=x"}


class Client(threading.Thread):
    """Asks again and again on one connection, and remembers the answers."""

    def __init__(self, port: int, image: Any) -> None:
        super().__init__(daemon=True)
        self._port, self._form = port, form(image)
        self.answers: list[dict[str, Any]] = []
        self.refused: list[str] = []
        self.leave = threading.Event()

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        body, headers = self._form
        while not self.leave.is_set():
            connection.request("POST", "/predict", body, headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200:
                self.answers.append(json.loads(content))
            else:
                self.refused.append(f"{answer.status} {content.decode()}")
            time.sleep(0.01)

    @property
    def generations(self) -> list[int]:
        return [answer["generation"] for answer in self.answers]


def check(clients: list[Client], model: Path, image: Any) -> None:
    expected = Classifier.open(model).predict([image])[0]
    for client in clients:
        client.leave.set()
        client.join(PATIENCE)
        assert not client.is_alive()
        assert client.refused == []
        assert client.generations == sorted(client.generations)
        last = client.answers[-1]["predictions"][0]["classes"]
        assert [each["name"] for each in last] == [each.name for each in expected.classes]
        assert last[0]["confidence"] == pytest.approx(expected.classes[0].confidence, abs=1e-5)


def test_answers_go_on_when_a_node_is_lost_and_generations_never_go_back(
    cluster: TwoNodes, learned: Path, digits: Any, tmp_path: Path
) -> None:
    model, image = Path(shutil.copytree(learned, tmp_path / "model")), digits("0", count=1, skip=30)["0"][0]
    with serving(model, cluster.address) as server:
        clients = [Client(server.port, image) for _ in range(3)]
        for client in clients:
            client.start()
        server.wait_for(lambda: all(len(client.answers) >= 5 for client in clients), "five answers each")
        Classifier.open(model).learn(digits("2", count=10))
        current = Classifier.open(model).generation
        server.wait_for(
            lambda: all(client.generations[-1] == current for client in clients),
            "answers of what was learned",
        )
        cluster.lose()
        server.wait_for(lambda: server.replicas("lost") == 1, "a replica that is lost")
        seen = [len(client.answers) for client in clients]
        server.wait_for(
            lambda: all(len(c.answers) >= n + 5 for c, n in zip(clients, seen, strict=True)),
            "five answers each of the replica that is left",
        )
        Classifier.open(model).learn(digits("3", count=10))  # with a replica that is missing
        server.wait_for(
            lambda: all(client.generations[-1] > current for client in clients),
            "answers of what was learned without the replica",
        )
        check(clients, model, image)


@pytest.mark.long
def test_a_replica_that_is_replaced_knows_the_newest_generation(
    cluster: TwoNodes, learned: Path, digits: Any, tmp_path: Path
) -> None:
    model, image = Path(shutil.copytree(learned, tmp_path / "model")), digits("0", count=1, skip=30)["0"][0]
    with serving(model, cluster.address) as server:
        client = Client(server.port, image)
        client.start()
        cluster.lose()
        Classifier.open(model).learn(digits("2", count=10))
        server.wait_for(lambda: server.replicas("lost") == 1, "a replica that is lost")
        cluster.join()
        server.wait_for(lambda: server.replicas("ready") == 3, "a replica in its place")
        Classifier.open(model).learn(digits("3", count=10))
        current = Classifier.open(model).generation
        server.wait_for(lambda: client.generations[-1:] == [current], "answers of what was learned")
        check([client], model, image)
