"""What a saved model is, without loading its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ease.methods import making_sense
from ease.storage.manifest import Manifest
from ease.storage.model_directory import model_directory


def describe_model(path: Path) -> dict[str, Any]:
    """Method, backbone, classes by task, and size on disk of the current generation; every file is checked.

    `adapted` is None where the method has no choice whether it trains a subspace.
    """
    directory = model_directory(path)
    directory.verify()
    manifest = directory.manifest()
    with making_sense(directory):
        return _described(manifest)


def _described(manifest: Manifest) -> dict[str, Any]:
    tasks: list[list[str]] = [[] for _ in manifest.learner["task_sizes"]]
    for entry in manifest.classes:
        tasks[entry.task].append(entry.name)
    return {
        "method": manifest.method,
        "backbone": manifest.backbone.name,
        "input_size": manifest.backbone.input_size,
        "generation": manifest.generation,
        "created": manifest.created,
        "classes": manifest.class_names,
        "tasks": tasks,
        "files": len(manifest.files),
        "bytes": manifest.bytes,
        "bytes_by_kind": _bytes_by_kind(manifest),
        "storages": _storages(manifest.learner),
        "adapted": manifest.learner.get("adapted"),
        "passes_per_image": manifest.passes_per_image,
        "history": [entry.model_dump(mode="python", exclude={"notes"}) for entry in manifest.history],
    }


def _bytes_by_kind(manifest: Manifest) -> dict[str, int]:
    """Bytes of the generation's files by folder: `subspaces`, `prototypes`, `learner` (other state), and so on."""
    kinds: dict[str, int] = {}
    for name, entry in manifest.files.items():
        kind = name.split("/")[0]
        kinds[kind] = kinds.get(kind, 0) + entry.size
    return kinds


def _storages(learner: dict[str, Any]) -> list[str]:
    """What a compacted model is stored in beside fp32; methods describe their files one by one or in lists."""
    specs: list[Any] = []
    for key in ("subspace", "subspaces", "prototypes", "scatter"):
        found = learner.get(key, [])
        specs += found if isinstance(found, list) else [found]
    return sorted({spec["storage"] for spec in specs if "storage" in spec})
