"""Precision: what `auto` stands for, frozen weights that are converted once, and what stays in fp32."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ease.backbone import Backbone
from ease.config import RunConfig
from ease.errors import EaseError
from ease.experiments.predictor import Predictor
from ease.methods import Learner, find_method
from ease.streams import Stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.fit import Training
from ease.training.hardware import app_precision, computes_bf16, device_of, resolve_precision
from ease.tuning import Adapter

CPU = torch.device("cpu")
NATIVE = {"architecture": "x86_64", "avx512_bf16": True}
AMX = {"architecture": "x86_64", "amx_bf16": True}
EMULATING = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False}
METHODS: dict[str, dict[str, Any]] = {
    "ease": {"epochs": 1},
    "strata": {},
    "simplecil": {},
    "ranpac": {"projection": 64, "epochs": 1},
}


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes torch say that this processor has these flags."""
    return lambda flags: monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)


@pytest.fixture
def rough(backbone: Backbone) -> Engine:
    """An engine in bf16."""
    return Engine(backbone, Transforms.raw(backbone.pixels), seed=7, batch_size=16, precision="bf16-mixed")


@pytest.fixture
def pixels() -> Tensor:
    return torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def adapters(backbone: Backbone, count: int = 3) -> list[Adapter]:
    """Frozen adapters that do something."""
    draw = torch.Generator().manual_seed(1)
    made = [Adapter(backbone.shape, rank=4, generator=draw) for _ in range(count)]
    for adapter in made:
        for weights in adapter.parameters():
            nn.init.normal_(weights, std=0.05, generator=draw)
        adapter.freeze()
    return made


def learner_of(name: str, engine: Engine) -> Learner:
    method = find_method(name)
    return method(engine, method.Settings(**METHODS[name]))


class Conversions(TorchDispatchMode):
    """Counts how often a tensor of some others' storage is converted to another type."""

    def __init__(self, tensors: Iterator[Tensor]) -> None:
        super().__init__()
        self.watched = {t.untyped_storage().data_ptr() for t in tensors}
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.count += args[0].untyped_storage().data_ptr() in self.watched
        return func(*args, **(kwargs or {}))


@contextmanager
def bf16() -> Iterator[None]:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        yield


# --- which precision ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (NATIVE, "bf16-mixed"),
        (AMX, "bf16-mixed"),
        (EMULATING, "32-true"),
        ({"architecture": "aarch64"}, "32-true"),
    ],
)
def test_auto_is_bf16_where_the_processor_computes_it_natively(
    processor: Any, flags: dict[str, object], expected: str
) -> None:
    processor(flags)
    assert resolve_precision("auto", CPU) == expected
    assert RunConfig(precision="auto").precision == expected


def test_auto_is_fp32_where_torch_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert resolve_precision("auto", CPU) == "32-true"


@pytest.mark.parametrize("native", [True, False])
def test_auto_asks_the_gpu_where_one_is_used(
    monkeypatch: pytest.MonkeyPatch, processor: Any, native: bool
) -> None:
    processor(EMULATING if native else NATIVE)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: native)
    assert computes_bf16(torch.device("cuda")) == native
    assert RunConfig(precision="auto", accelerator="cuda").precision == (
        "bf16-mixed" if native else "32-true"
    )


def test_an_accelerator_is_the_device_that_fabric_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [device_of(name).type for name in ("cpu", "cuda", "gpu", "mps")] == ["cpu", "cuda", "cuda", "mps"]
    for there, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert device_of("auto").type == expected


def test_a_choice_is_taken_as_it_is_even_where_bf16_is_emulated(processor: Any) -> None:
    processor(EMULATING)
    assert resolve_precision("bf16-mixed", CPU) == "bf16-mixed"
    processor(NATIVE)
    assert resolve_precision("32-true", CPU) == "32-true"


