"""Finished trainings, kept by everything they depend on: cells of a study that train the same do it once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ease.errors import EaseError
from ease.storage.files import make_folder, read_metadata, read_tensors, write_tensors
from ease.streams import ImageSet
from ease.training.fit import Training


@dataclass(frozen=True)
class Finished:
    """A training's end: the module's tensors, the mean loss of each epoch, the seconds it took."""

    tensors: dict[str, Tensor]
    losses: list[float]
    seconds: float


class Trainings:
    """A folder of finished trainings. It holds weights, never images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Finished | None:
        """The training of this key; a damaged file counts as none and is written again."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            tensors, told = read_tensors(path), read_metadata(path)
            return Finished(tensors, json.loads(told["losses"]), float(told["seconds"]))
        except (EaseError, KeyError, ValueError):
            return None

    def keep(self, key: str, finished: Finished) -> None:
        """Put a training where others find it."""
        make_folder(self.folder)
        told = {"losses": json.dumps(finished.losses), "seconds": repr(finished.seconds)}
        write_tensors(self._path(key), finished.tensors, told)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def training_key(
    module: nn.Module, images: ImageSet, training: Training, circumstances: dict[str, Any]
) -> str:
    """Names what a training will come to.

    Args:
        module: as it is before the first step.
        images: in their order, with their labels.
        training: only the fields of `Training` count; what a method adds to it must be in `circumstances`.
        circumstances: anything else that decides the result, as JSON.
    """
    name = hashlib.blake2b(digest_size=16)
    for key, value in sorted(module.state_dict().items()):
        name.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        name.update(value.detach().cpu().contiguous().numpy().tobytes())
    for index in range(len(images)):
        name.update(f"{images.digest(index)} {images.labels[index]}\n".encode())
    told = {field: getattr(training, field) for field in Training.model_fields}
    name.update(json.dumps([told, circumstances], sort_keys=True).encode())
    return name.hexdigest()
