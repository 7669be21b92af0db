"""What every registered method must do. A new method is in this suite as soon as it is registered."""

from __future__ import annotations

import copy
import importlib
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ease.backbone import Backbone, tensors_hash
from ease.errors import EaseError
from ease.experiments.predictor import Predictor
from ease.methods import (
    Budgeted,
    Compactable,
    Compaction,
    Extendable,
    Forgettable,
    Learner,
    PrototypesPerSubspace,
    SharesTrainings,
    class_fields,
    compactable,
    extendable,
    forgettable,
    methods,
    restore_learner,
    save_model,
    set_budget,
)
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, ImageSet, Stream, Task
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.memory import Memory, joined

QUICK = {
    "epochs": 6,
    "lr": 0.05,
    "batch_size": 12,
    "rank": 4,
    "projection": 64,
    "sigma": 8.0,
    "optimizer": "sgd",
    # An epoch of an alignment has as many steps as there are classes, which are few here.
    "align_epochs": 20,
    "align_lr": 0.02,
    "align_draws": 32,
}
# A whole network: distillation, which adds to the gradient, diverges at an adapter's rate.
FULL = {"lr": 0.01}
# A setting that changes what is stored, or what the logits are made of, is a method of its own to this suite.
VARIANTS = {
    **{f"ease {kind}": ("ease", {"synthesis": kind}) for kind in ("pis", "lr", "ot")},
    "layup first": ("layup", {"adapt": "first"}),
    **{f"lae {kind}": ("lae", {"pet": kind}) for kind in ("lora", "prefix")},
    "slca text": ("slca", {"variant": "text"}),
    "ssiat text": ("ssiat", {"variant": "text", "covariance": "low-rank", "covariance_rank": 4}),
    "mos text": ("mos", {"variant": "text", "covariance": "diagonal"}),
    "tuna text": ("tuna", {"variant": "text"}),
}
NAMES = [*methods(), *VARIANTS]


def make(name: str, engine: Engine, **more: object) -> tuple[Learner, Memory | None]:
    name, variant = VARIANTS.get(name, (name, {}))
    method = methods()[name]
    quick = {**QUICK, **FULL} if method.tuning == "full" else QUICK
    quick = {**quick, **variant, **more}
    settings = {key: value for key, value in quick.items() if key in method.Settings.model_fields}
    memory = Memory(3, seed=engine.seed) if method.kind == "exemplar-based" else None
    return method(engine, method.Settings.model_validate(settings)), memory


def learn(name: str, engine: Engine, stream: Stream, **more: object) -> tuple[Learner, Memory | None]:
    learner, memory = make(name, engine, **more)
    for task in stream.tasks:
        learner.learn(task, memory)
    return learner, memory


class Poison:
    """A source that nobody may look at."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def load(self, index: int) -> torch.Tensor:
        raise AssertionError("this image is not the learner's to see")

    def digest(self, index: int) -> str:
        raise AssertionError("this image is not the learner's to see")


class Watched:
    """A learner of the usual stream, and what was seen while it learned.

    It cannot look at test images, nor (but for a ceiling) at a task that is past: they raise an error.
    """

    def __init__(self, name: str, engine: Engine, stream: Stream) -> None:
        self.engine = Engine(
            copy.deepcopy(engine.backbone), engine.transforms, seed=engine.seed, batch_size=engine.batch_size
        )
        self.before = tensors_hash(self.engine.backbone.vit.state_dict())
        self.trained: list[int] = []
        """Parameters that each task trained."""
        self.shapes: list[tuple[int, ...]] = []
        """Of the logits of each task's test images, right after it was learned."""
        self.copies: list[tuple[Learner, Memory | None]] = []
        """The learner and its memory as they were after each task."""
        self.tasks: list[Task] = []
        fit = self.engine.fit

        def counting(module: torch.nn.Module, *args: object, **kwargs: object) -> list[float]:
            self.trained[-1] += sum(p.numel() for p in module.parameters() if p.requires_grad)
            return fit(module, *args, **kwargs)  # type: ignore[arg-type]

        self.engine.fit = counting  # type: ignore[method-assign]
        learner, memory = make(name, self.engine)
        for task in stream.tasks:
            test = replace(task.test, source=Poison(len(task.test)))
            own = replace(task, train=replace(task.train), test=test)
            self.tasks.append(own)
            self.trained.append(0)
            learner.learn(own, memory)
            if learner.kind != "ceiling":  # which may look back, yet not at test images nor ahead
                # From here on the task is the past: whoever kept a reference to its images finds them gone.
                object.__setattr__(own.train, "source", Poison(len(own.train)))
            self.shapes.append(tuple(logits(learner, task.test).shape))
            self.copies.append(self.copied((learner, memory), self.engine))
        self.engine.fit = fit  # type: ignore[method-assign]
        self.after = tensors_hash(self.engine.backbone.vit.state_dict())

    def copied(self, both: tuple[Learner, Memory | None], engine: Engine) -> tuple[Learner, Memory | None]:
        """A copy that computes with another engine."""
        kept = self.engine
        pairs = [(kept, engine), (kept.backbone, engine.backbone), (kept.backbone.vit, engine.backbone.vit)]
        return copy.deepcopy(both, {id(theirs): ours for theirs, ours in pairs})


