"""The small world most tests live in: the golden 3-block ViT and some digits."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # children of tests inherit it; two threads each would crawl

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

# The process that hands out the tests reads this file, too, before it starts the others: it need not wait for torch.
if TYPE_CHECKING:
    from ease.backbone import Backbone
    from ease.streams import Dataset, Stream
    from ease.training.engine import Engine

GOLDEN = Path(__file__).parent / "golden"

FIRST = (
    # They fork hundreds of times, and a fork takes the longer the more memory the process has gathered.
    "storage/test_model_directory.py",
    "faults/test_nth_failure.py",
    "experiments/test_run.py",
    # These take longest. A file that takes a minute must not be the last one that is begun.
    "methods/test_conformance.py",
    # A browser leaves a core half idle: beside each of its files runs one that computes.
    "app/page/test_teach.py",
    "test_distributed.py",
    "app/page/test_look.py",
    "app/test_export.py",
    "app/page/test_classes.py",
    "test_benchmarks.py",
    "app/page/test_inbox.py",
    "app/page/test_everyone.py",
    "experiments/test_grid.py",
    "app/page/",
    "app/test_estimator.py",
    "app/test_server.py",
    "app/test_bulk.py",
    "app/test_compact_strata.py",
    "app/test_classifier.py",
    "app/test_bulk_folder.py",
    "test_paths.py",
    "app/test_replicas.py",
    "test_cli.py",
    "faults/",
    "app/",
    "experiments/",
)
"""Where the tests begin that are started first, so that all processes of `make test` end together."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with those that are named above; the others keep their order."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = item.path.relative_to(here).as_posix() if here in item.path.parents else ""
        return next((number for number, start in enumerate(FIRST) if path.startswith(start)), len(FIRST))

    items.sort(key=place)


@pytest.fixture(scope="session", autouse=True)
def _quick_disk() -> Iterator[None]:
    """Tens of thousands of syncs take minutes on a slow disk, and only a power cut could tell the difference.

    What is synced, and in which order, is tested in `storage/test_files.py` and `storage/test_model_directory.py`.
    """
    real, os.fsync = os.fsync, lambda handle: None  # type: ignore[assignment,misc]
    yield
    os.fsync = real


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    return GOLDEN


@pytest.fixture(scope="session")
def common() -> dict[str, np.ndarray]:
    with np.load(GOLDEN / "common.npz") as content:
        return {name: content[name] for name in content.files}


def small_backbone(common: dict[str, np.ndarray]) -> Backbone:
    import torch

    from ease.backbone import Pixels
    from ease.backbone.zoo import backbone_from_state

    state = {
        n.removeprefix("backbone/"): torch.from_numpy(v)
        for n, v in common.items()
        if n.startswith("backbone/")
    }
    pixels = Pixels(32, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    return backbone_from_state(state, img_size=32, patch_size=8, heads=3, name="golden", pixels=pixels)


@pytest.fixture
def backbone(common: dict[str, np.ndarray]) -> Backbone:
    return small_backbone(common)


@pytest.fixture
def engine(backbone: Backbone) -> Engine:
    from ease.streams.transforms import Transforms
    from ease.training.engine import Engine

    return Engine(backbone, Transforms.raw(backbone.pixels), seed=7, batch_size=16)


@pytest.fixture(scope="session")
def six_digits(common: dict[str, np.ndarray]) -> Dataset:
    """Six classes, 12 train and 8 test images each."""
    from ease.streams import Augmentation, Dataset, ImageSet

    parts = {}
    for part, count in (("train", 12), ("test", 8)):
        images = ImageSet.of_arrays(common[f"data/x_{part}"], common[f"data/y_{part}"])
        parts[part] = images.of_classes(range(6)).limit(count)
    return Dataset("six-digits", tuple("012345"), parts["train"], parts["test"], Augmentation(flip=False))


@pytest.fixture
def stream(six_digits: Dataset) -> Stream:
    """Three tasks of two classes."""
    from ease.streams.protocol import make_stream

    return make_stream(six_digits, "B0 Inc2")
