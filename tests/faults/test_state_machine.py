"""Random sequences of changes, reopenings and kills, each compared with a plain table."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from campaign.faults import check_tidy, command, temporaries
from campaign.injection import KILLED, KINDS, Injection, in_child, injected
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ease import Classifier
from tests.faults.specification import CREATE, Classes, Specification, class_means, digits, files_with

EXAMPLES = int(os.environ.get("EASE_FAULT_EXAMPLES", "8"))
"""How many sequences are tried; `make faults` tries more."""
IMAGES = digits()
MOST_CLASSES = 6


class GrowingModel(RuleBasedStateMachine):
    """A `Classifier` beside its specification."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ease-machine-"))
        self.path = self.folder / "model"
        self.spec = Specification()
        self.model: Classifier | None = None
        self.unsure = False
        self.taken = 0

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def create(self) -> None:
        self.model = Classifier.create(self.path, **CREATE)  # type: ignore[arg-type]
        self._remember()

    def _images(self, count: int) -> list[Any]:
        self.taken += count
        return [IMAGES[at % len(IMAGES)] for at in range(self.taken - count, self.taken)]

    def _remember(self) -> None:
        """What this generation answers, for when somebody goes back to it."""
        self.spec.past[self.spec.generation] = (self.spec.classes, self._probe())

    def _probe(self) -> Any:
        assert self.model is not None
        return self.model.logits(IMAGES[-3:]) if self.model.classes else None

    def _wrote(self, classes: Classes, *, forgets: bool = False) -> None:
        assert self.model is not None
        self.spec.wrote(self.model.generation, classes, forgets=forgets)
        self._remember()

    def _some(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(self.spec.names), "class")

    # --- changes ----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.spec.classes) < MOST_CLASSES)
    @rule(count=st.integers(1, 2), images=st.integers(2, 6), thumbnails=st.booleans())
    def learn(self, count: int, images: int, thumbnails: bool) -> None:
        names = [self.spec.word() for _ in range(count)]
        self.model.learn({name: self._images(images) for name in names}, thumbnails=thumbnails)  # type: ignore[union-attr]
        self._wrote(self.spec.learned(names))

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        self.model.learn({self._some(data): self._images(2)}, extend=True)  # type: ignore[union-attr]
        self._wrote(self.spec.classes)

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        old, new, before = self._some(data), self.spec.word(), self._probe()
        self.model.rename(old, new)  # type: ignore[union-attr]
        assert torch.equal(self._probe(), before)
        self._wrote(self.spec.renamed(old, new))

    @precondition(lambda self: self.spec.classes)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        name = self._some(data)
        position, means = self.spec.names.index(name), class_means(self.path)
        self.model.forget(name)  # type: ignore[union-attr]
        self._wrote(self.spec.without(name), forgets=True)
        self._check_forgotten(name, means.pop(position), list(means.values()))

    def _check_forgotten(self, name: str, mean: bytes, others: list[bytes]) -> None:
        assert files_with(self.path, name.encode()) == []
        assert files_with(self.path, mean) == []
        kept = list(class_means(self.path).values())[: len(others)]  # behind them, one that was learned since
        assert kept == others, "forgetting moved the mean of another class"

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.spec.past)), "generation")
        self.model.rollback(number)  # type: ignore[union-attr]
        classes, logits = self.spec.past[number]
        self.spec.generation, self.spec.classes = number, classes
        found = self._probe()
        assert (found is None and logits is None) or torch.equal(found, logits)

    @precondition(lambda self: self.spec.classes)
    @rule(storage=st.sampled_from(["fp16", "int8", "fp32"]), forgets=st.booleans())
    def compact(self, storage: str, forgets: bool) -> None:
        """By another process, as far as the open model can tell."""
        words = ["compact", "--model", str(self.path), "--storage", storage]
        assert command([*words, *["--forget-history", "--yes"] * forgets]).code == 0
        if self.model.refresh():  # type: ignore[union-attr]
            self._wrote(self.spec.classes, forgets=forgets)
        elif forgets:
            self.spec.past = {self.spec.generation: self.spec.past[self.spec.generation]}
            self.spec.newest = self.spec.generation  # numbers of what was given up and cleared are free again

    # --- accidents --------------------------------------------------------------------------------

    @rule()
    def reopen(self) -> None:
        before = self._probe()
        self.model = Classifier.open(self.path)
        after = self._probe()
        assert (before is None and after is None) or torch.equal(before, after)

    @precondition(lambda self: self.spec.classes and len(self.spec.classes) < MOST_CLASSES)
    @rule(
        what=st.sampled_from(["learn", "extend", "rename", "forget"]),
        kind=st.sampled_from(KINDS),
        number=st.integers(1, 30),
        data=st.data(),
    )
    def kill(self, what: str, kind: str, number: int, data: st.DataObject) -> None:
        """A process that changes the model is killed at some system call."""
        old, new, means = self._some(data), self.spec.word(), class_means(self.path)
        position, images = self.spec.names.index(old), self._images(3)
        after = {
            "learn": self.spec.learned([new]),
            "extend": self.spec.classes,
            "rename": self.spec.renamed(old, new),
            "forget": self.spec.without(old),
        }[what]

        def doomed() -> None:
            with injected(Injection(self.path, kind, number, "kill")):
                model = Classifier.open(self.path)
                if what == "learn":
                    model.learn({new: images})
                elif what == "extend":
                    model.learn({old: images}, extend=True)
                elif what == "rename":
                    model.rename(old, new)
                else:
                    model.forget(old)

        assert in_child(doomed) in (0, KILLED)
        done = self.model.refresh()  # type: ignore[union-attr]
        if done:
            self._wrote(after, forgets=what == "forget")
        else:  # a generation may be whole that was not made current
            self.spec.newest = max([self.spec.newest, *self.model.generations()])  # type: ignore[union-attr]
        self._settle()
        if what == "forget" and done:
            self._check_forgotten(old, means.pop(position), list(means.values()))

    def _settle(self) -> None:
        """The next write clears away what was left."""
        word = self.spec.word()
        if not self.spec.classes:  # all were forgotten: nothing is left to be renamed
            self.model.learn({word: self._images(2)})  # type: ignore[union-attr]
            self._wrote(self.spec.learned([word]))
        else:
            old = self.spec.names[0]
            self.model.rename(old, word)  # type: ignore[union-attr]
            self._wrote(self.spec.renamed(old, word))
        check_tidy(self.path)
        for number in set(self.model.generations()) - set(self.spec.past):  # type: ignore[union-attr]
            self.model.rollback(number)  # type: ignore[union-attr]
            self.spec.past[number] = (self._classes(), self._probe())
            self.spec.next_id = max([self.spec.next_id, *(taken + 1 for taken, _ in self._classes())])
        self.model.rollback(self.spec.generation)  # type: ignore[union-attr]

    # --- always -----------------------------------------------------------------------------------

    def _classes(self) -> Classes:
        from ease.storage.contents import read_json

        manifest = read_json(self.path / "manifest.json")
        return tuple((entry["id"], entry["name"]) for entry in manifest["classes"])

    @invariant()
    def it_is_what_the_table_says(self) -> None:
        if self.model is not None:
            assert self.model.classes == self.spec.names
            assert self.model.generation == self.spec.generation
            assert self._classes() == self.spec.classes
            assert self.model.generations() == sorted(self.spec.past)
            assert temporaries(self.path) == []


TestGrowingModel = GrowingModel.TestCase
TestGrowingModel.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=12,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking would take minutes
    suppress_health_check=list(HealthCheck),
)
