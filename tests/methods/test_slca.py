"""SLCA's own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ease.methods.slca import Slca, SlcaSettings
from ease.streams import Stream
from ease.training.engine import Engine


def make(engine: Engine, **settings: Any) -> Slca:
    quick = {"epochs": 2, "lr": 0.05, "batch_size": 12, "align_draws": 16}
    return Slca(engine, SlcaSettings(**{**quick, **settings}))


def test_the_rate_of_the_network_is_a_hundredth_of_the_heads(engine: Engine, stream: Stream) -> None:
    rates: dict[int, set[float]] = {}
    step = torch.optim.SGD.step

    def watched(self: torch.optim.SGD, *args: object) -> object:
        for group in self.param_groups:
            for weight in group["params"]:
                rates.setdefault(weight.shape.numel(), set()).add(group["lr"])
        return step(self, *args)  # type: ignore[arg-type]

    learner = make(engine, epochs=10, align_epochs=0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.SGD, "step", watched)
        learner.learn(stream.tasks[0])
    head = rates[2 * engine.backbone.dim]
    network = rates[engine.backbone.vit.blocks[0].attn.qkv.weight.numel()]
    assert sorted(head) == pytest.approx([0.005, 0.05])  # divided by ten for the last tenth of the epochs
    assert sorted(network) == pytest.approx([0.00005, 0.0005])


def test_a_task_leaves_the_rows_of_old_classes_until_the_alignment(engine: Engine, stream: Stream) -> None:
    learner = make(engine, variant="text", align_epochs=0)
    learner.learn(stream.tasks[0])
    rows = learner.linear.weight.detach().clone()
    learner.learn(stream.tasks[1])
    assert torch.equal(learner.linear.weight[:2], rows)
    aligned = make(engine, variant="text")
    for task in stream.tasks[:2]:
        aligned.learn(task)
    assert not torch.equal(aligned.linear.weight[:2], rows)


def test_the_first_task_is_not_aligned(engine: Engine, stream: Stream) -> None:
    heads = []
    for epochs in (0, 5):
        learner = make(engine, align_epochs=epochs)
        learner.learn(stream.tasks[0])
        heads.append(learner.linear.weight.detach())
    assert torch.equal(*heads)


def test_released_goes_on_with_the_head_before_the_alignment_and_text_with_the_aligned(
    engine: Engine, stream: Stream
) -> None:
    for variant in ("released", "text"):
        learner = make(engine, variant=variant)
        for task in stream.tasks[:2]:
            learner.learn(task)
        aligned, unaligned = learner.linear.weight.detach().clone(), learner.unaligned.weight.detach().clone()
        learner.settings = learner.settings.model_copy(update={"align_epochs": 0})
        learner.learn(stream.tasks[2])
        assert torch.equal(learner.linear.weight[:4], unaligned if variant == "released" else aligned)


def test_released_trains_a_new_final_norm(engine: Engine) -> None:
    for variant, new in (("released", True), ("text", False)):
        norm = make(engine, variant=variant).tuned.copy.norm  # type: ignore[union-attr]
        pretrained = engine.backbone.vit.norm
        assert torch.equal(norm.weight, torch.ones_like(norm.weight)) is new  # type: ignore[union-attr,arg-type]
        assert torch.equal(norm.weight, pretrained.weight) is not new  # type: ignore[union-attr]


def test_the_gaussian_of_a_class_is_that_of_its_images_when_it_was_new(
    engine: Engine, stream: Stream
) -> None:
    learner = make(engine, variant="text")
    learner.learn(stream.tasks[0])
    images = stream.tasks[0].train
    features = engine.features(images, [learner.tuned])[0][torch.from_numpy(images.labels) == 1]
    learner.learn(stream.tasks[1])
    assert torch.allclose(learner.gaussians.means[1], features.mean(dim=0), atol=1e-5)
    assert torch.allclose(learner.gaussians.covariance_of(1).float(), features.mT.cov(), atol=1e-5)
