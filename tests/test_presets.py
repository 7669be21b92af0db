"""Presets: former names, and methods that take the settings of another one."""

from __future__ import annotations

import pytest

from ease.config import resolve
from ease.presets import ALIASES, preset_list
from tests.test_cli import ease

PLACES = [
    ("released", "cub200", "B0 Inc10", "vit_base_patch16_224.augreg_in21k_ft_in1k"),
    ("released", "omnibenchmark", "B0 Inc30", "vit_base_patch16_224.augreg_in21k"),
    ("paper", "imagenet-r", "B0 Inc20", "vit_base_patch16_224.augreg_in21k"),
    ("few-images", "glyphs", "B0 Inc6", "ease-vit"),
]


@pytest.mark.parametrize(("preset", "dataset", "protocol", "backbone"), PLACES)
def test_the_upper_bound_has_the_settings_of_ease(
    preset: str, dataset: str, protocol: str, backbone: str
) -> None:
    place = {"dataset": dataset, "protocol": protocol, "backbone": backbone}
    ours, notes = resolve({**place, "method": "upper-bound"}, preset=preset)
    theirs, their_notes = resolve({**place, "method": "ease"}, preset=preset)
    assert ours.settings == theirs.settings
    assert ours.settings != resolve({"method": "ease"})[0].settings
    assert notes == their_notes


@pytest.mark.parametrize("old", ["small", "bench-small"])
def test_a_former_name_resolves_and_is_not_listed(old: str) -> None:
    assert ALIASES[old] == "few-images"
    assert old not in preset_list()
    found, _ = resolve({"method": "ease"}, preset=old)
    now, _ = resolve({"method": "ease"}, preset="few-images")
    assert found.settings == now.settings
    assert (found.settings["epochs"], found.settings["lr"], found.settings["sigma"]) == (4, 0.2, 10.0)
    assert "few-images" in ease("presets", old).stdout
