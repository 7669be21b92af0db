"""Settings that earlier versions stored are read; nobody can give them any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from ease.config import RunConfig, resolve
from ease.errors import EaseError
from ease.methods import class_fields, current_settings, restore_learner, save_model
from ease.methods._older_settings import REMOVED_SETTINGS
from ease.methods.ease import Ease, EaseSettings
from ease.storage.manifest import ModelState
from ease.storage.model_directory import ModelDirectory
from ease.streams import Stream
from ease.training.engine import Engine

UNUSED = {"start": "fresh", "drop_patches": 0.0, "hardest": 1.0, "head": "random"}
USED = {"start": "previous", "drop_patches": 0.2, "hardest": 0.85, "head": "means", "schedule": "one-cycle"}


def model_of_an_earlier_version(
    engine: Engine, stream: Stream, folder: Path, more: dict[str, Any]
) -> tuple[Ease, ModelDirectory]:
    learner = Ease(engine, EaseSettings(epochs=1, batch_size=12, rank=4))
    learner.learn(stream.tasks[0])
    directory = ModelDirectory(folder)
    save_model(directory, learner, class_fields(stream, 1))
    generation = directory.load()
    kept = {key: getattr(generation.manifest, key) for key in ModelState.model_fields}
    state = ModelState(**{**kept, "settings": {**generation.manifest.settings, **more}})
    directory.commit(state, generation.files)
    return learner, ModelDirectory(folder)


@pytest.mark.parametrize("more", [UNUSED, USED], ids=["defaults", "other values"])
def test_a_saved_model_opens_predicts_the_same_and_learns_on(
    more: dict[str, Any], engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    learner, directory = model_of_an_earlier_version(engine, stream, tmp_path / "model", more)
    engine.ledger.notes.clear()
    loaded, _ = restore_learner(directory, engine)
    pixels = engine.pixels(stream.tasks[0].test)
    assert torch.equal(loaded.logits(pixels), learner.logits(pixels))
    assert loaded.settings == learner.settings
    named = [note.split("'")[1] for note in engine.ledger.notes]
    assert sorted(named) == sorted(more if more is USED else {})
    loaded.learn(stream.tasks[1])
    assert loaded.classes == 4


def test_an_unknown_setting_in_a_saved_model_is_still_an_error(
    engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    _, directory = model_of_an_earlier_version(engine, stream, tmp_path / "model", {"strat": "fresh"})
    with pytest.raises(EaseError, match="does not make sense"):
        restore_learner(directory, engine)


@pytest.mark.parametrize("method", list(REMOVED_SETTINGS))
def test_a_stored_run_configuration_is_read(method: str) -> None:
    config, _ = resolve({"method": method})
    stored = json.loads(config.model_dump_json())
    stored["settings"] |= UNUSED
    assert RunConfig.model_validate(stored) == config


@pytest.mark.parametrize("text", ["hardest=1.0", "head=random", "start=fresh", "drop_patches=0"])
def test_nobody_can_give_them_any_more(text: str) -> None:
    with pytest.raises(EaseError, match=f"unknown setting for method 'ease' '{text.partition('=')[0]}'"):
        resolve({}, sets=[text])


def test_a_setting_of_the_same_name_of_another_method_is_left_alone() -> None:
    assert current_settings("my-own", {"head": "linear"}) == ({"head": "linear"}, [])
