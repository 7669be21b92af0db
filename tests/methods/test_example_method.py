"""The guide's example is a method like any other: it passes the whole conformance suite."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ease.methods import Learner
from ease.methods import _registry as registry
from ease.streams import Stream
from ease.training.engine import Engine
from tests.methods import test_conformance as conformance

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_method.py"
CHECKS = [
    check
    for name, check in vars(conformance).items()
    if name.startswith("test_") and getattr(check, "__test__", True)
]

fresh_engine = conformance.fresh_engine


@pytest.fixture
def whitened(monkeypatch: pytest.MonkeyPatch) -> type[Learner]:
    """The example's learner, registered for as long as a test runs."""
    registry.methods()
    for table in ("_methods", "_aliases"):
        monkeypatch.setattr(registry, table, dict(getattr(registry, table)))
    spec = importlib.util.spec_from_file_location("my_method", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return registry.register()(module.Whitened)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("test_"))
def test_the_example_conforms(
    check: Callable[..., None], whitened: type[Learner], request: pytest.FixtureRequest
) -> None:
    given: dict[str, Any] = {"name": whitened.name, "protocol": "B3 Inc2"}
    wanted = inspect.signature(check).parameters
    check(**{name: given.get(name) or request.getfixturevalue(name) for name in wanted})


def test_fully_shrunk_it_is_the_nearest_class_mean(
    whitened: type[Learner], engine: Engine, stream: Stream
) -> None:
    learner: Any = whitened(engine, whitened.Settings.model_validate({"shrinkage": 1.0}))
    for task in stream.tasks:
        learner.learn(task)
    images = conformance.test_images(stream)
    features = engine.features(images, [None])[0]
    nearest = torch.cdist(features, torch.cat(learner.means)).argmin(dim=1)
    assert torch.equal(conformance.logits(learner, images).argmax(dim=1), nearest)


def test_the_guide_shows_the_example_as_it_is() -> None:
    guide = (ROOT / "docs" / "tutorials" / "add-a-method.md").read_text(encoding="utf-8")
    assert f"```python\n{EXAMPLE.read_text(encoding='utf-8')}```" in guide
