"""The feature store. Frozen subspaces never change, so each feature of an image is computed only once."""

from __future__ import annotations

import hashlib
import io
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ease.storage.files import make_folder, write_atomic


@dataclass(frozen=True)
class FeatureKey:
    """Everything that a feature depends on besides the image."""

    transform: str
    backbone: str
    tuning: str
    precision: str
    reading: str

    @property
    def name(self) -> str:
        """A hash that can be used as a folder name."""
        text = "|".join([self.transform, self.backbone, self.tuning, self.precision, self.reading])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


@dataclass
class _Index:
    """The block and the row of each image's feature."""

    where: dict[str, tuple[int, int]] = field(default_factory=dict)
    blocks: list[np.ndarray] = field(default_factory=list)


class FeatureStore:
    """Features by key and image digest, in memory up to a limit and memory-mapped from disk beyond it.

    Every call of `put` adds one block, which is written to disk before it can be read. After an interruption, the
    features that were computed so far are found again in the same folder.

    Args:
        folder: Folder of the blocks; features are kept in memory only if None.
        memory: Bytes of features to keep in memory. Without a folder there is no limit.
        writes: False in those processes of a distributed run that only read.
    """

    def __init__(self, folder: Path | None = None, memory: int = 256 * 2**20, writes: bool = True) -> None:
        self.folder = folder
        self.memory = memory
        self.writes = writes
        self.used = 0
        self._indices: dict[str, _Index] = {}

    def get(self, key: FeatureKey, digests: list[str]) -> Tensor | None:
        """Features [N, d] of these images, or None if any of them is missing."""
        index = self._index(key)
        try:
            places = [index.where[d] for d in digests]
        except KeyError:
            return None
        if not places:
            return None
        return torch.from_numpy(np.stack([index.blocks[block][row] for block, row in places]))

    def put(self, key: FeatureKey, digests: list[str], features: Tensor) -> None:
        """Store the features [N, d] of these images."""
        index = self._index(key)
        rows = features.detach().cpu().float().numpy()
        if self.folder is not None:
            path = self.folder / key.name / _block_name(len(index.blocks), digests)
            if self.writes:
                _write_block(path, digests, rows)
            if self.used + rows.nbytes > self.memory:
                stored = _read_block(path)
                rows = rows if stored is None else stored[1]
        if not isinstance(rows, np.memmap):
            self.used += rows.nbytes
        self._add(index, digests, rows)

    @staticmethod
    def _add(index: _Index, digests: list[str], rows: np.ndarray) -> None:
        number = len(index.blocks)
        index.blocks.append(rows)
        index.where.update({digest: (number, row) for row, digest in enumerate(digests)})

    def _index(self, key: FeatureKey) -> _Index:
        if key.name not in self._indices:
            self._indices[key.name] = index = _Index()
            if self.folder is not None:
                for path in sorted((self.folder / key.name).glob("[0-9]*.npy")):
                    self._add(index, *(_read_block(path) or ([], np.empty((0, 0), np.float32))))
        return self._indices[key.name]


def _block_name(number: int, digests: list[str]) -> str:
    """Runs on several machines may share a folder: equal names must mean the same images."""
    content = hashlib.blake2b("".join(digests).encode(), digest_size=6).hexdigest()
    return f"{number:06d}-{content}.npy"


def _block_type(width: int) -> np.dtype:
    return np.dtype([("digest", "V16"), ("check", "<u4"), ("feature", "<f4", (width,))])


def _write_block(path: Path, digests: list[str], rows: np.ndarray) -> None:
    block = np.empty(len(rows), _block_type(rows.shape[1]))
    block["digest"] = [bytes.fromhex(d) for d in digests]
    block["check"] = [zlib.crc32(row.tobytes()) for row in rows]
    block["feature"] = rows
    buffer = io.BytesIO()
    np.save(buffer, block, allow_pickle=False)
    make_folder(path.parent)
    write_atomic(path, buffer.getvalue(), durable=False)


def _read_block(path: Path) -> tuple[list[str], np.ndarray] | None:
    """Digests and memory-mapped features, or None for a damaged block, which is then computed again."""
    try:
        block = np.load(path, mmap_mode="r", allow_pickle=False)
        rows = block["feature"]
        if any(zlib.crc32(row.tobytes()) != check for row, check in zip(rows, block["check"], strict=True)):
            return None
    except (OSError, ValueError, IndexError, EOFError):
        return None
    return [digest.tobytes().hex() for digest in block["digest"]], rows
