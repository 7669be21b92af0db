"""Tensors in fewer bytes: what is lost, and that it is lost once only."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ease.errors import EaseError
from ease.storage.contents import encode_tensors
from ease.storage.precision import LEFT, RIGHT, SCALE, Packed, check_energy, check_storage, lossless


def weights(seed: int, rows: int = 6, width: int = 24, size: float = 1.0) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    rank_two = torch.randn(rows, 2, generator=draw) @ torch.randn(2, width, generator=draw)
    return {
        "dense": torch.randn(rows, width, generator=draw) * size,
        "thin": rank_two * size,
        "bias": torch.randn(width, generator=draw) * size,
        "counts": torch.tensor([3, 5]),
    }


def shapes(tensors: dict[str, Tensor]) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in tensors.items()}


def size(packed: Packed) -> int:
    return sum(value.numel() * value.element_size() for value in packed.tensors.values())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 999),
    storage=st.sampled_from(["fp16", "int8"]),
    scale=st.sampled_from([1e-38, 1e-6, 0.02, 1.0, 300.0, 1e5]),
)
def test_what_was_unpacked_packs_to_the_same_bytes(seed: int, storage: str, scale: float) -> None:
    packed = Packed(weights(seed, size=scale)).repacked(storage)
    back = packed.unpacked()
    again = lossless(back, storage)
    assert again.storage == storage
    assert encode_tensors(again.tensors) == encode_tensors(packed.tensors)
    assert {value.dtype for value in back.values()} == {torch.float32, torch.int64}


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 999), rows=st.integers(0, 5), width=st.integers(1, 40))
def test_eight_bits_are_off_by_half_a_step_of_their_row_at_most(seed: int, rows: int, width: int) -> None:
    value = weights(seed, rows, width)["dense"] * torch.logspace(-6, 3, rows)[:, None]
    back = Packed({"w": value}).repacked("int8").unpacked()["w"]
    step = value.abs().amax(dim=-1, keepdim=True) / 127
    assert ((back - value).abs() <= 0.505 * step).all()  # the scale itself has 8 digits


def test_half_precision_is_off_by_one_in_two_thousand() -> None:
    plain = weights(0)
    back = Packed(plain).repacked("fp16").unpacked()
    assert torch.allclose(back["dense"], plain["dense"], rtol=2**-11, atol=1e-7)
    assert torch.equal(back["counts"], plain["counts"])


def test_numbers_that_do_not_fit_stay_as_they_are() -> None:
    large = {"w": torch.tensor([1e6, 2.0]), "odd": torch.tensor([[float("nan"), 1.0]])}
    for storage in ("fp16", "int8"):
        back = Packed(large).repacked(storage).unpacked()
        assert torch.equal(back["w"], large["w"])
        assert torch.equal(back["odd"].isnan(), large["odd"].isnan())


def test_rows_of_zeros_stay_zero() -> None:
    value = torch.zeros(3, 8)
    value[1] = 127 / 256
    assert torch.equal(Packed({"w": value}).repacked("int8").unpacked()["w"], value)


def test_changed_numbers_are_saved_whole_again() -> None:
    back = Packed(weights(1)).repacked("int8").unpacked()
    back["dense"][2, 3] += 1e-3
    saved = lossless(back, "int8")
    assert saved.storage == "fp32"
    assert torch.equal(saved.unpacked()["dense"], back["dense"])


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), energy=st.floats(0.05, 1.0))
def test_factors_keep_the_energy_and_are_smaller_or_not_there(seed: int, energy: float) -> None:
    plain = weights(seed)
    packed = Packed(plain).repacked(energy=energy)
    back = packed.unpacked(shapes(plain))
    for name in ("dense", "thin"):
        kept = float(back[name].square().sum() / plain[name].square().sum())
        assert kept >= energy - 1e-5
        if name + LEFT in packed.tensors:
            parts = packed.tensors[name + LEFT].numel() + packed.tensors[name + RIGHT].numel()
            assert parts < plain[name].numel()
        else:
            assert torch.equal(back[name], plain[name])
    assert "thin" + LEFT in packed.tensors  # rank 2 of 6 x 24
    assert torch.equal(back["bias"], plain["bias"])


def test_low_rank_matrices_are_thin_without_loss() -> None:
    plain = weights(3)
    packed = Packed(plain).repacked(energy=1.0)
    assert packed.tensors["thin" + LEFT].shape == (6, 2)
    assert torch.allclose(packed.unpacked(shapes(plain))["thin"], plain["thin"], atol=1e-5)


def test_energy_counts_from_what_was_learned_and_is_not_taken_twice() -> None:
    packed = Packed(weights(4)).repacked(energy=0.7)
    assert packed.repacked(energy=0.7) is packed
    assert packed.repacked(energy=0.9) is packed
    less = packed.repacked(energy=0.4)
    direct = Packed(weights(4)).repacked(energy=0.4)
    assert less.energy == 0.4
    assert less.tensors["dense" + LEFT].shape[1] >= direct.tensors["dense" + LEFT].shape[1]
    eight = packed.repacked("int8")
    assert eight.energy == 0.7
    assert eight.tensors["dense" + LEFT].dtype == torch.int8
    assert size(eight) < size(packed) / 2


def test_a_manifest_says_how_and_nothing_means_fp32() -> None:
    plain = weights(5)
    for storage, energy in (("fp32", None), ("int8", None), ("fp16", 0.8), ("fp32", 0.8)):
        packed = Packed(plain).repacked(storage, energy)
        again = Packed.of(packed.tensors, packed.spec())
        assert (again.storage, again.energy) == (packed.storage, packed.energy)
    assert Packed(plain).spec() == {}
    assert Packed.of(plain, {}).unpacked().keys() == plain.keys()


@pytest.mark.parametrize(
    "spec", [{"storage": "int4"}, {"storage": None}, {"energy": "high"}, {"energy": 7.0}, {"energy": True}]
)
def test_manifests_that_make_no_sense_are_refused(spec: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="unknown"):
        Packed.of(weights(6), spec)


def test_a_small_file_cannot_ask_for_a_large_matrix() -> None:
    factors = {"w" + LEFT: torch.ones(2_000, 1), "w" + RIGHT: torch.ones(1, 2_000)}
    for wanted in ({"w": torch.Size([6, 24])}, None):
        with pytest.raises((ValueError, KeyError)):
            Packed.of(factors, {"energy": 0.5}).unpacked(wanted)
    spread = {"w": torch.ones(2_000, 1, dtype=torch.int8), "w" + SCALE: torch.ones(1, 2_000)}
    with pytest.raises(ValueError, match="do not belong together"):
        Packed.of(spread, {"storage": "int8"}).unpacked()


def test_wrong_wishes_are_one_line() -> None:
    with pytest.raises(EaseError, match="did you mean 'int8'"):
        check_storage("int9")
    for energy in (0.0, -1.0, 1.01, float("nan")):
        with pytest.raises(EaseError, match="is no share to keep"):
            check_energy(energy)
