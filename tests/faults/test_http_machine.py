"""Random sequences of requests, with restarts of the server and jobs that are killed, compared with a plain table."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ease import Classifier
from tests.app.serving import InThread, World, images, script, serving
from tests.faults.specification import CREATE, Classes, Specification, digits, files_with

EXAMPLES = int(os.environ.get("EASE_FAULT_EXAMPLES", "5"))
IMAGES = digits()
DIES = script("import os; os._exit(9)")


class ServedModel(RuleBasedStateMachine):
    """A server beside the specification of its model."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ease-http-"))
        self.path = self.folder / "model"
        self.spec = Specification()
        self.stack = ExitStack()
        self.dies = False
        self.world: World
        self.taken = 0

    def teardown(self) -> None:
        self.stack.close()
        shutil.rmtree(self.folder)

    def _start(self, order: Path) -> Any:
        return DIES(order) if self.dies else InThread(order)

    @initialize()
    def create(self) -> None:
        Classifier.create(self.path, **CREATE)  # type: ignore[arg-type]
        self.spec.past[1] = ((), None)
        self.world = self.stack.enter_context(serving(self.path, start=self._start))

    @rule()
    def restart(self) -> None:
        self.stack.close()
        self.world = self.stack.enter_context(serving(self.path, start=self._start))

    def _images(self, count: int) -> list[Any]:
        self.taken += count
        return [IMAGES[at % len(IMAGES)] for at in range(self.taken - count, self.taken)]

    def _wrote(self, classes: Classes, *, forgets: bool = False) -> None:
        self.spec.wrote(self.world.get("/classes")["generation"], classes, forgets=forgets)
        self.spec.past[self.spec.generation] = (classes, None)

    @precondition(lambda self: len(self.spec.classes) < 6)
    @rule(count=st.integers(2, 6), dies=st.booleans(), thumbnails=st.booleans())
    def learn(self, count: int, dies: bool, thumbnails: bool) -> None:
        """A job; some are killed, and then nothing has changed."""
        name, self.dies = self.spec.word(), dies
        answer = self.world.learn(images(*self._images(count)), name=name, thumbnails=str(thumbnails).lower())
        assert answer.status_code == 202, answer.text
        job = self.world.job(answer.json()["job"])
        assert job["state"] == ("failed" if dies else "done"), job
        if not dies:
            self._wrote(self.spec.learned([name]))

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def learn_again(self, data: st.DataObject) -> None:
        """Without being told to extend, a class that is known is refused; then it is extended."""
        name, self.dies = data.draw(st.sampled_from(self.spec.names)), False
        assert self.world.learn(images(*self._images(2)), name=name).status_code == 409
        answer = self.world.learn(images(*self._images(2)), name=name, extend="true")
        assert self.world.job(answer.json()["job"])["state"] == "done"
        self._wrote(self.spec.classes)

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        (number, old), new = data.draw(st.sampled_from(self.spec.classes)), self.spec.word()
        answer = self.world.client.patch(f"/classes/{number}", json={"name": new})
        assert answer.status_code == 200, answer.text
        self._wrote(self.spec.renamed(old, new))

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        number, name = data.draw(st.sampled_from(self.spec.classes))
        answer = self.world.client.delete(f"/classes/{number}")
        assert answer.status_code == 200, answer.text
        self._wrote(self.spec.without(name), forgets=True)
        assert files_with(self.folder, name.encode()) == [], "the model and what is remembered of jobs"
        assert self.world.client.delete(f"/classes/{number}").status_code == 404

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.spec.past)))
        answer = self.world.client.post("/rollback", json={"generation": number})
        assert answer.status_code == 200, answer.text
        self.spec.generation, self.spec.classes = number, self.spec.past[number][0]
        missing = max(self.spec.past) + 1
        assert self.world.client.post("/rollback", json={"generation": missing}).status_code == 404

    @rule(count=st.integers(1, 3))
    def predict(self, count: int) -> None:
        answer = self.world.client.post("/predict?top=50", files=images(*self._images(count)))
        if not self.spec.classes:
            assert answer.status_code == 409
            return
        found = answer.json()
        assert found["generation"] == self.spec.generation
        assert len(found["predictions"]) == count
        for one in found["predictions"]:
            assert {each["name"] for each in one["classes"]} == set(self.spec.names)

    @invariant()
    def it_is_what_the_table_says(self) -> None:
        if hasattr(self, "world"):
            found = self.world.get("/classes")
            assert tuple((entry["id"], entry["name"]) for entry in found["classes"]) == self.spec.classes
            assert found["generation"] == self.spec.generation
            assert self.world.litter() == []


TestServedModel = ServedModel.TestCase
TestServedModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
    suppress_health_check=list(HealthCheck),
)
