"""The examples in docstrings of methods and of what they are made of run and print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

PACKAGES = ("ease.methods", "ease.heads", "ease.tuning", "ease.training", "ease.presets")


def modules() -> list[str]:
    found = list(PACKAGES)
    for name in PACKAGES:
        package = importlib.import_module(name)
        found += [module.name for module in pkgutil.walk_packages(package.__path__, f"{name}.")]
    return found


@pytest.mark.parametrize("name", modules())
def test_examples_print_what_they_say(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    documented = {
        test.name
        for name in modules()
        for test in finder.find(importlib.import_module(name))
        if test.examples
    }
    for name in (
        "ease.methods",
        "ease.methods._registry.find_method",
        "ease.heads.prototypes.class_means",
        "ease.heads.whitened.WhitenedHead",
        "ease.tuning.registry.build_tuning",
        "ease.presets.preset_place",
    ):
        assert name in documented
