"""What every registered method must do. A new method is in this suite as soon as it is registered."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ease.backbone import Backbone, tensors_hash
from ease.errors import EaseError
from ease.experiments.predictor import Evaluator
from ease.methods import Learner, class_fields, methods, restore_learner, save_model
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.protocol import make_stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.memory import Memory

QUICK = {
    "epochs": 6,
    "lr": 0.05,
    "batch_size": 12,
    "rank": 4,
    "projection": 64,
    "sigma": 8.0,
    "optimizer": "sgd",
}
# A whole network: distillation, which adds to the gradient, diverges at an adapter's rate.
FULL = {"lr": 0.01}
# A setting that changes what is stored, or what the logits are made of, is a method of its own to this suite.
VARIANTS = {
    **{f"ease {kind}": ("ease", {"synthesis": kind}) for kind in ("pis", "lr", "ot")},
    "layup first": ("layup", {"adapt": "first"}),
}
NAMES = [*methods(), *VARIANTS]


def make(name: str, engine: Engine) -> tuple[Learner, Memory | None]:
    name, variant = VARIANTS.get(name, (name, {}))
    method = methods()[name]
    quick = {**QUICK, **FULL} if method.tuning == "full" else QUICK
    quick = {**quick, **variant}
    settings = {key: value for key, value in quick.items() if key in method.Settings.model_fields}
    memory = Memory(3, seed=engine.seed) if method.kind == "exemplar-based" else None
    return method(engine, method.Settings.model_validate(settings)), memory


def learn(name: str, engine: Engine, stream: Stream) -> tuple[Learner, Memory | None]:
    learner, memory = make(name, engine)
    for task in stream.tasks:
        learner.learn(task, memory)
    return learner, memory


def logits(learner: Learner, images: ImageSet) -> torch.Tensor:
    return Evaluator().logits(learner, [images])


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
    before = tensors_hash(engine.backbone.vit.state_dict())
    learner, memory = make(name, engine)
    for task in stream.tasks:
        learner.learn(task, memory)
        assert logits(learner, task.test).shape == (len(task.test), task.classes.stop)
    images = test_images(stream)
    accuracy = np.mean(logits(learner, images).argmax(1).numpy() == images.labels)
    assert accuracy > 1.3 / 6
    assert tensors_hash(engine.backbone.vit.state_dict()) == before
    assert not any(p.requires_grad or p.grad is not None for p in engine.backbone.vit.parameters())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("protocol", ["B3 Inc2", "B0 Inc4"])
def test_uneven_tasks(name: str, protocol: str, engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, protocol)
    learner, _ = learn(name, engine, stream)
    assert learner.task_sizes == [len(task.classes) for task in stream.tasks]
    assert logits(learner, stream.tasks[0].test).shape[1] == 6


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_does_not_depend_on_its_neighbours(name: str, engine: Engine, stream: Stream) -> None:
    learner, _ = learn(name, engine, stream)
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
    first, _ = learn(name, engine, stream)
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
        save_model(directory, learner, class_fields(stream, task.index + 1), memory)
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
    trained: list[int] = []
    fit = engine.fit

    def counting(module: torch.nn.Module, *args: object, **kwargs: object) -> list[float]:
        trained[-1] += sum(p.numel() for p in module.parameters() if p.requires_grad)
        return fit(module, *args, **kwargs)  # type: ignore[arg-type]

    engine.fit = counting  # type: ignore[method-assign]
    learner, memory = make(name, engine)
    for task in stream.tasks:
        trained.append(0)
        learner.learn(task, memory)
    costs = learner.costs()
    assert costs.trained == trained
    files, _ = learner.state()
    weights = [v for name, part in files.items() for n, v in part.items() if v.is_floating_point()]
    assert costs.stored == sum(v.numel() for v in weights)


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


@pytest.mark.parametrize("name", NAMES)
def test_never_sees_test_images_nor_past_or_future_tasks(name: str, engine: Engine, stream: Stream) -> None:
    learner, memory = make(name, engine)
    for now in range(len(stream)):
        task = stream.tasks[now]
        poisoned = replace(task, test=replace(task.test, source=Poison(len(task.test))))
        learner.learn(poisoned, memory)
        if learner.kind != "ceiling":  # which may look back, yet not at test images nor ahead
            # From here on the task is the past: whoever kept a reference to its images finds them gone.
            object.__setattr__(task.train, "source", Poison(len(task.train)))


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
