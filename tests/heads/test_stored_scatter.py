"""The pooled scatter in fewer digits: what comes back is near, and always the scatter of something."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ease.heads.stored_scatter import scatter_of, scatter_tensors
from ease.heads.whitened import WhitenedHead, factored_scatter

WIDTH = 24


def features(images: int, floor: float = 1e-3) -> Tensor:
    """Of a few strong directions, scales between .01 and 100, and next to nothing elsewhere; fp64."""
    draw = torch.Generator().manual_seed(0)
    strong = torch.randn(images, 4, generator=draw) @ torch.randn(4, WIDTH, generator=draw)
    weak = floor * torch.randn(images, WIDTH, generator=draw)
    return ((strong + weak) * torch.logspace(-2, 2, WIDTH)).double()


def scatter(images: int = 200, floor: float = 1e-3) -> Tensor:
    found = features(images, floor)
    return found.mT @ found


def relative(found: Tensor, wanted: Tensor) -> float:
    """Largest difference of the correlations."""
    scale = wanted.diagonal().sqrt()
    return float(((found - wanted) / (scale[:, None] * scale)).abs().max())


def test_the_factor_is_triangular_of_unit_rows_and_gives_the_scatter_back() -> None:
    wanted = scatter()
    deviations, factor = factored_scatter(wanted)
    assert torch.equal(factor, factor.tril())
    assert torch.allclose(factor.norm(dim=1), torch.ones(WIDTH, dtype=torch.float64), atol=1e-6)
    rows = deviations[:, None] * factor
    assert relative(rows @ rows.mT, wanted) < 1e-12


@pytest.mark.parametrize(("storage", "tolerance"), [("fp32", 1e-6), ("fp16", 1e-3), ("int8", 2e-2)])
def test_it_comes_back_near(storage: str, tolerance: float) -> None:
    wanted = scatter()
    found = scatter_of(scatter_tensors(wanted, storage), storage, WIDTH)
    assert found.dtype == torch.float64
    assert torch.equal(found, found.mT)
    assert relative(found, wanted) < tolerance


@pytest.mark.parametrize("storage", ["fp16", "int8"])
@pytest.mark.parametrize("images", [200, 3])
def test_what_comes_back_is_a_scatter_where_rounding_the_matrix_gives_none(storage: str, images: int) -> None:
    wanted = scatter(images)
    found = scatter_of(scatter_tensors(wanted, storage), storage, WIDTH)
    scale = wanted.diagonal().sqrt()

    def smallest(matrix: Tensor) -> float:
        return float(torch.linalg.eigvalsh(matrix / (scale[:, None] * scale))[0])

    assert smallest(found) > -1e-12
    rounded = (wanted / (scale[:, None] * scale)).half().double() * (scale[:, None] * scale)
    assert smallest(rounded) < -1e-5  # which is why a factor is stored


def test_bytes() -> None:
    def size(storage: str) -> int:
        return sum(t.numel() * t.element_size() for t in scatter_tensors(scatter(), storage).values())

    triangle = WIDTH * (WIDTH + 1) // 2
    assert size("fp32") == 4 * triangle
    assert size("fp16") == 2 * triangle + 4 * WIDTH
    assert size("int8") == triangle + 2 * WIDTH + 4 * WIDTH


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_features_that_never_vary_and_no_image_at_all(storage: str) -> None:
    nothing = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    assert torch.equal(scatter_of(scatter_tensors(nothing, storage), storage, WIDTH), nothing)
    some = features(50)
    some[:, 5] = 0
    found = scatter_of(scatter_tensors(some.mT @ some, storage), storage, WIDTH)
    assert not found[5].any()
    assert not found[:, 5].any()
    assert found.isfinite().all()


def test_scores_hardly_change() -> None:
    head = WhitenedHead(WIDTH)
    head.grow(2)
    shown, labels = features(120), torch.arange(120) % 2
    shown[labels == 1] += 0.05 * torch.logspace(-2, 2, WIDTH)
    head.add(shown, labels)
    wanted, exact = head.scores(shown), head.scatter
    for storage, tolerance in (("fp16", 2e-2), ("int8", 0.3)):
        head.scatter = scatter_of(scatter_tensors(exact, storage), storage, WIDTH)
        head.round_as_saved()  # so that the whitening is computed anew
        found = head.scores(shown)
        assert (found - wanted).abs().max() < tolerance
        assert not torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("deviations", torch.ones(WIDTH - 1)),
        ("deviations", -torch.ones(WIDTH)),
        ("deviations", torch.full((WIDTH,), torch.nan)),
        ("factor", torch.zeros(7, dtype=torch.int8)),
        ("factor@scale", torch.ones(WIDTH + 1, dtype=torch.bfloat16)),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(name: str, wrong: Tensor) -> None:
    tensors = {**scatter_tensors(scatter(), "int8"), name: wrong}
    with pytest.raises(ValueError, match=r"\w"):
        scatter_of(tensors, "int8", WIDTH)
