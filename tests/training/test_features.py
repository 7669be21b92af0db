"""The feature store: computed once, kept within its budget, found again, never trusted when damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ease.experiments.predictor import Predictor
from ease.methods.ease import Ease, EaseSettings
from ease.streams import Stream
from ease.training.engine import Engine
from ease.training.features import FeatureKey, FeatureStore

KEY = FeatureKey("transform", "backbone", "tuning", "32-true", "pooled")


def digests(count: int, start: int = 0) -> list[str]:
    return [f"{i:032x}" for i in range(start, start + count)]


@pytest.mark.parametrize("memory", [0, 10**6])
def test_features_come_back_bit_for_bit_also_from_disk(memory: int, tmp_path: Path) -> None:
    features = torch.randn(7, 4)
    for store in (FeatureStore(None, memory), FeatureStore(tmp_path, memory)):
        assert store.get(KEY, digests(7)) is None
        store.put(KEY, digests(7), features)
        store.put(KEY, digests(2, start=100), features[:2] + 1)
        found = store.get(KEY, digests(7)[::-1])
        assert found is not None
        assert torch.equal(found, features.flip(0))
        assert store.get(KEY, [*digests(7), "ff" * 16]) is None
        if store.folder is not None:
            assert store.used <= memory
    again = FeatureStore(tmp_path, memory).get(KEY, digests(2, start=100))
    assert again is not None
    assert torch.equal(again, features[:2] + 1)


@pytest.mark.parametrize("field", ["transform", "backbone", "tuning", "precision", "reading"])
def test_whatever_a_feature_depends_on_names_another_shelf(field: str, tmp_path: Path) -> None:
    from dataclasses import replace

    store = FeatureStore(tmp_path)
    store.put(KEY, digests(2), torch.zeros(2, 3))
    assert store.get(replace(KEY, **{field: "other"}), digests(2)) is None


def test_two_runs_that_share_a_folder_read_back_their_own_features(tmp_path: Path) -> None:
    key = FeatureKey("t", "b", "tuning", "32", "pooled")
    one, two = FeatureStore(tmp_path, memory=0), FeatureStore(tmp_path, memory=0)
    names = [[bytes([n, i] + [0] * 14).hex() for i in range(3)] for n in (1, 2)]
    rows = [torch.full((3, 4), float(n)) for n in (1, 2)]
    for store in (one, two):  # both know of nothing yet
        assert store.get(key, names[0]) is None
    one.put(key, names[0], rows[0])
    two.put(key, names[1], rows[1])
    for store, own, features in ((one, names[0], rows[0]), (two, names[1], rows[1])):
        found = store.get(key, own)
        assert found is not None
        assert torch.equal(found, features)
    both = FeatureStore(tmp_path, memory=0)
    for own, features in zip(names, rows, strict=True):
        found = both.get(key, own)
        assert found is not None
        assert torch.equal(found, features)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_block_is_computed_again_not_believed(damage: str, tmp_path: Path) -> None:
    FeatureStore(tmp_path).put(KEY, digests(3), torch.randn(3, 4))
    block = next(tmp_path.rglob("*.npy"))
    whole = block.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    block.write_bytes({"cut": whole[:-5], "flipped": flipped, "empty": b"", "text": b"text"}[damage])
    store = FeatureStore(tmp_path)
    assert store.get(KEY, digests(3)) is None
    store.put(KEY, digests(3), torch.ones(3, 4))
    for opened in (store, FeatureStore(tmp_path)):
        found = opened.get(KEY, digests(3))
        assert found is not None
        assert torch.equal(found, torch.ones(3, 4))


def test_each_test_image_passes_each_frozen_subspace_once(engine: Engine, stream: Stream) -> None:
    made: list[int] = []
    features = engine.backbone.features

    def counting(images: torch.Tensor, tunings: list[object], reading: str = "pooled") -> torch.Tensor:
        made.append(len(images) * len(tunings))
        return features(images, tunings, reading)  # type: ignore[arg-type]

    learner = Ease(engine, EaseSettings(epochs=1, rank=2, batch_size=12))
    predictor = Predictor(learner, FeatureStore())
    for number, task in enumerate(stream.tasks, start=1):
        learner.learn(task)
        engine.backbone.features = counting  # type: ignore[method-assign]
        predictor.logits([t.test for t in stream.tasks[:number]])
        engine.backbone.features = features  # type: ignore[method-assign]
    per_task = len(stream.tasks[0].test)
    assert sum(made) == predictor.computed == per_task * 3**2


def test_stored_and_fresh_logits_are_equal(engine: Engine, stream: Stream) -> None:
    learner = Ease(engine, EaseSettings(epochs=1, rank=2, batch_size=12))
    learner.learn(stream.tasks[0])
    predictor = Predictor(learner, FeatureStore())
    first = predictor.logits(stream.tasks[0].test)
    made = predictor.computed
    assert torch.equal(predictor.logits(stream.tasks[0].test), first)
    assert predictor.computed == made
    assert np.isfinite(first.numpy()).all()
