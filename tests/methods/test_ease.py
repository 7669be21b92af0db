"""EASE's own promises."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from ease.errors import EaseError
from ease.heads.complement import complete, linear_map, nearest_images, semantic, transported
from ease.heads.prototypes import PTM
from ease.methods import Compactable, Extendable, Forgettable, class_fields, restore_learner, save_model
from ease.methods.ease import Ease, EaseSettings, UpperBound
from ease.storage.model_directory import ModelDirectory
from ease.streams import Dataset, ImageSet, Stream
from ease.streams.protocol import make_stream
from ease.training.engine import Engine
from ease.training.memory import Memory

VARIANTS = ["pps", "pis", "lr", "ot"]


def make(engine: Engine, **settings: Any) -> Ease:
    return Ease(
        engine,
        EaseSettings(**{"epochs": 2, "lr": 0.05, "batch_size": 12, "rank": 4, "sigma": 8.0, **settings}),
    )


def learned(engine: Engine, stream: Stream, **settings: Any) -> Ease:
    learner = make(engine, **settings)
    for task in stream.tasks:
        learner.learn(task)
    return learner


def features(learner: Ease, images: ImageSet) -> torch.Tensor:
    return learner.engine.features(images, [s.tuning for s in learner.subspaces()])


def test_old_subspaces_and_real_prototypes_never_change_when_a_new_task_is_learned(
    engine: Engine, stream: Stream
) -> None:
    learner = make(engine)
    weights: list[dict[str, torch.Tensor]] = []
    cells: dict[tuple[int, int], torch.Tensor] = {}
    for task in stream.tasks:
        learner.learn(task)
        for old, tuning in zip(weights, learner.tunings, strict=False):
            assert all(torch.equal(old[n], v) for n, v in tuning.state_dict().items())
        assert all(torch.equal(cell, learner.bank.cells[key]) for key, cell in cells.items())
        weights = [{n: v.clone() for n, v in t.state_dict().items()} for t in learner.tunings]
        cells = {key: cell.clone() for key, cell in learner.bank.cells.items()}
    assert sorted(cells) == [(t, s) for t in range(3) for s in range(1, t + 2)]


def test_training_moves_the_new_subspace_away_from_the_ptm(engine: Engine, stream: Stream) -> None:
    learner = make(engine)
    learner.learn(stream.tasks[0])
    images = stream.tasks[0].test
    assert not torch.allclose(features(learner, images)[0], engine.features(images, [None])[0], atol=1e-4)


def test_prototypes_are_means_of_the_current_data_in_every_subspace(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream)
    last = stream.tasks[-1]
    found = features(learner, last.train)
    for column, subspace in enumerate(learner.columns()):
        for row, c in enumerate(last.classes):
            mean = found[column, torch.from_numpy(last.train.labels) == c].mean(0)
            assert torch.allclose(learner.bank.cells[2, subspace][row], mean, atol=1e-5)


def test_reweighting_as_released_and_as_in_the_text(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, alpha=0.3)
    images = stream.tasks[1].test
    found = features(learner, images)
    prototypes = learner.classifier()
    cos = torch.stack(
        [F.normalize(f, dim=-1) @ F.normalize(p, dim=-1).T for f, p in zip(found, prototypes, strict=True)]
    )
    for reweight, share in (("average", 0.3 / 2), ("sum", 0.3)):
        learner.settings = learner.settings.model_copy(update={"reweight": reweight})
        logits = learner.head(found)
        for c in range(6):
            own = c // 2
            others = [s for s in range(3) if s != own]
            expected = cos[own, :, c] + share * sum(cos[s, :, c] for s in others)
            assert torch.allclose(logits[:, c], expected, atol=1e-6)


def test_literal_equation_12_uses_dot_products(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, similarity="dot", reweight="sum", alpha=0.5)
    found = features(learner, stream.tasks[0].test)
    prototypes = learner.classifier()
    expected = found[0] @ prototypes[0].T + 0.5 * (found[1] @ prototypes[1].T + found[2] @ prototypes[2].T)
    assert torch.allclose(learner.head(found)[:, :2], expected[:, :2], rtol=1e-5)


def test_diagonal_fills_only_own_subspaces(engine: Engine, stream: Stream) -> None:
    classifier = learned(engine, stream, diagonal=True).classifier()
    filled = classifier.abs().sum(-1) > 0
    assert torch.equal(filled, torch.eye(3, dtype=torch.bool).repeat_interleave(2, dim=1))


def test_the_newest_column_variant_never_revisits_an_estimate(engine: Engine, stream: Stream) -> None:
    learner = make(engine, complement="newest")
    for task in stream.tasks[:2]:
        learner.learn(task)
    before = learner.classifier()[:, :4].clone()
    learner.learn(stream.tasks[2])
    assert torch.equal(learner.classifier()[:2, :4], before)
    learner.settings = learner.settings.model_copy(update={"complement": "triangle"})
    learner._classifier = None
    assert not torch.equal(learner.classifier()[:2, :4], before)


def test_the_ptm_subspace_counts_beta(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, ptm=True, beta=0.7)
    assert learner.columns() == [PTM, 1, 2, 3]
    assert torch.equal(learner.weights()[0], torch.full((6,), 0.7))


def test_upper_bound_measures_old_prototypes_on_exemplars(engine: Engine, stream: Stream) -> None:
    memory = Memory(None)
    learner = UpperBound(engine, EaseSettings(epochs=1, batch_size=12, rank=4))
    for task in stream.tasks:
        learner.learn(task, memory)
    first = stream.tasks[0].train
    newest = engine.features(first, [learner.tunings[2]])[0]
    mean = newest[torch.from_numpy(first.labels) == 1].mean(0)
    assert torch.allclose(learner.classifier()[2, 1], mean, atol=1e-5)
    assert len(memory) == sum(len(task.train) for task in stream.tasks)


def test_the_upper_bound_cannot_be_changed_because_its_exemplars_would_not_follow() -> None:
    assert all(issubclass(Ease, capability) for capability in (Extendable, Forgettable, Compactable))
    assert not any(
        issubclass(UpperBound, capability) for capability in (Extendable, Forgettable, Compactable)
    )


def test_upper_bound_measures_whatever_the_synthesis(engine: Engine, stream: Stream) -> None:
    found = []
    for kind in VARIANTS:
        learner, memory = UpperBound(engine, make(engine, synthesis=kind, epochs=1).settings), Memory(3)
        for task in stream.tasks:
            learner.learn(task, memory)
        assert not learner.bank.synthesised
        assert sorted(learner.bank.cells) == [(t, s) for t in range(3) for s in range(1, 4)]
        found.append(learner.classifier())
    assert all(torch.equal(classifier, found[0]) for classifier in found)


def test_upper_bound_leaves_real_cells_alone_when_a_task_adopts_the_newest_subspace(
    engine: Engine, six_digits: Dataset
) -> None:
    stream, memory = make_stream(six_digits, "B4 Inc1"), Memory(2)
    learner = UpperBound(engine, make(engine).settings)
    learner.learn(stream.tasks[0], memory)
    real = learner.bank.cells[0, 1].clone()
    learner.learn(stream.tasks[1], memory)
    assert learner.bank.own == [1, 1]
    assert torch.equal(learner.bank.cells[0, 1], real)  # means of 12 images, not of 2 exemplars


def test_lr_and_ot_use_the_references_that_the_complement_names(engine: Engine, stream: Stream) -> None:
    for synthesis, option, by_hand in (("lr", "ridge", linear_map), ("ot", "transport", transported)):
        learner = learned(engine, stream, synthesis=synthesis, epochs=1, **{option: 0.25})
        cells, gather = learner.bank.cells, learner.bank.gather
        for complement, references in (("triangle", [1, 2]), ("newest", [1])):
            learner.settings = learner.settings.model_copy(update={"complement": complement})
            learner._classifier = None
            expected = by_hand(cells[0, 1], gather(references, 1), gather(references, 2), 0.25)
            assert torch.equal(learner.classifier()[1, :2], expected)
            assert not torch.allclose(
                expected, semantic(cells[0, 1], gather(references, 1), gather(references, 2))
            )
        assert not learner.bank.synthesised


def test_pis_makes_old_classes_of_the_new_images_when_they_arrive(engine: Engine, stream: Stream) -> None:
    learner = make(engine, synthesis="pis", neighbours=5)
    for task in stream.tasks[:2]:
        learner.learn(task)
    found = features(learner, stream.tasks[1].train)
    expected = nearest_images(learner.bank.cells[0, 1], found[0], found[1], 5)
    assert torch.equal(learner.classifier()[1, :2], expected)
    assert not torch.allclose(expected, complete(learner.bank, [1, 2])[1, :2])
    learner.learn(stream.tasks[2])
    found = features(learner, stream.tasks[2].train)
    assert torch.equal(learner.classifier()[1, :2], expected)  # later images do not renew it
    for old in range(2):
        cell = nearest_images(learner.bank.cells[old, old + 1], found[old], found[2], 5)
        assert torch.equal(learner.classifier()[2, 2 * old : 2 * old + 2], cell)


def test_pis_with_more_neighbours_than_images_takes_them_all(engine: Engine, stream: Stream) -> None:
    all_of_them, more = (learned(engine, stream, synthesis="pis", neighbours=k, epochs=1) for k in (24, 200))
    assert torch.allclose(all_of_them.classifier(), more.classifier(), atol=1e-6)


def test_pis_keeps_its_estimates_and_files_of_old_tasks_stay_as_they_are(
    engine: Engine, stream: Stream, tmp_path: Path
) -> None:
    learner, directory = make(engine, synthesis="pis", neighbours=3), ModelDirectory(tmp_path / "model")
    written: dict[str, bytes] = {}
    for task in stream.tasks:
        learner.learn(task)
        save_model(directory, learner, class_fields(stream, task.index + 1))
        now = {str(p): p.read_bytes() for p in (tmp_path / "model").glob("*/*.safetensors")}
        assert {name: now[name] for name in written} == written
        assert len(now) == len(written) + 2  # a subspace and its prototypes
        written = now
    assert sorted(learner.bank.synthesised) == [(0, 2), (0, 3), (1, 3)]
    loaded, _ = restore_learner(ModelDirectory(tmp_path / "model"), engine)
    found = features(learner, stream.tasks[0].test)
    assert torch.equal(loaded.head(found), learner.head(found))


@pytest.mark.parametrize("unused", [{"complement": "none"}, {"diagonal": True}])
def test_pis_keeps_nothing_that_is_not_used(unused: dict[str, Any], engine: Engine, stream: Stream) -> None:
    pis, pps = (learned(engine, stream, synthesis=kind, epochs=1, **unused) for kind in ("pis", "pps"))
    assert not pis.bank.synthesised
    assert torch.equal(pis.classifier(), pps.classifier())


@pytest.mark.parametrize("synthesis", VARIANTS)
@pytest.mark.parametrize("complement", ["triangle", "newest"])
def test_every_synthesis_serves_tasks_without_a_subspace_and_the_ptm(
    synthesis: str, complement: str, engine: Engine, six_digits: Dataset, tmp_path: Path
) -> None:
    # One class, which only the PTM can serve; three with a subspace; two with another.
    whole = make_stream(six_digits, "B1 Inc3").tasks
    learner = make(engine, epochs=1, synthesis=synthesis, complement=complement, ptm=True)
    for task in whole[:2]:
        learner.learn(task)
    learner.learn(whole[2])
    assert learner.columns() == [PTM, 1, 2]
    assert learner.bank.own == [PTM, 1, 2]
    classifier = learner.classifier()
    assert classifier.isfinite().all()
    assert (classifier.abs().sum(-1) > 0).all()
    if synthesis == "pis":
        assert sorted(learner.bank.synthesised) == [(0, 1), (0, 2), (1, 2)]
    directory = ModelDirectory(tmp_path / "model")
    save_model(directory, learner, class_fields(make_stream(six_digits, "B1 Inc3"), 3))
    loaded, _ = restore_learner(directory, engine)
    found = features(learner, whole[0].test)
    assert torch.equal(loaded.head(found), learner.head(found))


@pytest.mark.parametrize("synthesis", VARIANTS)
def test_a_class_that_comes_alone_gets_estimates_in_later_subspaces(
    synthesis: str, engine: Engine, six_digits: Dataset
) -> None:
    alone, together = make_stream(six_digits, "B2 Inc1").tasks, make_stream(six_digits, "B3 Inc3").tasks
    learner = make(engine, epochs=1, synthesis=synthesis)
    for task in (*alone[:2], replace(together[1], index=2)):
        learner.learn(task)
    assert learner.bank.own == [1, 1, 2]
    assert (learner.classifier().abs().sum(-1) > 0).all()
    if synthesis == "pis":
        assert sorted(learner.bank.synthesised) == [(0, 2), (1, 2)]


def test_later_rate_applies_only_if_the_base_differs_in_size(engine: Engine, six_digits: Dataset) -> None:
    learner = make(engine, later_lr=0.5, later_epochs=1)
    even, uneven = make_stream(six_digits, "B0 Inc2"), make_stream(six_digits, "B4 Inc1")
    learner.task_sizes = [2]
    assert learner._training(even.tasks[1]).lr == 0.05
    learner.task_sizes = [4]
    assert learner._training(uneven.tasks[1]).lr == 0.5
    assert learner._training(uneven.tasks[1]).epochs == 1


def test_one_class_at_a_time_adds_no_subspace_but_is_learned(engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, "B4 Inc1")
    learner = learned(engine, stream)
    assert len(learner.tunings) == 1
    assert learner.bank.own == [1, 1, 1]
    assert learner.costs().trained[1:] == [0, 0]
    images = stream.tasks[1].test
    predicted = learner.head(features(learner, images)).argmax(1).numpy()
    assert np.mean(predicted == images.labels) > 0.2


def test_tasks_after_the_last_subspace_live_in_the_existing_ones(engine: Engine, stream: Stream) -> None:
    learner, free = learned(engine, stream, max_subspaces=2), learned(engine, stream)
    assert len(learner.tunings) == learner.passes_per_image() == 2
    for ours, theirs in zip(learner.tunings, free.tunings, strict=False):
        assert ours.fingerprint() == theirs.fingerprint()
    assert learner.bank.own[:2] == [1, 2]
    assert learner.bank.own[2] in (1, 2)
    assert learner.costs().trained[2] == 0
    images = stream.tasks[2].test
    predicted = learner.head(features(learner, images)).argmax(1).numpy()
    assert np.mean(predicted == images.labels) > 0.2


def test_a_first_task_of_one_class_falls_back_on_the_ptm(engine: Engine, six_digits: Dataset) -> None:
    stream = make_stream(six_digits, "B1 Inc5")
    learner = learned(engine, stream)
    assert learner.bank.own == [PTM, 1]
    assert learner.columns() == [PTM, 1]
    assert learner.head(features(learner, stream.tasks[0].test)).shape[1] == 6


def test_a_single_class_can_be_adapted_to_with_old_prototypes_as_negatives(
    engine: Engine, six_digits: Dataset
) -> None:
    stream = make_stream(six_digits, "B5 Inc1")
    learner = learned(engine, stream, adapt="always")
    assert len(learner.tunings) == 2
    start = learner.new_subspace(stream.tasks[1]).tuning
    assert not torch.equal(learner.tunings[1].state_dict()["up.0.weight"], start.state_dict()["up.0.weight"])


@pytest.mark.parametrize("kind", ["vpt-shallow", "vpt-deep", "ssf", "lora"])
def test_other_tunings_build_subspaces_too(kind: str, engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream, tuning=kind, epochs=1)
    assert {t.kind for t in learner.tunings} == {kind}
    assert learner.head(features(learner, stream.tasks[0].test)).shape == (16, 6)


@pytest.mark.parametrize("ptm", [False, True])
def test_no_class_has_more_weight_in_total_than_another(
    ptm: bool, engine: Engine, six_digits: Dataset
) -> None:
    learner = learned(engine, make_stream(six_digits, "B1 Inc3"), ptm=ptm, alpha=0.2, beta=0.5)
    assert learner.bank.own[0] == PTM
    total = learner.weights().sum(dim=0)
    assert torch.allclose(total, total[0].expand(6))
    images = make_stream(six_digits, "B1 Inc3").tasks[0].test
    assert (learner.head(features(learner, images)).argmax(1) == 0).any()


def test_an_estimate_stays_when_a_later_class_adopts_the_subspace(
    engine: Engine, six_digits: Dataset
) -> None:
    stream = make_stream(six_digits, "B2 Inc2")
    learner = make(engine, complement="newest")
    for task in stream.tasks[:2]:
        learner.learn(task)
    before = learner.classifier()[1, :2].clone()
    learner.settings = learner.settings.model_copy(update={"adapt": "never"})
    learner.learn(stream.tasks[2])
    assert learner.bank.own[2] in (1, 2)
    assert torch.equal(learner.classifier()[1, :2], before)


# --- fewer passes ---------------------------------------------------------------------------------


def pixels_of(engine: Engine, stream: Stream) -> torch.Tensor:
    return torch.cat([engine.pixels(task.test) for task in stream.tasks])


def test_a_budget_of_all_subspaces_is_the_exact_path(engine: Engine, stream: Stream) -> None:
    learner = learned(engine, stream)
    pixels = pixels_of(engine, stream)
    exact = learner.logits(pixels)
    for budget in (3, 10):
        learner.within(budget)
        assert torch.equal(learner.logits(pixels), exact)
        assert learner.passes_per_image() == 3
    learner.within(1)
    assert not torch.equal(learner.logits(pixels), exact)
    learner.within(None)
    assert torch.equal(learner.logits(pixels), exact)


@pytest.mark.parametrize("budget", [1, 2])
@pytest.mark.parametrize("ptm", [False, True])
def test_within_a_budget_the_backbone_is_asked_no_more_and_the_head_agrees(
    budget: int, ptm: bool, engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = learned(engine, stream, budget=budget, ptm=ptm)
    pixels, passes = pixels_of(engine, stream), 0
    every = engine.features_of_pixels(pixels, [s.tuning for s in learner.subspaces()])
    computed = engine.features_of_pixels

    def counting(some: torch.Tensor, tunings: Any, *rest: Any) -> torch.Tensor:
        nonlocal passes
        passes += len(some) * len(tunings)
        return computed(some, tunings, *rest)

    monkeypatch.setattr(engine, "features_of_pixels", counting)
    logits = learner.logits(pixels)
    assert passes == budget * len(pixels)
    assert learner.passes_per_image() == budget
    assert torch.allclose(logits, learner.head(every), atol=1e-5)


def test_a_budget_that_cannot_be_kept_is_refused(engine: Engine, stream: Stream) -> None:
    with pytest.raises(ValidationError, match="one cosine over everything needs all passes"):
        make(engine, budget=2, reweight="none")
    learner = learned(engine, stream, reweight="none")
    with pytest.raises(EaseError, match="budget of 2"):
        learner.within(2)
    with pytest.raises(EaseError, match="budget of 0"):
        learned(engine, stream).within(0)
