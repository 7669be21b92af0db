"""The search compares what the method does, and holds out what it says."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.strata_heads import Features, stages
from benchmarks.strata_search import BASE, HEADS, SEEDS, TAKEN, World, quarter
from torch import Tensor

from ease.heads.whitened import WhitenedHead


def some_tokens(count: int, classes: int) -> tuple[Features, np.ndarray]:
    """Tokens [count, 5, 2, 6] of very different scales."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(count) // 2 % classes
    scales = torch.tensor([0.1, 1.0, 3.0, 10.0, 0.5]).view(5, 1, 1)
    means = torch.randn(classes, 5, 2, 6, generator=draw)
    tokens = (means[labels] + torch.randn(count, 5, 2, 6, generator=draw)) * scales
    return Features(tokens), labels.numpy()


def read(tokens: Tensor) -> Tensor:
    return tokens[:, -4:].flatten(1)


@pytest.mark.parametrize("count", [16, 60, 400])
def test_what_was_taken_is_what_the_method_computes(count: int) -> None:
    features, labels = some_tokens(count, 8)
    learn, held = np.arange(0, count, 2), np.arange(1, count, 2)
    found = stages(TAKEN, features, labels, learn, held, [3, 1, 4])
    head, start = WhitenedHead(4 * 2 * 6, parts=8), 0
    for stage, size in zip(found, [3, 1, 4], strict=True):
        head.grow(size)
        rows = learn[(labels[learn] >= start) & (labels[learn] < start + size)]
        head.add(read(features.plain[rows]), torch.from_numpy(labels[rows]))
        start += size
        scores = head.scores(read(features.plain[held[stage.rows.numpy()]]))
        assert (scores - stage.scores).abs().max() < 1e-4


def test_every_idea_gives_finite_scores_from_one_image_per_class_on() -> None:
    features, labels = some_tokens(24, 4)
    features = replace(features, mirrored=features.plain.flip(-1))
    for learn in (np.arange(0, 8, 2), np.arange(8), np.arange(16)):
        for name, idea in HEADS.items():
            (stage,) = stages(idea, features, labels, learn, np.arange(16, 24), [4])
            assert stage.scores.shape == (8, 4), name
            assert stage.scores.isfinite().all(), name


def test_shrinkage_matters() -> None:
    """Otherwise the tests above would hold for anything."""
    features, labels = some_tokens(60, 4)
    rows = np.arange(60)
    base, taken = (stages(idea, features, labels, rows, rows, [4])[0].scores for idea in (BASE, TAKEN))
    assert (base - taken).abs().max() > 0.01


@pytest.mark.parametrize("place", ["glyphs", "digits"])
def test_every_training_image_is_held_out_once(place: str, tmp_path: Path) -> None:
    world = World(place, argparse.Namespace(cache=tmp_path))
    held = [world.parts(seed)[1] for seed in SEEDS]
    assert np.array_equal(np.sort(np.concatenate(held)), np.arange(len(world.data.train)))
    for seed, rows in zip(SEEDS, held, strict=True):
        learn, _ = world.parts(seed)
        assert not np.isin(learn, rows).any()
        assert len(np.unique(world.labels(seed)[learn])) == world.classes


def test_a_quarter_is_held_out_of_every_class() -> None:
    labels = np.repeat(np.arange(3), 8)
    rest, held = quarter(np.arange(24), labels, seed=1)
    assert np.array_equal(np.bincount(labels[held]), [2, 2, 2])
    assert np.array_equal(np.sort(np.concatenate([rest, held])), np.arange(24))
