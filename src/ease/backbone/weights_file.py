"""Reads a weights file into tensors. Nothing in a file is ever executed."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ease.errors import EaseError

SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")


LIMIT = 16 * 2**30
"""Far above any plain ViT; a packed file may claim more."""


def _size(path: Path) -> int:
    """Bytes when unpacked."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            return sum(member.file_size for member in archive.infolist())
    return path.stat().st_size


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, .npz (JAX) or .pth/.pt/.bin file, under the file's own names."""
    if not path.is_file():
        raise EaseError(f"weights file '{path}' does not exist")
    if path.suffix not in SUFFIXES:
        raise EaseError(f"weights file '{path}' has an unknown type; use one of {', '.join(SUFFIXES)}")
    if _size(path) > LIMIT:
        raise EaseError(f"weights file '{path}' is larger than {LIMIT // 2**30} GB; is it the right file?")
    try:
        if path.suffix == ".safetensors":
            return dict(load_file(path))
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                return {name: torch.from_numpy(archive[name]) for name in archive.files}
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise EaseError(
            f"weights file '{path}' is damaged or holds more than tensors; save it as .safetensors"
        ) from error
    except Exception as error:  # every reader has its own exceptions for a damaged file
        raise EaseError(f"weights file '{path}' cannot be read: it is damaged or incomplete") from error
    return _tensors(content, path)


def _tensors(content: Any, path: Path) -> dict[str, Tensor]:
    """A training checkpoint keeps its weights one level down."""
    for level in ("model", "state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(level), Mapping):
            content = content[level]
    found = (
        {k: v for k, v in content.items() if isinstance(v, Tensor)} if isinstance(content, Mapping) else {}
    )
    if not found:
        raise EaseError(f"weights file '{path}' holds no named tensors")
    return {name.removeprefix("module."): value for name, value in found.items()}
