"""Images in memory as a source: arrays, tensors, Pillow images, bytes of files; and paths of single files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor, uint8

from ease.errors import EaseError
from ease.streams.images import ImageSet
from ease.streams.intake.decode import ImageContent, MixedSource, decode_pillow
from ease.streams.intake.limits import LIMITS
from ease.streams.intake.names import class_names
from ease.streams.intake.sources.candidates import Candidate, Candidates
from ease.streams.intake.stored import StoredImage


def from_memory(classes: Mapping[str, Sequence[Any]]) -> Candidates:
    """List the images of a mapping.

    Args:
        classes: Class name -> images in any form that `as_image_set` accepts.

    Returns:
        The images; classes in the order given.
    """
    names = class_names(classes)
    images = []
    for label, (name, values) in enumerate(zip(names, classes.values(), strict=True)):
        given = _image_list(values, f"class '{name}'")
        own = zip(_image_names(given, name), given, strict=True)
        images += [Candidate(label, image_name, value) for image_name, value in own]
    return Candidates(names, images)


def as_image_set(images: Sequence[Any], labels: npt.ArrayLike | None = None) -> ImageSet:
    """Make one set of images of any kind. Files are opened when they are needed.

    Args:
        images: Paths, bytes of image files, Pillow images, numpy arrays (H x W or H x W x 1, 3 or 4; uint8, uint16,
            bool, or float in [0, 1]) or torch tensors (uint8 RGB [3, H, W]). Kinds may be mixed.
        labels: [N], the class of each image; all -1 if left out.

    Returns:
        The images in the order given.

    Example:
        >>> import numpy as np
        >>> images = as_image_set([np.zeros((8, 8), np.uint8), np.ones((4, 6, 3))], labels=[0, 1])
        >>> tuple(images.image(1).shape)
        (3, 4, 6)
    """
    given = _image_list(images, "images")
    names = _image_names(given, "images")
    contents = [image_content(value, name) for value, name in zip(given, names, strict=True)]
    known = np.full(len(contents), -1, np.int64) if labels is None else np.asarray(labels, dtype=np.int64)
    if known.shape != (len(contents),):
        raise EaseError(
            f"{len(contents)} images but labels of shape {list(known.shape)}: give one label each"
        )
    return ImageSet(MixedSource(contents, names), np.arange(len(contents)), known)


def image_content(value: Any, name: str) -> ImageContent:
    """Convert an image of any kind to the form in which it is held. Pixels are copied.

    Args:
        value: Any kind of image that `as_image_set` accepts.
        name: What messages call the image.
    """
    if isinstance(value, str | Path):
        return Path(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, StoredImage):
        return value
    if isinstance(value, Image.Image):
        return decode_pillow(value, name)
    if isinstance(value, np.ndarray):
        return _array_pixels(value, name)
    if isinstance(value, Tensor):
        return _tensor_pixels(value, name)
    raise EaseError(
        f"image '{name}' is a {type(value).__name__}: "
        "give a path, the bytes of a file, a Pillow image, a numpy array or a torch tensor"
    )


def _image_list(images: Any, what: str) -> list[Any]:
    """A list of images; a single image, which could be taken for a list of its rows or letters, is refused."""
    single = isinstance(images, str | bytes | bytearray | memoryview | Path | Image.Image | Mapping)
    if isinstance(images, np.ndarray | Tensor):
        colours = images.ndim == 3 and (isinstance(images, Tensor) or images.shape[-1] in (1, 3, 4))
        single = images.ndim < 3 or colours
    if single or not isinstance(images, Iterable):
        raise EaseError(f"{what}: a {type(images).__name__} is not a list of images: put it into a list")
    return list(images)


def _image_names(images: Sequence[Any], where: str) -> list[str]:
    return [str(v) if isinstance(v, str | Path) else f"{where}[{i}]" for i, v in enumerate(images)]


def _array_pixels(array: npt.NDArray[Any], name: str) -> Tensor:
    wide = array[..., None] if array.ndim == 2 else array
    if wide.ndim != 3 or wide.shape[-1] not in (1, 3, 4) or 0 in wide.shape:
        raise EaseError(
            f"image '{name}' has the shape {list(array.shape)}: give H x W, or H x W x 1, 3 or 4 channels"
        )
    LIMITS.check_size(wide.shape[1], wide.shape[0], name)
    values = _eight_bits(wide, name)
    return decode_pillow(Image.fromarray(values[..., 0] if values.shape[-1] == 1 else values), name)


def _eight_bits(array: npt.NDArray[Any], name: str) -> npt.NDArray[np.uint8]:
    kind = (array.dtype.kind, array.dtype.itemsize)
    if kind == ("u", 1):
        return np.ascontiguousarray(array)
    if kind == ("u", 2):
        return (array >> 8).astype(np.uint8)  # as for image files of 16 bits
    if kind == ("b", 1):
        return array.astype(np.uint8) * np.uint8(255)
    if kind[0] != "f":
        raise EaseError(f"image '{name}' is of {array.dtype}: give uint8, uint16, bool, or float in [0, 1]")
    if not 0 <= float(array.min()) <= float(array.max()) <= 1:  # also refuses NaN
        raise EaseError(f"image '{name}' has floats outside of [0, 1]: divide by the largest possible value")
    return np.rint(array.astype(np.float64) * 255).astype(np.uint8)


def _tensor_pixels(tensor: Tensor, name: str) -> Tensor:
    if tensor.dtype != uint8 or tensor.ndim != 3 or tensor.shape[0] != 3 or not tensor.numel():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise EaseError(
            f"image '{name}' is {dtype} {list(tensor.shape)}: give torch tensors as uint8 [3, H, W]"
        )
    LIMITS.check_size(tensor.shape[2], tensor.shape[1], name)
    return tensor.detach().cpu().clone().contiguous()
