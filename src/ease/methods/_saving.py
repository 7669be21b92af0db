"""A learner in and out of a model directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ease.backbone import Backbone
from ease.backbone.zoo import load_backbone
from ease.documents import reason_of
from ease.errors import EaseError
from ease.methods._allocations import bounded_allocations
from ease.methods._base import Files, Learner
from ease.methods._older_settings import current_settings
from ease.methods._registry import find_method
from ease.methods._weights import remember_weights, with_weights
from ease.storage.contents import damaged
from ease.storage.manifest import BackboneEntry, ClassEntry, Manifest, ModelState
from ease.storage.model_directory import Generation, ModelDirectory
from ease.streams import Stream
from ease.streams.transforms import Transforms
from ease.training.engine import Engine
from ease.training.hardware import resolve_precision
from ease.training.memory import Memory

_NO_SENSE = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError),
    *(RuntimeError, OverflowError, ArithmeticError, MemoryError),
)
_ROOM = 2**28
"""Numbers that restoring any model may allocate: a new strata of a ViT-L has 67 million."""

_LARGEST = 2**53
_LARGEST_REAL = 1e18
"""Its square is still finite in fp32. Features, weights and sums of squares are far below."""


def save_model(
    directory: ModelDirectory,
    learner: Learner,
    classes: Sequence[ClassEntry],
    memory: Memory | None = None,
    *,
    more: Files | None = None,
    keep: Sequence[str] = (),
    weights: Path | str | None = None,
    precision: str | None = None,
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
        weights: file that the backbone was loaded from; its path is kept beside the model.
        precision: what the model last learned in; that of the learner's engine if None.
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
        precision=precision or learner.engine.precision,
        **fields,
    )
    number = directory.commit(state, files, keep)
    remember_weights(directory, weights)
    return number


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
    directory: ModelDirectory,
    engine: Engine,
    memory: Memory | None = None,
    number: int | None = None,
    *,
    diverged: bool = False,
) -> tuple[Learner, Manifest]:
    """Restore the learner of a generation, the current one unless it is named.

    Neither the manifest nor the files are believed: both may be forged with right checksums.

    Args:
        directory: Where the model is.
        engine: What the learner computes with; its backbone must be that of the model.
        memory: Old images, for methods that keep them.
        number: The generation.
        diverged: Accept numbers that are not finite, as a training that diverged leaves them.

    Returns:
        The learner, and the manifest of the generation.
    """
    generation = directory.load(number)
    manifest = generation.manifest
    with making_sense(directory):
        if not diverged:  # needs no more memory than the files did; to count it would take most of the time
            _check_real(directory, generation)
    with making_sense(directory), bounded_allocations(_allowed(manifest)):
        _check_task_sizes(manifest)
        _check_numbers([manifest.settings, manifest.learner, manifest.calibration])
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
        learner.load_state(_files_of_learner(generation), manifest.learner)
        if memory is not None:
            memory.load_state(generation.files)
    return learner, manifest


def check_answers(directory: ModelDirectory, learner: Learner) -> None:
    """Refuse a model that cannot answer: it scores one empty image, which finds whatever a forged file got past."""
    if not learner.classes:
        return
    side = learner.backbone.pixels.size
    with making_sense(directory):
        scores = learner.logits(torch.zeros(1, 3, side, side, device=learner.backbone.device))
        if scores.shape != (1, learner.classes):
            raise ValueError(f"it has {scores.shape[-1]} scores for {learner.classes} classes")


def _files_of_learner(generation: Generation) -> Files:
    """The files that the method itself wrote, without thumbnails and exemplars."""
    others = set(generation.manifest.kept_images.values())
    return {
        name: tensors
        for name, tensors in generation.files.items()
        if name not in others and not name.startswith("memory/")
    }


def _allowed(manifest: Manifest) -> int:
    """How many numbers may be allocated to restore a model: a file has at least one byte for each."""
    return _ROOM + 16 * manifest.bytes


def _check_task_sizes(manifest: Manifest) -> None:
    """Classes per task, by which the files are read, must be those of the list of classes."""
    sizes = manifest.learner["task_sizes"]
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("task_sizes is no list of counts")
    if sum(sizes) != len(manifest.classes):
        raise ValueError(f"its tasks have {sum(sizes)} classes, its list of classes {len(manifest.classes)}")


def _check_numbers(value: Any) -> None:
    """Whole numbers that no computation could hold are nothing that was ever saved."""
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError("it has a number that is too large")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_numbers(inner)


def _check_real(directory: ModelDirectory, generation: Generation) -> None:
    for name, tensors in generation.files.items():
        for value in tensors.values():
            if value.is_complex():
                how = "it has numbers that are complex"
            elif value.is_floating_point() and not bool(value.isfinite().all()):
                how = "it has numbers that are not finite"
            elif value.is_floating_point() and bool((value.abs() > _LARGEST_REAL).any()):
                how = f"it has numbers above {_LARGEST_REAL:g}"
            else:
                continue
            raise damaged(directory.path / generation.manifest.files[name].path, how)


@contextmanager
def making_sense(directory: ModelDirectory) -> Iterator[None]:
    """A manifest's checksum says that it is whole, not that it makes sense: it may be another version's, or forged."""
    try:
        yield
    except _NO_SENSE as error:
        raise EaseError(
            f"the model in {directory.path} does not make sense ({reason_of(error)}): "
            "it is damaged or of another version of ease"
        ) from error


def backbone_of(directory: ModelDirectory, weights: Path | str | None = None) -> Backbone:
    """The backbone that a saved model was learned on.

    Args:
        directory: The model.
        weights: Weights file; without it, `with_weights` finds it.
    """
    manifest = directory.manifest()
    with making_sense(directory):
        spec = manifest.backbone
        unnormalised = all(m == 0 for m in spec.mean) and all(s == 1 for s in spec.std)

        def load(file: Path | str | None) -> Backbone:
            return load_backbone(
                spec.name,
                weights=file,
                input_size=spec.input_size,
                normalize="none" if unnormalised else "model",
            )

        if weights is not None:
            return load(weights)
        return with_weights(directory, spec, load, lambda loaded: loaded.weights_hash)


def open_model(
    path: Path | str,
    weights: Path | str | None = None,
    fabric: Any = None,
    batch_size: int = 64,
    precision: str | None = None,
) -> tuple[Learner, Manifest]:
    """A saved model, ready to score images: its backbone is loaded as the manifest says.

    Args:
        path: The model directory.
        weights: Weights file of the backbone; without it, `with_weights` finds it.
        fabric: A launched Lightning Fabric; a single CPU process if None.
        batch_size: Images per batch.
        precision: What the backbone computes in, without a Fabric; what the model was learned in if None.
    """
    directory = ModelDirectory(path)
    backbone = backbone_of(directory, weights)
    asked = precision or directory.manifest().learned_in
    engine = Engine(
        backbone,
        Transforms(backbone.pixels),
        fabric=fabric,
        batch_size=batch_size,
        precision=resolve_precision(asked, backbone.device),
    )
    learner, manifest = restore_learner(directory, engine)
    check_answers(directory, learner)
    return learner, manifest