def test_runs_are_in_fp32_unless_they_are_asked_otherwise(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(NATIVE)
    monkeypatch.setenv("EASE_PRECISION", "bf16-mixed")
    assert RunConfig().precision == "32-true"


def test_the_app_takes_what_is_given_then_the_environment_then_auto(
    processor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    processor(NATIVE)
    monkeypatch.delenv("EASE_PRECISION", raising=False)
    assert app_precision() == "bf16-mixed"
    monkeypatch.setenv("EASE_PRECISION", "32-true")
    assert app_precision() == "32-true"
    assert app_precision("auto") == "bf16-mixed"
    monkeypatch.setenv("EASE_PRECISION", "bf16")
    with pytest.raises(EaseError, match=r"bf16-mixed"):
        app_precision()


def test_nothing_is_printed_about_it(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fabric prints a line where a precision is asked for by its name."""
    said: list[str] = []
    monkeypatch.setattr("lightning_fabric.connector.rank_zero_info", said.append)
    engine = Engine(backbone, Transforms.raw(backbone.pixels), precision="bf16-mixed")
    assert engine.precision == "bf16-mixed"
    assert not said


# --- frozen weights are converted once ------------------------------------------------------------


def test_a_kept_conversion_changes_no_result(backbone: Backbone, pixels: Tensor) -> None:
    tunings = [None, *adapters(backbone)]
    with bf16():
        without = backbone.features(pixels, tunings)
        backbone.keep_cast(torch.bfloat16)
        assert torch.equal(backbone.features(pixels, tunings), without)


def test_no_call_converts_frozen_weights(rough: Engine, pixels: Tensor) -> None:
    backbone = rough.backbone
    with Conversions(backbone.vit.parameters()) as seen:
        rough.features_of_pixels(pixels, [None])
        rough.features_of_pixels(pixels, [None, *adapters(backbone)])
        with bf16():
            backbone.forward(pixels, Adapter(backbone.shape, rank=4)).sum().backward()
    # The position embeddings and norms are not part of a matrix product and stay in fp32.
    assert seen.count == 0


def test_plain_autocast_would_convert_them_in_every_call(backbone: Backbone, pixels: Tensor) -> None:
    """What the test above would count without the kept copy."""
    with Conversions(backbone.vit.parameters()) as seen, bf16():
        backbone.features(pixels, [None])
        once = seen.count
        backbone.features(pixels, [None])
    assert once > 0
    assert seen.count == 2 * once


def test_the_copy_has_matrices_in_bf16_and_shares_everything_else(rough: Engine) -> None:
    vit, cast = rough.backbone.vit, rough.backbone._cast[torch.bfloat16]
    kinds = {name: value.dtype for name, value in cast.named_parameters()}
    mine = dict(vit.named_parameters())
    for name, kind in kinds.items():
        matrix = any(part in name for part in ("qkv", "proj", "fc1", "fc2"))
        assert kind == (torch.bfloat16 if matrix else torch.float32), name
        assert (cast.get_parameter(name) is mine[name]) == (not matrix), name
        assert not cast.get_parameter(name).requires_grad
    assert {torch.bfloat16, torch.float32} == set(kinds.values())
    assert all(value.dtype == torch.float32 for value in mine.values())


def test_a_moved_backbone_converts_again(rough: Engine) -> None:
    rough.backbone.to("cpu")
    assert rough.backbone._cast
    rough.backbone.to("meta")
    assert not rough.backbone._cast


def test_fp32_is_bit_for_bit_as_without_a_copy(backbone: Backbone, pixels: Tensor) -> None:
    untouched = copy.deepcopy(backbone)
    rough = Engine(backbone, Transforms.raw(backbone.pixels), precision="bf16-mixed")
    exact = Engine(backbone, Transforms.raw(backbone.pixels))
    tunings = [None, *adapters(backbone)]
    expected = untouched.features(pixels, tunings)
    assert not torch.equal(rough.features_of_pixels(pixels, tunings), expected)
    assert torch.equal(exact.features_of_pixels(pixels, tunings), expected)


def test_a_compiled_training_uses_the_copy_too(rough: Engine, pixels: Tensor) -> None:
    """Traced in one piece, but not compiled to C++, which takes a minute."""
    module = Classifying(rough.backbone)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with bf16():
        assert torch.equal(compiled(pixels), module(pixels))


def test_attention_that_is_trained_through_is_in_fp32_on_the_cpu(
    rough: Engine, pixels: Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There torch's backward kernel for bf16 is slower than that for fp32."""
    seen: list[torch.dtype] = []
    attention = F.scaled_dot_product_attention

    def watched(q: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        seen.append(q.dtype)
        return attention(q, *args, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watched)
    rough.features_of_pixels(pixels, [None])
    assert seen == [torch.bfloat16] * 3
    with bf16():
        rough.backbone.forward(pixels, adapters(rough.backbone, 1)[0])
        assert seen[3:] == [torch.bfloat16] * 3
        rough.backbone.forward(pixels, Adapter(rough.backbone.shape, rank=4))
    # Nothing that is trained comes before the attention of the first block.
    assert seen[6:] == [torch.bfloat16, torch.float32, torch.float32]


# --- what stays in fp32 ---------------------------------------------------------------------------


class Classifying(nn.Module):
    """An adapter with a head."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone
        draw = torch.Generator().manual_seed(3)
        self.tuning = Adapter(backbone.shape, rank=4, dropout=0.0, generator=draw)
        self.head = nn.Linear(backbone.dim, 2)
        nn.init.normal_(self.head.weight, std=0.05, generator=draw)
        nn.init.zeros_(self.head.bias)

    def forward(self, pixels: Tensor) -> Tensor:
        return self.head(self.backbone.forward(pixels, self.tuning))


def trained(engine: Engine, stream: Stream) -> Classifying:
    module = Classifying(engine.backbone)
    training = Training(epochs=2, lr=0.05, batch_size=16)
    engine.fit(module, F.cross_entropy, stream.tasks[0].train, training, task=0)
    return module


def test_trained_weights_their_gradients_and_momenta_are_fp32(
    rough: Engine, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.dtype] = []
    step = torch.optim.SGD.step

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = step(self, *args, **kwargs)
        for group in self.param_groups:
            for weights in group["params"]:
                seen.extend([weights.dtype, weights.grad.dtype, self.state[weights]["momentum_buffer"].dtype])
        return found

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    trained(rough, stream)
    assert set(seen) == {torch.float32}


def test_bf16_trains_nearly_what_fp32_trains(rough: Engine, engine: Engine, stream: Stream) -> None:
    ours, theirs = trained(rough, stream), trained(engine, stream)
    vectors = [torch.cat([p.detach().flatten() for p in m.tuning.parameters()]) for m in (ours, theirs)]
    assert not torch.equal(*vectors)
    assert float(F.cosine_similarity(*vectors, dim=0)) > 0.99


@pytest.mark.parametrize("name", METHODS)
def test_what_a_learner_keeps_is_not_bf16(name: str, rough: Engine, stream: Stream) -> None:
    learner = learner_of(name, rough)
    for task in stream.tasks[:2]:
        learner.learn(task)
    files, _ = learner.state()
    kinds = {
        value.dtype for tensors in files.values() for value in tensors.values() if value.is_floating_point()
    }
    assert kinds <= {torch.float32, torch.float64}
    logits = Predictor(learner).logits(stream.tasks[0].test)
    assert logits.dtype in (torch.float32, torch.float64)


@pytest.mark.parametrize("name", METHODS)
def test_a_model_learned_in_one_precision_answers_in_the_other(
    name: str, rough: Engine, engine: Engine, stream: Stream
) -> None:
    test = stream.tasks[0].test
    for learned_in, opened_in in ((engine, rough), (rough, engine)):
        learner = learner_of(name, learned_in)
        for task in stream.tasks[:2]:
            learner.learn(task)
        files, meta = learner.state()
        twin = learner_of(name, opened_in)
        twin.load_state(files, meta)
        ours, theirs = Predictor(learner).logits(test), Predictor(twin).logits(test)
        assert float((ours.argmax(1) == theirs.argmax(1)).double().mean()) >= 0.9
