"""The examples in the docstrings of `ease.streams` are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import ease.streams

MODULES = [m.name for m in pkgutil.walk_packages(ease.streams.__path__, "ease.streams.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.parametrize(
    "name",
    [
        "ImageSet",
        "as_image_set",
        "collect_images",
        "dataset_list",
        "load_dataset",
        "make_stream",
        "task_sizes",
    ],
)
def test_public_entry_points_have_an_example(name: str) -> None:
    assert ">>>" in (getattr(ease.streams, name).__doc__ or "")