_watched: dict[str, Watched] = {}


def watched(name: str, engine: Engine, stream: Stream) -> Watched:
    """The one of this process: training is most of the time that these tests take."""
    if name not in _watched:
        _watched[name] = Watched(name, engine, stream)
    return _watched[name]


def learned(
    name: str, engine: Engine, stream: Stream, tasks: int | None = None
) -> tuple[Learner, Memory | None]:
    """A learner of the usual stream, or of its first tasks, that a test may change."""
    found = watched(name, engine, stream)
    return found.copied(found.copies[(tasks or len(stream)) - 1], engine)


def logits(learner: Learner, images: ImageSet) -> torch.Tensor:
    return Predictor(learner).logits(images)


def test_images(stream: Stream) -> ImageSet:
    last = stream.tasks[-1].test.source
    parts = [task.test for task in stream.tasks]
    return ImageSet(
        last, np.concatenate([p.indices for p in parts]), np.concatenate([p.labels for p in parts])
    )


test_images.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def fresh_engine(backbone: Backbone) -> Engine:
    return Engine(copy.deepcopy(backbone), Transforms.raw(backbone.pixels), seed=7, batch_size=16)


@pytest.mark.parametrize("name", NAMES)
def test_learns_above_chance_and_leaves_the_base_alone(name: str, engine: Engine, stream: Stream) -> None:
    found = watched(name, engine, stream)
    assert found.shapes == [(len(task.test), task.classes.stop) for task in stream.tasks]
    images = test_images(stream)
    learner, _ = learned(name, engine, stream)
    accuracy = np.mean(logits(learner, images).argmax(1).numpy() == images.labels)
    assert accuracy > 1.3 / 6
    assert found.before == found.after == tensors_hash(engine.backbone.vit.state_dict())
    assert not any(p.requires_grad or p.grad is not None for p in found.engine.backbone.vit.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["B3 Inc2", "B0 Inc4"])
def test_uneven_tasks(name: str, protocol: str, engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, protocol)
    learner, _ = learn(name, engine, stream, epochs=1, align_epochs=2)  # how well it learns is not asked here
    assert learner.task_sizes == [len(task.classes) for task in stream.tasks]
    assert logits(learner, stream.tasks[0].test).shape[1] == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_does_not_depend_on_its_neighbours(name: str, engine: Engine, stream: Stream) -> None:
    learner, _ = learned(name, engine, stream)
    images = test_images(stream)
    together = logits(learner, images)
    order = np.random.RandomState(0).permutation(len(images))
    shuffled = logits(learner, images.take(order))
    alone = torch.cat([logits(learner, images.take([i])) for i in range(0, len(images), 5)])
    for ours, theirs in ((shuffled, together[order]), (alone, together[::5])):
        assert (ours - theirs).abs().max() <= 1e-5 * max(1.0, float(theirs.abs().max()))
        assert torch.equal(ours.argmax(1), theirs.argmax(1))


@pytest.mark.parametrize("name", NAMES)
def test_same_seed_gives_the_same_learner_and_another_seed_another(
    name: str, engine: Engine, fresh_engine: Engine, stream: Stream
) -> None:
    first, _ = learned(name, engine, stream)
    torch.manual_seed(12345)  # what ran before must not matter
    second, _ = learn(name, fresh_engine, stream)
    images = test_images(stream)
    assert torch.equal(logits(first, images), logits(second, images))
    if sum(first.costs().trained):
        fresh_engine.seed = 8
        third, _ = learn(name, fresh_engine, stream)
        assert not torch.equal(logits(first, images), logits(third, images))


