from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ease.vision_libraries  # noqa: F401

# isort: split
from torchvision.transforms import v2

from ease.backbone.vit import Pixels
from ease.errors import EaseError
from ease.streams import DRAWS, Augmentation, Transforms
from ease.streams.transforms import crop_box

PLAIN = Pixels(64, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
HALF = Pixels(64, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def picture(height: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (3, height, width), dtype=torch.uint8, generator=torch.manual_seed(seed))


def uniforms(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(DRAWS)


def trained(transforms: Transforms, image: torch.Tensor, draws: np.ndarray) -> torch.Tensor:
    return transforms.train([image], draws[None])[0]


@pytest.mark.parametrize("shape", [(8, 8), (64, 64), (50, 90), (300, 200), (1, 1), (1, 4000)])
def test_both_transforms_give_the_size_the_backbone_wants(shape: tuple[int, int]) -> None:
    transforms = Transforms(HALF)
    for out in (transforms.test(picture(*shape)), trained(transforms, picture(*shape), uniforms())):
        assert out.shape == (3, 64, 64)
        assert out.dtype == torch.float32
        assert out.is_contiguous()
        assert -1 <= out.min() <= out.max() <= 1


@pytest.mark.parametrize("size", [64, 224])
def test_the_test_transform_is_resize_to_256_of_224_and_centre_crop(size: int) -> None:
    image = picture(300, 400)
    reference = v2.Compose(
        [
            v2.Resize(round(256 * size / 224), v2.InterpolationMode.BICUBIC, antialias=True),
            v2.CenterCrop(size),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize([0.1, 0.2, 0.3], [0.4, 0.5, 0.6]),
        ]
    )
    ours = Transforms(Pixels(size, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))).test(image)
    torch.testing.assert_close(ours, reference(image), rtol=0, atol=1e-6)


def test_mean_0_and_std_1_leave_the_pixels_between_0_and_1() -> None:
    white = torch.full((3, 80, 80), 255, dtype=torch.uint8)
    assert torch.equal(Transforms(PLAIN).test(white), torch.ones(3, 64, 64))
    assert torch.equal(Transforms(HALF).test(white * 0), -torch.ones(3, 64, 64))


def test_raw_images_are_only_scaled_in_training_too() -> None:
    image = picture(64, 64)
    raw = Transforms.raw(PLAIN)
    assert torch.equal(raw.test(image), image.float() / 255)
    assert torch.equal(trained(raw, image, uniforms()), image.float() / 255)
    assert raw.id != Transforms(PLAIN).id
    with pytest.raises(ValueError, match="raw image"):
        raw.test(picture(32, 64))


def test_the_given_image_is_left_alone() -> None:
    image = picture(64, 64)
    before = image.clone()
    for transforms in (Transforms(HALF), Transforms.raw(HALF)):
        transforms.test(image)
        trained(transforms, image, uniforms())
    assert torch.equal(image, before)


def test_training_depends_on_the_uniforms_alone() -> None:
    image, transforms = picture(90, 70), Transforms(HALF)
    torch.manual_seed(1)
    first = trained(transforms, image, uniforms(3))
    torch.manual_seed(2)
    assert torch.equal(first, trained(transforms, image, uniforms(3)))
    assert not torch.equal(first, trained(transforms, image, uniforms(4)))


def test_a_batch_is_its_images_one_by_one() -> None:
    images = [picture(90, 70), picture(64, 64, 1), picture(20, 200, 2)]
    draws = np.stack([uniforms(seed) for seed in range(3)])
    for transforms in (Transforms(HALF), Transforms(PLAIN, Augmentation(flip=False))):
        alone = [trained(transforms, image, u) for image, u in zip(images, draws, strict=True)]
        assert torch.equal(transforms.train(images, draws), torch.stack(alone))
    with pytest.raises(ValueError, match="uniform numbers each"):
        Transforms(HALF).train(images, draws[:2])


def test_a_flip_mirrors_and_only_where_the_data_allow_it() -> None:
    image, flips, stays = picture(80, 80), uniforms(), uniforms()
    flips[-1], stays[-1] = 0.1, 0.9
    free, strict = Transforms(PLAIN), Transforms(PLAIN, Augmentation(flip=False))
    assert torch.equal(trained(free, image, flips), trained(free, image, stays).flip(-1))
    assert torch.equal(trained(strict, image, flips), trained(strict, image, stays))


@settings(max_examples=300, deadline=None)
@given(
    height=st.integers(1, 400),
    width=st.integers(1, 400),
    low=st.floats(0.01, 1.0),
    seed=st.integers(0, 10_000),
    extreme=st.sampled_from([None, 0.0, np.nextafter(1.0, 0.0)]),
)
def test_crops_stay_inside_the_image(
    height: int, width: int, low: float, seed: int, extreme: float | None
) -> None:
    draws = uniforms(seed) if extreme is None else np.full(DRAWS, extreme)
    top, left, h, w = crop_box(height, width, Augmentation(scale=(low, 1.0)), draws)
    assert 0 <= top < top + h <= height
    assert 0 <= left < left + w <= width


@pytest.mark.parametrize(("height", "width"), [(64, 64), (120, 50), (40, 100)])
def test_crops_are_distributed_as_torchvisions(height: int, width: int) -> None:
    augmentation = Augmentation(scale=(0.2, 1.0))
    theirs = v2.RandomResizedCrop(64, augmentation.scale, augmentation.ratio)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    torch.manual_seed(0)
    count = 2000
    wanted = np.array([list(theirs.make_params([image]).values()) for _ in range(count)], float)
    ours = np.array([crop_box(height, width, augmentation, uniforms(s)) for s in range(count)], float)
    for quantile in (0.05, 0.25, 0.5, 0.75, 0.95):
        gap = np.abs(np.quantile(ours, quantile, 0) - np.quantile(wanted, quantile, 0))
        assert np.all(gap <= 0.05 * np.array([height, width, height, width]) + 1)
    assert np.corrcoef(ours[:, 2], ours[:, 3])[0, 1] == pytest.approx(
        np.corrcoef(wanted[:, 2], wanted[:, 3])[0, 1], abs=0.1
    )


def test_a_crop_that_cannot_fit_falls_back_to_the_centre_as_torchvisions() -> None:
    whole = Augmentation(scale=(1.0, 1.0), ratio=(3 / 4, 4 / 3))
    assert crop_box(10, 100, whole, uniforms()) == (0, 43, 10, 13)
    assert crop_box(100, 10, whole, uniforms()) == (43, 0, 13, 10)


def test_the_id_names_what_decides_the_test_output() -> None:
    same = Transforms(PLAIN, Augmentation(flip=False)).id
    assert Transforms(PLAIN).id == same
    others = [HALF, Pixels(32, PLAIN.mean, PLAIN.std), Pixels(64, PLAIN.mean, PLAIN.std, "bilinear")]
    assert len({same, *(Transforms(p).id for p in others)}) == 4


def test_an_unknown_interpolation_is_refused() -> None:
    with pytest.raises(EaseError, match="bicubics"):
        Transforms(Pixels(64, PLAIN.mean, PLAIN.std, "bicubics"))
