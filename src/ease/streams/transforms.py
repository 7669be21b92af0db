"""From a decoded image to what the backbone reads. Pure functions: all randomness is passed in."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import ease.torchvision_cure  # noqa: F401

# isort: split
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as pixelwise

from ease.errors import EaseError
from ease.streams.stream import Augmentation

if TYPE_CHECKING:
    from ease.backbone.vit import Pixels

TRIES = 10
DRAWS = 2 * TRIES + 3
"""Uniform numbers one training image uses: area and ratio of ten tries, top, left, flip."""

_VERSION = 1
"""Raised when the test output changes for equal settings, so that stored features are not reused."""

_LONGEST = 16
"""Beyond this aspect ratio an image is cropped before resizing: a 1 x 100,000 strip needs gigabytes."""


class Transforms:
    """The train and test transform of one backbone on one dataset.

    Args:
        pixels: what the backbone wants (side length s, mean, std, test interpolation).
        augmentation: what training images go through.
        raw: images are already s x s: only scale and normalise them, in training too.
    """

    def __init__(
        self, pixels: Pixels, augmentation: Augmentation | None = None, *, raw: bool = False
    ) -> None:
        try:
            self._interpolation = InterpolationMode(pixels.interpolation)
        except ValueError:
            modes = ", ".join(mode.value for mode in InterpolationMode)
            raise EaseError(
                f"unknown interpolation '{pixels.interpolation}': choose one of {modes}"
            ) from None
        self.pixels = pixels
        self.augmentation = augmentation or Augmentation()
        self.is_raw = raw
        self._mean = torch.tensor(pixels.mean).view(3, 1, 1)
        self._std = torch.tensor(pixels.std).view(3, 1, 1)
        self._normalises = any(m != 0 for m in pixels.mean) or any(s != 1 for s in pixels.std)

    @classmethod
    def raw(cls, pixels: Pixels) -> Transforms:
        """For images that already have the right size: no resize, crop or flip, just /255 and normalise."""
        return cls(pixels, raw=True)

    @property
    def id(self) -> str:
        """Names everything that decides the test output; part of a stored feature's key."""
        wants = self.pixels
        settings = [_VERSION, self.is_raw, wants.size, wants.mean, wants.std, wants.interpolation]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()

    def test(self, image: Tensor) -> Tensor:
        """Resize the short side to 256/224 s, crop the centre. uint8 [3, H, W] -> float32 [3, s, s]."""
        return self.scaled(self.test_crop(image))

    def test_crop(self, image: Tensor) -> Tensor:
        """`test` before its last step: still uint8, [3, s, s]."""
        size = self.pixels.size
        if self.is_raw:
            return self._check_size(image)
        short = min(image.shape[-2:])
        image = pixelwise.center_crop_image(image, [min(side, _LONGEST * short) for side in image.shape[-2:]])
        image = pixelwise.resize_image(image, [self._short_side], self._interpolation, antialias=True)
        return pixelwise.center_crop_image(image, [size, size])

    @property
    def _short_side(self) -> int:
        return round(256 * self.pixels.size / 224)

    def described(self) -> dict[str, Any]:
        """What `test` does, for whoever has to do it elsewhere; JSON values."""
        wants = self.pixels
        resize = (
            "none"
            if self.is_raw
            else f"crop the centre to at most {_LONGEST}:1, resize the short side to {self._short_side} px with "
            f"antialiasing on 8-bit values, crop the centre {wants.size} x {wants.size}"
        )
        return {
            "input_size": wants.size,
            "resize": resize,
            "interpolation": wants.interpolation,
            "mean": list(wants.mean),
            "std": list(wants.std),
        }

    def train(self, images: Sequence[Tensor], uniforms: npt.NDArray[np.floating]) -> Tensor:
        """Random crops resized to s, maybe flipped. N times uint8 [3, H, W], and [N, DRAWS] -> float32 [N, 3, s, s]."""
        if uniforms.shape != (len(images), DRAWS):
            raise ValueError(f"{len(images)} training images need {DRAWS} uniform numbers each")
        # Each crop has a size of its own, so that they are resized one by one; all else is done for the whole batch.
        crops = torch.stack([self._train_crop(i, u) for i, u in zip(images, uniforms, strict=True)])
        if self.augmentation.flip and not self.is_raw:
            flipped = torch.from_numpy(uniforms[:, -1] < 0.5)
            crops = torch.where(flipped[:, None, None, None], crops.flip(-1), crops)
        return self.scaled(crops)

    def _train_crop(self, image: Tensor, uniforms: npt.NDArray[np.floating]) -> Tensor:
        if self.is_raw:
            return self._check_size(image)
        top, left, height, width = crop_box(image.shape[-2], image.shape[-1], self.augmentation, uniforms)
        image = image[..., top : top + height, left : left + width]
        # Bilinear whatever the test interpolation is: torchvision's default, which the released code uses.
        return pixelwise.resize_image(
            image, [self.pixels.size, self.pixels.size], InterpolationMode.BILINEAR, antialias=True
        )

    def _check_size(self, image: Tensor) -> Tensor:
        size = self.pixels.size
        if tuple(image.shape) != (3, size, size):
            raise ValueError(f"a raw image must be [3, {size}, {size}], not {list(image.shape)}")
        return image

    def scaled(self, crops: Tensor) -> Tensor:
        """uint8 [..., 3, s, s] to what the backbone reads, as a tensor of its own."""
        values = crops.to(torch.float32, memory_format=torch.contiguous_format, copy=True).div_(255)
        return values.sub_(self._mean).div_(self._std) if self._normalises else values


def crop_box(
    height: int, width: int, augmentation: Augmentation, uniforms: npt.NDArray[np.floating]
) -> tuple[int, int, int, int]:
    """A training crop (top, left, height, width), distributed as torchvision's RandomResizedCrop.

    Area and log-ratio are uniform; of ten tries the first that fits is taken, else the largest central
    crop whose ratio is allowed. uniforms: [DRAWS] in [0, 1).
    """
    (smallest, largest), (narrow, wide) = augmentation.scale, augmentation.ratio
    for attempt in range(TRIES):
        u, v = float(uniforms[2 * attempt]), float(uniforms[2 * attempt + 1])
        area = height * width * (smallest + (largest - smallest) * u)
        ratio = math.exp(math.log(narrow) + (math.log(wide) - math.log(narrow)) * v)
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return _below(height - h + 1, uniforms[-3]), _below(width - w + 1, uniforms[-2]), h, w
    w, h = min(width, max(1, round(height * wide))), min(height, max(1, round(width / narrow)))
    return (height - h) // 2, (width - w) // 2, h, w


def _below(count: int, uniform: float) -> int:
    return min(int(uniform * count), count - 1)