@pytest.mark.parametrize("name", NAMES)
def test_saved_and_loaded_it_is_the_same_and_can_go_on(
    name: str, engine: Engine, fresh_engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    learner, memory = make(name, engine)
    directory = ModelDirectory(tmp_path / "model")
    for task in stream.tasks[:2]:
        learner.learn(task, memory)
        picture = {"thumbnails/0000": {"jpeg": torch.zeros(9, dtype=torch.uint8)}}
        fields = class_fields(stream, task.index + 1)
        save_model(
            directory, learner, fields, memory, more=picture, kept_images={"0": "thumbnails/0000"}
        )  # files of others are nothing to the method
    again = None if memory is None else Memory(3, seed=7)
    loaded, manifest = restore_learner(ModelDirectory(tmp_path / "model"), fresh_engine, again)
    images = test_images(replace(stream, tasks=stream.tasks[:2]))
    assert torch.equal(logits(learner, images), logits(loaded, images))
    assert manifest.class_names == list(stream.class_names[:4])
    if loaded.kind == "ceiling":  # images are in no model directory: they have to be shown again
        with pytest.raises(EaseError, match="revisit"):
            loaded.learn(stream.tasks[2], again)
        for task in stream.tasks[:2]:
            loaded.revisit(task)
    learner.learn(stream.tasks[2], memory)
    loaded.learn(stream.tasks[2], again)
    images = test_images(stream)
    assert torch.equal(logits(learner, images), logits(loaded, images))


@pytest.mark.parametrize("name", NAMES)
def test_declared_parameters_are_the_real_ones(name: str, engine: Engine, stream: Stream) -> None:
    learner, _ = learned(name, engine, stream)
    costs = learner.costs()
    assert costs.trained == watched(name, engine, stream).trained
    files, _ = learner.state()
    weights = [v for name, part in files.items() for n, v in part.items() if v.is_floating_point()]
    assert costs.stored == sum(v.numel() for v in weights)


@pytest.mark.parametrize("name", NAMES)
def test_never_sees_test_images_nor_past_or_future_tasks(name: str, engine: Engine, stream: Stream) -> None:
    found = watched(name, engine, stream)  # each look would have been an error
    assert len(found.tasks) == len(stream)
    assert all(isinstance(task.test.source, Poison) for task in found.tasks)
    past = [isinstance(task.train.source, Poison) for task in found.tasks]
    assert past == [found.copies[0][0].kind != "ceiling"] * len(stream)


@pytest.mark.parametrize("name", NAMES)
def test_memory_is_for_those_who_declare_it(name: str, engine: Engine, stream: Stream) -> None:
    learner, memory = make(name, engine)
    wrong = Memory(3) if memory is None else None
    if learner.kind == "ceiling":
        pytest.skip("a ceiling may look at anything")
    with pytest.raises(EaseError, match="exemplar"):
        learner.learn(stream.tasks[0], wrong)


@pytest.mark.parametrize("name", NAMES)
def test_tasks_come_in_order(name: str, engine: Engine, stream: Stream) -> None:
    learner, memory = make(name, engine)
    with pytest.raises(EaseError, match="does not follow"):
        learner.learn(stream.tasks[1], memory)


# --- capabilities: what a method claims it can do works, and what it does not claim is refused ---


def reloaded(learner: Learner, memory: Memory | None, stream: Stream, engine: Engine, path: Path) -> Learner:
    """The learner after saving and loading."""
    fields = class_fields(stream, len(stream))[: learner.classes]
    save_model(ModelDirectory(path), learner, fields, memory)
    return restore_learner(ModelDirectory(path), engine, None if memory is None else Memory(3, seed=7))[0]


@pytest.mark.parametrize("name", NAMES)
def test_extending_known_classes(name: str, engine: Engine, stream: Stream, tmp_path: Path) -> None:
    learner, memory = learned(name, engine, stream)
    images, more = test_images(stream), stream.tasks[0].test
    if not isinstance(learner, Extendable):
        with pytest.raises(EaseError, match=f"a model of '{learner.name}' cannot learn more images .* only"):
            extendable(learner)
        return
    before = logits(learner, images)
    extendable(learner).extend(more)
    after = logits(learner, images)
    assert after.shape == before.shape
    assert after.isfinite().all()
    assert not torch.equal(after[:, list(stream.tasks[0].classes)], before[:, list(stream.tasks[0].classes)])
    assert torch.equal(logits(reloaded(learner, memory, stream, engine, tmp_path / "m"), images), after)
    if learner.extends_exactly:
        together, _ = make(name, engine)
        first = stream.tasks[0]
        joint = joined(first.train, more)
        for task in (replace(first, train=joint), *stream.tasks[1:]):
            together.learn(task)
        assert torch.allclose(logits(together, images), after, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_forgetting_a_class(name: str, engine: Engine, stream: Stream, tmp_path: Path) -> None:
    learner, memory = learned(name, engine, stream, tasks=2)
    if not isinstance(learner, Forgettable):
        with pytest.raises(EaseError, match=f"a model of '{learner.name}' cannot forget a class: only"):
            forgettable(learner)
        return
    if name == "ease pis":
        with pytest.raises(EaseError, match="no class can be forgotten"):
            learner.forget(1)
        return
    done = learner.forget(1)
    assert 0 <= done.moved <= 2
    assert learner.task_sizes == [1, 2]
    images = test_images(replace(stream, tasks=stream.tasks[:2]))
    found = logits(learner, images)
    assert found.shape == (len(images), 3)
    assert found.isfinite().all()
    assert torch.equal(logits(reloaded(learner, memory, stream, engine, tmp_path / "m"), images), found)


@pytest.mark.parametrize("name", NAMES)
def test_predicting_within_a_budget(name: str, engine: Engine, stream: Stream) -> None:
    learner, _ = learned(name, engine, stream)
    pixels = engine.pixels(stream.tasks[0].test)
    passes, exact = learner.passes_per_image(), learner.logits(pixels)
    set_budget(learner, passes)
    assert torch.equal(learner.logits(pixels), exact)
    if passes == 1:
        return
    if not isinstance(learner, Budgeted):
        with pytest.raises(EaseError, match=f"{learner.name} takes {passes} passes per image, not 1"):
            set_budget(learner, 1)
        return
    set_budget(learner, 1)
    assert learner.passes_per_image() == 1
    before = engine.features_of_pixels
    made = 0

    def counting(some: torch.Tensor, tunings: list[object], *rest: object) -> torch.Tensor:
        nonlocal made
        made += len(some) * len(tunings)
        return before(some, tunings, *rest)  # type: ignore[arg-type]

    engine.features_of_pixels = counting  # type: ignore[method-assign,assignment]
    learner.logits(pixels)
    assert made == len(pixels)
    set_budget(learner, None)
    assert torch.equal(learner.logits(pixels), exact)


@pytest.mark.parametrize("name", NAMES)
def test_compacting(name: str, engine: Engine, stream: Stream, tmp_path: Path) -> None:
    learner, memory = learned(name, engine, stream)
    if not isinstance(learner, Compactable):
        with pytest.raises(EaseError, match=f"a model of '{learner.name}' cannot be compacted: only"):
            compactable(learner)
        return
    images = test_images(stream)
    before = logits(learner, images)
    small = learner.compacted(Compaction("fp16"))
    assert torch.equal(logits(learner, images), before), "the learner itself is left as it is"
    found = logits(small, images)
    assert torch.allclose(found, before, atol=1e-2)
    size = [
        sum(v.numel() * v.element_size() for part in one.state()[0].values() for v in part.values())
        for one in (small, learner)
    ]
    assert size[0] < 0.7 * size[1]
    assert torch.equal(logits(reloaded(small, memory, stream, engine, tmp_path / "m"), images), found)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_said_of_shared_trainings_and_of_subspaces(name: str, engine: Engine, stream: Stream) -> None:
    learner, _ = learned(name, engine, stream)
    if isinstance(learner, SharesTrainings):
        settings = learner.settings.model_dump()
        key = learner.shared_trainings(settings)
        assert key == learner.shared_trainings({**settings, "alpha": 0.7})
        assert key != learner.shared_trainings({**settings, "rank": 5})
    if isinstance(learner, PrototypesPerSubspace):
        pairs = learner.prototypes_per_subspace()
        assert len(pairs) == len(stream)
        assert {rows.shape for _, rows in pairs} == {(6, engine.backbone.dim)}


@pytest.mark.parametrize("name", methods())
def test_its_class_is_named_like_the_method_and_can_be_imported(name: str) -> None:
    method = methods()[name]
    assert method.__name__.lower() == name.replace("-", "")
    assert not re.search("[A-Z]{2}", method.__name__)
    assert getattr(importlib.import_module("ease.methods"), method.__name__) is method
    assert method.title.lower().replace(" ", "-") == name
