"""Random numbers from counters, so that an interrupted training can be continued bit for bit.

Every generator is seeded from a name that says what its numbers are used for: initialisation (seed, task), order (seed,
task, epoch), augmentation (seed, task, epoch, image), dropout (seed, task, epoch, step). The numbers depend neither on
the number of workers nor on what ran before.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import torch

from ease.streams.images import IntArray


def counter(*name: int | str) -> int:
    """A 63-bit number that depends on every part of the name and on nothing else.

    Example:
        >>> counter(1993, "init", 0) == counter(1993, "init", 0) != counter(1993, "init", 1)
        True
    """
    text = "/".join(f"{type(part).__name__}:{part}" for part in name)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def generator(*name: int | str) -> torch.Generator:
    """A CPU generator that is seeded from this name."""
    return torch.Generator().manual_seed(counter(*name))


def seed_layers(device: torch.device, *name: int | str) -> None:
    """Seed torch's own generators, which dropout and similar layers draw from."""
    if device.type == "cpu":  # torch.manual_seed also handles other devices, which is slow
        torch.default_generator.manual_seed(counter(*name))
    else:
        torch.manual_seed(counter(*name))


def permutation(size: int, *name: int | str) -> IntArray:
    """A random permutation of `size` items."""
    return _numpy(*name).permutation(size).astype(np.int64)


def uniforms(rows: int, draws: int, *name: int | str) -> npt.NDArray[np.float64]:
    """Uniform numbers [rows, draws] in [0, 1). A row does not depend on the number of rows."""
    return _numpy(*name).random((rows, draws))


def _numpy(*name: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=counter(*name)))
