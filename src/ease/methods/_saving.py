"""A learner in and out of a model directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.errors import EaseError
from ease.methods._base import Files, Learner
from ease.methods._older_settings import current_settings
from ease.methods._registry import find_method
from ease.storage.manifest import BackboneEntry, ClassEntry, Manifest, ModelState
from ease.storage.model_directory import ModelDirectory
from ease.streams import Stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.memory import Memory

BACKBONE_FILE = "backbone.safetensors"
"""Where a model directory that was unpacked from an archive has its backbone."""


def save_model(
    directory: ModelDirectory,
    learner: Learner,
    classes: Sequence[ClassEntry],
    memory: Memory | None = None,
    *,
    more: Files | None = None,
    keep: Sequence[str] = (),
    **fields: Any,
) -> int:
    """Write a new generation: what the learner is after its last task. Returns the generation's number.

    Args:
        directory: where to.
        learner: what to save.
        classes: id, name, task and image count of each class, in the order of the logits.
        memory: old images, for methods that keep them.
        more: other files of the generation.
        keep: files of the generation before, carried over without being read.
        fields: further fields of `ModelState`, such as `history`.
    """
    files, meta = learner.state()
    files |= more or {}
    if memory is not None:
        files |= memory.state()
    state = ModelState(
        method=learner.name,
        settings=learner.settings.model_dump(mode="json"),
        backbone=backbone_fields(learner.backbone),
        classes=list(classes),
        passes_per_image=learner.passes_per_image(),
        learner=meta,
        **fields,
    )
    return directory.commit(state, files, keep)


def backbone_fields(backbone: Backbone) -> BackboneEntry:
    """What must be the same for a saved model to mean the same."""
    pixels = backbone.pixels
    return BackboneEntry(
        name=backbone.name,
        weights_hash=backbone.weights_hash,
        input_size=pixels.size,
        mean=list(pixels.mean),
        std=list(pixels.std),
        interpolation=pixels.interpolation,
    )


def class_fields(stream: Stream, tasks: int) -> list[ClassEntry]:
    """Stable ids, names, tasks and image counts of the classes of the first tasks."""
    return [
        ClassEntry(id=c, name=name, task=task.index, count=int(np.sum(task.train.labels == c)))
        for task in stream.tasks[:tasks]
        for c, name in zip(task.classes, task.names, strict=True)
    ]


def restore_learner(
    directory: ModelDirectory, engine: Engine, memory: Memory | None = None, number: int | None = None
) -> tuple[Learner, Manifest]:
    """The learner of a generation, the current one unless it is named, and its manifest."""
    generation = directory.load(number)
    manifest = generation.manifest
    with making_sense(directory):
        expected, found = manifest.backbone, backbone_fields(engine.backbone)
        if expected.weights_hash != found.weights_hash:
            raise EaseError(
                f"the model in {directory.path} was learned on another '{expected.name}': its weights differ from "
                f"those of '{found.name}' here; give the file it was learned with (--weights)"
            )
        for key in ("input_size", "mean", "std", "interpolation"):
            before, now = getattr(expected, key), getattr(found, key)
            if before != now:
                raise EaseError(f"the model in {directory.path} was learned with {key} {before}, not {now}")
        learner_type = find_method(manifest.method)
        settings, notes = current_settings(learner_type.name, manifest.settings)
        learner = learner_type(engine, learner_type.Settings.model_validate(settings))
        for note in notes:
            engine.report(note)
        learner.load_state(generation.files, manifest.learner)
        if memory is not None:
            memory.load_state(generation.files)
    return learner, manifest


@contextmanager
def making_sense(directory: ModelDirectory) -> Iterator[None]:
    """A manifest's checksum says that it is whole, not that it makes sense: it may be another version's, or forged."""
    try:
        yield
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:120]
        raise EaseError(
            f"the model in {directory.path} does not make sense ({type(error).__name__}: {reason}): "
            "it is damaged or of another version of ease"
        ) from error


def weights_beside(directory: ModelDirectory) -> Path | None:
    """The file with the backbone's weights in the model directory, if there is one."""
    path = directory.path / BACKBONE_FILE
    return path if path.is_file() else None


def backbone_of(directory: ModelDirectory, weights: Path | str | None = None) -> Backbone:
    """The backbone that a saved model was learned on.

    Without `weights` the backbone's own file in the model directory is taken, if there is one (see `ease unpack`).
    """
    manifest = directory.manifest()
    with making_sense(directory):
        spec = manifest.backbone
        unnormalised = all(m == 0 for m in spec.mean) and all(s == 1 for s in spec.std)
        return load_backbone(
            spec.name,
            weights=weights_beside(directory) if weights is None else weights,
            input_size=spec.input_size,
            normalize="none" if unnormalised else "model",
        )


def open_model(
    path: Path | str, weights: Path | str | None = None, fabric: Any = None, batch_size: int = 64
) -> tuple[Learner, Manifest]:
    """A saved model, ready to score images: its backbone is loaded as the manifest says."""
    directory = ModelDirectory(path)
    backbone = backbone_of(directory, weights)
    engine = Engine(backbone, Transforms(backbone.pixels), fabric=fabric, batch_size=batch_size)
    return restore_learner(directory, engine)
