"""Every random number comes from a counter, so that what was interrupted can be continued bit for bit.

A number is named by what it is for: init (seed, task), order (seed, task, epoch), augmentation (seed, task, epoch,
image), dropout (seed, task, epoch, step). Neither the worker count nor what ran before can change it.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from ease.streams.images import IntArray


def counter(*name: int | str) -> int:
    """A 63-bit number that depends on every part of the name and on nothing else."""
    text = "/".join(f"{type(part).__name__}:{part}" for part in name)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*name: int | str) -> torch.Generator:
    """A CPU generator for what bears this name."""
    return torch.Generator().manual_seed(counter(*name))


def seed_layers(device: torch.device, *name: int | str) -> None:
    """Dropout and its like draw from torch's own generators."""
    if device.type == "cpu":  # the general call also notes, with a stack trace, what to tell absent devices
        torch.default_generator.manual_seed(counter(*name))
    else:
        torch.manual_seed(counter(*name))


def permutation(size: int, *name: int | str) -> IntArray:
    """An order of `size` things."""
    return _numpy(*name).permutation(size).astype(np.int64)


def uniforms(rows: int, draws: int, *name: int | str) -> npt.NDArray[np.float64]:
    """[rows, draws] in [0, 1). A row does not depend on how many rows follow it."""
    return _numpy(*name).random((rows, draws))


def _numpy(*name: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=counter(*name)))
