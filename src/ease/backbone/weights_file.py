"""Reads a weights file into tensors. Nothing in a file is ever executed."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ease.errors import EaseError
from ease.filesystem import shown, what_is

SUFFIXES = (".safetensors", ".npz")
PICKLED = (".pth", ".pt", ".bin")

LIMIT = 16 * 2**30
"""Far above any plain ViT; a packed file may claim more."""
RATIO = 4
"""How many times smaller than its content a compressed file may be: weights hardly shrink, zeros do so endlessly."""


def _size(path: Path) -> int:
    """Bytes when unpacked."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    return path.stat().st_size


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors or .npz (JAX) file, under the file's own names."""
    what = what_is(path)
    if what != "file":
        reason = "does not exist" if what == "missing" else "is not a file"
        raise EaseError(f"weights file '{shown(path)}' {reason}: check the path")
    if path.suffix in PICKLED:
        raise EaseError(
            f"weights file '{path}' is a pickle, which may run code when it is opened: if you trust it, load it with "
            "torch and save its tensors with safetensors.torch.save_file"
        )
    if path.suffix not in SUFFIXES:
        raise EaseError(f"weights file '{path}' has an unknown type; use one of {', '.join(SUFFIXES)}")
    try:
        size = _size(path)
        if size > RATIO * path.stat().st_size + 2**20:
            raise EaseError(
                f"weights file '{path}' unpacks to {size} bytes, which no weights do; is it the right file?"
            )
        if size <= LIMIT and path.suffix == ".safetensors":
            return dict(load_file(path))
        if size <= LIMIT:
            with np.load(path, allow_pickle=False) as archive:
                return {name: torch.from_numpy(archive[name]) for name in archive.files}
    except EaseError:
        raise
    except Exception as error:  # every reader has its own exceptions for a damaged file
        raise EaseError(f"weights file '{path}' cannot be read: it is damaged or incomplete") from error
    raise EaseError(f"weights file '{path}' is larger than {LIMIT // 2**30} GB; is it the right file?")
