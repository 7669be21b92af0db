"""From a decoded image to the input of the backbone. All random numbers are passed in."""

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

import ease.vision_libraries  # noqa: F401

# isort: split
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as pixelwise

from ease.errors import EaseError
from ease.streams.stream import Augmentation

if TYPE_CHECKING:
    from ease.backbone.vit import Pixels

TRIES = 10
DRAWS = 2 * TRIES + 3
"""Random numbers that one training image needs: area and ratio of ten attempts, top, left, flip."""

_VERSION = 1
"""Increased when the output of `test` changes for equal settings, so that stored features are not reused."""

_LONGEST = 16
"""An image with a larger aspect ratio is cropped before it is resized: a 1 x 100,000 strip would need gigabytes."""


class Transforms:
    """The train and test transform of one backbone on one dataset.

    Args:
        pixels: The input of the backbone: side length s, mean, standard deviation, interpolation for testing.
        augmentation: How training images are varied.
        raw: Whether images are already s x s; they are only scaled and normalised, in training too.
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
        """Transforms for images that already have the right size: no resizing, cropping or mirroring."""
        return cls(pixels, raw=True)

    @property
    def id(self) -> str:
        """A hash of everything that decides the output of `test`; part of the key of a stored feature."""
        wants = self.pixels
        settings = [_VERSION, self.is_raw, wants.size, wants.mean, wants.std, wants.interpolation]
        return hashlib.blake2b(json.dumps(settings).encode(), digest_size=8).hexdigest()

    def test(self, image: Tensor) -> Tensor:
        """Resize the short side to 256/224 s, crop the centre and normalise.

        Args:
            image: uint8 RGB [3, H, W].

        Returns:
            float32 [3, s, s].
        """
        return self.scaled(self.test_crop(image))

    def test_crop(self, image: Tensor) -> Tensor:
        """`test` without its last step, the normalisation.

        Args:
            image: uint8 RGB [3, H, W].

        Returns:
            uint8 RGB [3, s, s].
        """
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
        """A description of `test` in JSON values, for programs that use an exported model."""
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
        """Crop at random, resize to s x s, mirror some, normalise.

        Args:
            images: N images, uint8 RGB [3, H, W] of any size.
            uniforms: [N, DRAWS], random numbers in [0, 1).

        Returns:
            float32 [N, 3, s, s].
        """
        if uniforms.shape != (len(images), DRAWS):
            raise ValueError(f"{len(images)} training images need {DRAWS} uniform numbers each")
        # Crops differ in size, so they are resized one by one; everything else is done for the whole batch.
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
        # Always bilinear, whatever the interpolation for testing: torchvision's default, as in the released code.
        return pixelwise.resize_image(
            image, [self.pixels.size, self.pixels.size], InterpolationMode.BILINEAR, antialias=True
        )

    def _check_size(self, image: Tensor) -> Tensor:
        size = self.pixels.size
        if tuple(image.shape) != (3, size, size):
            raise ValueError(f"a raw image must be [3, {size}, {size}], not {list(image.shape)}")
        return image

    def scaled(self, crops: Tensor) -> Tensor:
        """Scale to [0, 1] and normalise.

        Args:
            crops: uint8 [..., 3, s, s].

        Returns:
            A new tensor, float32 [..., 3, s, s].
        """
        values = crops.to(torch.float32, memory_format=torch.contiguous_format, copy=True).div_(255)
        return values.sub_(self._mean).div_(self._std) if self._normalises else values


def crop_box(
    height: int, width: int, augmentation: Augmentation, uniforms: npt.NDArray[np.floating]
) -> tuple[int, int, int, int]:
    """Choose a training crop, distributed as by torchvision's RandomResizedCrop.

    Area and log-ratio are uniform. Of ten attempts the first that fits is taken, otherwise the largest central crop
    whose ratio is allowed.

    Args:
        height: Height of the image.
        width: Width of the image.
        augmentation: The ranges of area and ratio.
        uniforms: [DRAWS], random numbers in [0, 1).

    Returns:
        top, left, height, width.
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
