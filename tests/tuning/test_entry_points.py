"""Tunings of other packages: found, used, and kept from affecting the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ease.errors import EaseError
from ease.methods import class_fields, restore_learner, save_model
from ease.methods.ease import Ease, EaseSettings
from ease.storage.model_directory import ModelDirectory
from ease.streams import Stream
from ease.training.engine import Engine
from ease.tuning import TUNINGS, build_tuning, faults, find_tuning, registry, tunings
from tests.test_cli import ease, refused

WORKING = '''
import torch
from torch import nn
from ease.backbone import Tuning
from ease.backbone.ports import Departure


class Shift(Tuning):
    """A learned vector beside each MLP."""

    kind = {kind!r}
    departs = Departure.BRANCH

    def __init__(self, shape, scale=1.0, generator=None):
        super().__init__()
        self.scale = scale
        self.shift = nn.Parameter(torch.zeros(shape.depth, shape.dim))

    def branch(self, layer, stream, normed):
        return self.scale * self.shift[layer].expand_as(stream)

    def config(self):
        return {{"scale": self.scale}}
'''


def install(site: Path, package: str, entry: str, code: str) -> None:
    """Write a module and the `dist-info` that names its tuning, as pip would."""
    (site / f"{entry.partition('=')[2].strip().partition(':')[0]}.py").write_text(code)
    info = site / f"{package.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ease.tunings]\n{entry}\n")


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    site.mkdir()
    install(site, "tune-shift", "shift = tune_shift:Shift", WORKING.format(kind="shift"))
    install(site, "tune-broken", "broken = tune_broken:Shift", "import no_such_library\n")
    install(site, "tune-clash", "lora = tune_clash:Shift", WORKING.format(kind="lora"))
    install(site, "tune-first", "twin = tune_first:Shift", WORKING.format(kind="twin"))
    install(site, "tune-second", "twin = tune_second:Shift", WORKING.format(kind="twin"))
    install(site, "tune-other", "other = tune_other:Shift", WORKING.format(kind="another"))
    install(site, "tune-odd", "odd = tune_odd:Odd", "Odd = dict\n")
    monkeypatch.syspath_prepend(str(site))
    registry._discovered.cache_clear()
    yield
    monkeypatch.undo()
    registry._discovered.cache_clear()


@pytest.mark.usefixtures("_installed")
def test_a_working_one_is_found_and_each_other_one_has_its_reason() -> None:
    assert list(tunings()) == [*TUNINGS, "shift"]
    reasons = faults()
    assert set(reasons) == {"broken", "lora", "twin", "other", "odd"}
    assert "package 'tune-broken' cannot be used: ModuleNotFoundError" in reasons["broken"]
    assert "'lora' is taken by ease.tuning.lora.Lora" in reasons["lora"]
    assert "'twin' is taken by tune_" in reasons["twin"]
    assert "its name is 'another'" in reasons["other"]
    assert "must be a subclass of ease.backbone.Tuning" in reasons["odd"]


@pytest.mark.usefixtures("_installed")
def test_one_that_cannot_be_used_is_refused_and_our_names_stay_ours(tmp_path: Path) -> None:
    assert find_tuning("lora") is TUNINGS["lora"]
    for name in ("broken", "twin"):
        with pytest.raises(EaseError, match=f"tuning '{name}' of package"):
            find_tuning(name)
    with pytest.raises(EaseError, match="did you mean 'shift'"):
        find_tuning("shfit")
    words = ["run", "--dataset", "digits", "--protocol", "B0 Inc5", "--set", "tuning=broken"]
    assert "no_such_library" in refused(ease(*words, "--out", tmp_path / "run"))
    assert not (tmp_path / "run").exists()
    notes = ease("methods").stderr
    assert "tuning 'broken' of package 'tune-broken' cannot be used" in notes


@pytest.mark.usefixtures("_installed")
def test_ease_learns_with_it_and_a_saved_model_asks_for_it(
    engine: Engine, stream: Stream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EaseSettings(tuning="shift", scale=0.5, epochs=1, lr=0.05, batch_size=12)
    learner = Ease(engine, settings)
    for task in stream.tasks[:2]:
        learner.learn(task)
    assert learner.tunings[0].config() == {"scale": 0.5}
    assert any(value.any() for value in learner.tunings[0].state_dict().values())
    save_model(ModelDirectory(tmp_path / "model"), learner, class_fields(stream, 2))
    loaded, _ = restore_learner(ModelDirectory(tmp_path / "model"), engine)
    pixels = engine.pixels(stream.tasks[0].test)
    assert torch.equal(loaded.logits(pixels), learner.logits(pixels))
    monkeypatch.setattr(registry, "_discovered", lambda: ({}, {}))
    with pytest.raises(EaseError, match="shift"):
        restore_learner(ModelDirectory(tmp_path / "model"), engine)


def test_an_unknown_kind_names_the_nearest(engine: Engine) -> None:
    with pytest.raises(EaseError, match="unknown tuning 'adaptor': did you mean 'adapter'"):
        build_tuning("adaptor", engine.backbone.shape)
