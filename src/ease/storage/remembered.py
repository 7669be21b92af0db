"""What a model directory remembers of its files: a commit neither reads nor encodes again what has not changed."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ease.storage.manifest import Manifest, StoredFile

SMALL = 16
"""Numbers of a tensor that is compared by what is in it."""


@dataclass(frozen=True)
class RememberedGeneration:
    """What a commit must know of a generation on disk. Whole manifests of a hundred generations would fill memory."""

    generation: int
    files: dict[str, StoredFile]
    sizes: dict[str, int]
    """Path -> size of each file."""
    kinds: frozenset[str]
    """The folders that its files lie in."""
    next_id: int
    clears_history: bool
    digest: bytes
    """Of the manifest's content."""
    size: int
    """Of the manifest itself."""

    @classmethod
    def of(
        cls, manifest: Manifest, raw: bytes, before: Iterable[RememberedGeneration]
    ) -> RememberedGeneration:
        """Entries that a generation seen before has as well are shared with it."""
        known = next(iter(before), None)
        files = {}
        for name, entry in manifest.files.items():
            same = known.files.get(name) if known else None
            files[name] = same if same == entry and same is not None else entry
        paths = {entry.path: entry.size for entry in files.values()}
        return cls(
            manifest.generation,
            files,
            paths,
            frozenset(name.split("/")[0] for name in (*files, *paths)),
            max([manifest.next_id or 0, *(1 + entry.id for entry in manifest.classes)]),
            manifest.clears_history,
            hashlib.sha256(raw).digest(),
            len(raw),
        )


@dataclass(frozen=True)
class RememberedFile:
    """A file that this process wrote or checked: the tensors in it, and the file as it was then."""

    tensors: dict[str, weakref.ref[Tensor] | Tensor]
    """By name: which tensor it was, or what was in it if it was small, since learners make small ones anew."""
    versions: dict[str, int]
    """How often each tensor had been changed in place."""
    entry: StoredFile
    facts: tuple[int, int, int, int]
    content: bytes | None
    """Hash of the tensors; None if it was not computed."""

    @classmethod
    def of(
        cls,
        tensors: Mapping[str, Tensor],
        entry: StoredFile,
        facts: tuple[int, int, int, int],
        content: bytes | None = None,
    ) -> RememberedFile | None:
        """None if the tensors cannot be recognised again."""
        if any(value.is_inference() for value in tensors.values()):
            return None
        known = {
            name: value.detach().clone() if value.numel() <= SMALL else weakref.ref(value)
            for name, value in tensors.items()
        }
        return cls(known, {name: value._version for name, value in tensors.items()}, entry, facts, content)

    def holds(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether these are the same tensors, in any order, and none was changed since."""
        if len(tensors) != len(self.tensors):
            return False
        for name, value in tensors.items():
            known = self.tensors.get(name)
            if isinstance(known, Tensor):
                if known.dtype != value.dtype or not torch.equal(known, value.detach().cpu()):
                    return False
            elif known is None or known() is not value or value._version != self.versions[name]:
                return False
        return True


def facts_of(path: Path) -> tuple[int, int, int, int]:
    """What changes when a file is written to or replaced."""
    facts = os.stat(path)
    return facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def content_of(tensors: Mapping[str, Tensor]) -> bytes:
    """A hash of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\0".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.digest()
