"""Training, its randomness and its checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from ease.backbone import Backbone
from ease.errors import EaseError
from ease.heads import CosineHead
from ease.methods._tuned_head import TunedHead
from ease.streams import Stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.fit import Training
from ease.training.randomness import counter, permutation, uniforms
from ease.training.trainings import Trainings
from ease.tuning import Adapter

SETTINGS = Training(epochs=4, lr=0.1, batch_size=8)


def module(backbone: Backbone) -> TunedHead:
    draw = torch.Generator().manual_seed(0)
    adapter = Adapter(backbone.shape, rank=4, dropout=0.3, generator=draw)
    return TunedHead(backbone, adapter, CosineHead(backbone.dim, 2, 8.0, draw))


def train(engine: Engine, stream: Stream, training: Training = SETTINGS) -> tuple[TunedHead, list[float]]:
    trained = module(engine.backbone)
    losses = engine.fit(trained, F.cross_entropy, stream.tasks[0].train, training, task=0)
    return trained, losses


def same(a: torch.nn.Module, b: torch.nn.Module) -> bool:
    return all(
        torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    )


def test_training_lowers_the_loss_and_counts_its_passes(engine: Engine, stream: Stream) -> None:
    trained, losses = train(engine, stream)
    assert losses[-1] < losses[0]
    assert len(losses) == 4
    assert engine.ledger.passes["train"] == 4 * len(stream.tasks[0].train)
    assert not trained.training
    assert set(trained.state_dict()) == {*module(engine.backbone).state_dict()}


def test_a_kept_training_is_taken_over_by_one_that_does_the_same(
    backbone: Backbone, stream: Stream, tmp_path: Path
) -> None:
    def passes(loss: str) -> tuple[int, bool]:
        engine = Engine(backbone, Transforms.raw(backbone.pixels), trainings=Trainings(tmp_path))
        begun: list[object] = []
        trained = module(backbone)
        trained.register_forward_pre_hook(lambda *seen: begun.append(seen))
        images = stream.tasks[0].train
        engine.fit(trained, F.cross_entropy, images, SETTINGS, task=0, known_by={"loss": loss})
        return engine.ledger.passes["train"], bool(begun)

    count = 4 * len(stream.tasks[0].train)
    assert passes("one") == (count, True)
    assert passes("another") == (count, True)
    assert passes("one") == (count, False)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_stopped_after_any_epoch_it_continues_bit_for_bit(
    optimizer: str, backbone: Backbone, stream: Stream, tmp_path: Path
) -> None:
    training = SETTINGS.model_copy(update={"optimizer": optimizer, "lr": 0.02, "batch_size": 4})
    count = len(stream.tasks[0].train)
    whole, losses = train(Engine(backbone, Transforms.raw(backbone.pixels), seed=7), stream, training)

    class StopError(Exception):
        pass

    for stop in (1, 3):
        engine = Engine(backbone, Transforms.raw(backbone.pixels), seed=7, checkpoints=tmp_path / str(stop))
        trained, calls = module(backbone), 0

        def counting(logits: torch.Tensor, labels: torch.Tensor, stop: int = stop) -> torch.Tensor:
            nonlocal calls
            calls += len(labels)
            if calls > count * stop + 4:  # in the next epoch's second step
                raise StopError
            return F.cross_entropy(logits, labels)

        with pytest.raises(StopError):
            engine.fit(trained, counting, stream.tasks[0].train, training, task=0)
        engine = Engine(backbone, Transforms.raw(backbone.pixels), seed=7, checkpoints=tmp_path / str(stop))
        again, resumed = train(engine, stream, training)
        assert same(again, whole)
        assert resumed == losses
        assert engine.ledger.passes["train"] == 4 * count


@pytest.mark.parametrize("damage", ["cut", "zeros", "nonsense"])
def test_a_checkpoint_that_a_power_cut_damaged_counts_as_none(
    backbone: Backbone, stream: Stream, tmp_path: Path, damage: str
) -> None:
    def engine() -> Engine:
        return Engine(backbone, Transforms.raw(backbone.pixels), seed=7, checkpoints=tmp_path)

    first, losses = train(engine(), stream)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(
        {"cut": data[:half], "zeros": data[:half] + bytes(len(data) - half), "nonsense": b"{}"}[damage]
    )
    again, repeated = train(engine(), stream)
    assert same(first, again)
    assert repeated == losses
    assert path.read_bytes() == data


def test_clipped_gradients_take_small_steps(engine: Engine, stream: Stream) -> None:
    settings = {"momentum": 0.0, "weight_decay": 0.0, "epochs": 1}
    start = module(engine.backbone).state_dict()

    def moved(clip: float | None) -> float:
        trained, _ = train(engine, stream, SETTINGS.model_copy(update={**settings, "clip": clip}))
        steps = [(value - start[name]).square().sum() for name, value in trained.state_dict().items()]
        return float(torch.stack(steps).sum().sqrt())

    allowed = -(-len(stream.tasks[0].train) // SETTINGS.batch_size) * SETTINGS.lr * 1e-3
    assert 0 < moved(1e-3) <= allowed * 1.001 < moved(None)
    assert moved(1e6) == moved(None)


def test_randomness_hangs_on_the_seed_and_leaves_the_global_generator_alone(
    engine: Engine, backbone: Backbone, stream: Stream
) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, _ = train(engine, stream)
    assert torch.equal(torch.get_rng_state(), before)
    second, _ = train(Engine(backbone, Transforms.raw(backbone.pixels), seed=7), stream)
    other, _ = train(Engine(backbone, Transforms.raw(backbone.pixels), seed=8), stream)
    assert same(first, second)
    assert not same(first, other)


def test_the_cosine_schedule_is_torch_s(backbone: Backbone) -> None:
    training = Training(epochs=7, lr=0.3)
    optimizer = training.make_optimizer(module(backbone))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=7, eta_min=0)
    for epoch in range(7):
        assert training.rate(epoch) == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_cosine_by_step_is_torch_s_as_well(backbone: Backbone) -> None:
    training = Training(epochs=2, lr=0.3, schedule="cosine-by-step")
    optimizer = training.make_optimizer(module(backbone))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20, eta_min=0)
    for step in range(20):
        found = training.rate(step // 10, step % 10 / 10)
        assert found == pytest.approx(scheduler.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        scheduler.step()


def test_the_rate_of_each_step_reaches_the_optimizer(
    engine: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[float] = []
    step = torch.optim.SGD.step

    def watching(self: torch.optim.SGD, *args: object) -> object:
        used.append(self.param_groups[0]["lr"])
        return step(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.optim.SGD, "step", watching)
    training = Training(epochs=2, lr=0.1, batch_size=8, schedule="cosine-by-step")
    train(engine, stream, training)
    assert used == [training.rate(epoch, step / 3) for epoch in range(2) for step in range(3)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 10**9), st.text(max_size=5)), min_size=1, max_size=4))
def test_a_counter_depends_on_every_part_of_its_name(name: list[int | str]) -> None:
    assert counter(*name) == counter(*name)
    assert counter(*name) != counter(*name, 0)
    assert counter(*map(str, name)) != counter(*name) or all(isinstance(part, str) for part in name)


def test_a_row_of_draws_does_not_depend_on_how_many_follow() -> None:
    assert np.array_equal(uniforms(3, 5, 1, "a"), uniforms(9, 5, 1, "a")[:3])
    assert sorted(permutation(20, 1, "order", 0)) == list(range(20))
    assert not np.array_equal(permutation(20, 1, "order", 0), permutation(20, 1, "order", 1))


def test_a_diverged_training_is_one_line(engine: Engine, stream: Stream) -> None:
    def diverging(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits, labels) * torch.nan

    with pytest.raises(EaseError, match="lower the rate"):
        engine.fit(module(engine.backbone), diverging, stream.tasks[0].train, SETTINGS, task=0)
