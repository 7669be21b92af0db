"""Finished trainings are found again only by those who would train exactly the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from ease.methods.ease import EaseSettings
from ease.streams import ImageSet
from ease.training.fit import Training
from ease.training.trainings import Finished, Trainings, training_key


def images(label: int = 0, shade: int = 10) -> ImageSet:
    return ImageSet.of_arrays(np.full((2, 4, 4, 3), shade, np.uint8), [label, 1])


def module(weight: float = 1.0) -> nn.Linear:
    made = nn.Linear(2, 2)
    nn.init.constant_(made.weight, weight)
    nn.init.zeros_(made.bias)
    return made


BASE: dict[str, Any] = {
    "module": module(),
    "images": images(),
    "training": Training(),
    "circumstances": {"seed": 1},
}


@pytest.mark.parametrize(
    "change",
    [
        {"module": module(2.0)},
        {"images": images(label=1)},
        {"images": images(shade=11)},
        {"training": Training(lr=0.02)},
        {"training": Training(epochs=21)},
        {"circumstances": {"seed": 2}},
    ],
)
def test_whatever_decides_the_result_is_in_the_key(change: dict[str, Any]) -> None:
    assert training_key(**{**BASE, **change}) != training_key(**BASE)


def test_settings_that_play_no_part_in_training_are_not_in_the_key() -> None:
    one, other = EaseSettings(alpha=0.1), EaseSettings(alpha=0.5, reweight="none")
    assert training_key(**{**BASE, "training": one}) == training_key(**{**BASE, "training": other})


def test_a_training_is_found_as_it_was_kept(tmp_path: Path) -> None:
    trainings, tensors = Trainings(tmp_path / "new"), {"a": torch.rand(3)}
    assert trainings.find("k") is None
    trainings.keep("k", Finished(tensors, [1.5, 0.5], 3.25))
    found = trainings.find("k")
    assert found is not None
    assert torch.equal(found.tensors["a"], tensors["a"])
    assert (found.losses, found.seconds) == ([1.5, 0.5], 3.25)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\xff" * 200])
def test_a_damaged_file_counts_as_none(tmp_path: Path, damage: bytes) -> None:
    trainings = Trainings(tmp_path)
    trainings.keep("k", Finished({"a": torch.rand(3)}, [1.0], 1.0))
    next(tmp_path.iterdir()).write_bytes(damage)
    assert trainings.find("k") is None
