"""A store of finished trainings, so that cells of a study that train the same thing do it only once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from ease.errors import EaseError
from ease.storage.contents import read_metadata, read_tensors, write_tensors
from ease.storage.files import make_folder
from ease.streams import ImageSet
from ease.training.fit import Training


@dataclass(frozen=True)
class Finished:
    """The result of a training.

    Attributes:
        tensors: The state of the trained module.
        losses: The mean loss of each epoch.
        seconds: The duration.
    """

    tensors: dict[str, Tensor]
    losses: list[float]
    seconds: float


class Trainings:
    """A folder of finished trainings. It contains weights and no images."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Finished | None:
        """The training with this key, or None. A damaged file counts as missing."""
        path = self._path(key)
        if not path.exists():
            return None
        try:
            tensors, metadata = read_tensors(path), read_metadata(path)
            return Finished(tensors, json.loads(metadata["losses"]), float(metadata["seconds"]))
        except (EaseError, KeyError, ValueError):
            return None

    def keep(self, key: str, finished: Finished) -> None:
        """Store a training."""
        make_folder(self.folder)
        metadata = {"losses": json.dumps(finished.losses), "seconds": repr(finished.seconds)}
        write_tensors(self._path(key), finished.tensors, metadata)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def training_key(
    module: nn.Module, images: ImageSet, training: Training, circumstances: dict[str, Any]
) -> str:
    """A hash of everything that decides the result of a training.

    Args:
        module: The module before the first step.
        images: The training images with their labels, in order.
        training: Only the fields of `Training` count. A setting that a method adds to it must be in `circumstances`.
        circumstances: Everything else that decides the result, as JSON.

    Returns:
        A hexadecimal digest.
    """
    name = hashlib.blake2b(digest_size=16)
    for key, value in sorted(module.state_dict().items()):
        name.update(f"{key} {value.dtype} {tuple(value.shape)}\n".encode())
        name.update(value.detach().cpu().contiguous().numpy().tobytes())
    for index in range(len(images)):
        name.update(f"{images.digest(index)} {images.labels[index]}\n".encode())
    settings = {field: getattr(training, field) for field in Training.model_fields}
    name.update(json.dumps([settings, circumstances], sort_keys=True).encode())
    return name.hexdigest()
