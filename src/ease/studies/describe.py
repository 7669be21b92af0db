"""What a saved model is, without loading its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ease.engine.store import model_directory
from ease.methods.model import making_sense


def describe_model(path: Path) -> dict[str, Any]:
    """Method, backbone, classes by task, and size on disk of the current generation; every file is checked."""
    directory = model_directory(path)
    directory.verify()
    manifest = directory.manifest()
    with making_sense(directory):
        return _described(manifest)


def _described(manifest: dict[str, Any]) -> dict[str, Any]:
    tasks: list[list[str]] = [[] for _ in manifest["learner"]["task_sizes"]]
    for entry in manifest["classes"]:
        tasks[entry["task"]].append(entry["name"])
    return {
        "method": manifest["method"],
        "backbone": manifest["backbone"]["name"],
        "input_size": manifest["backbone"]["input_size"],
        "generation": manifest["generation"],
        "created": manifest["created"],
        "classes": [entry["name"] for entry in manifest["classes"]],
        "tasks": tasks,
        "files": len(manifest["files"]),
        "bytes": sum(entry["size"] for entry in manifest["files"].values()),
        "passes_per_image": manifest["passes_per_image"],
        "history": [_act(entry) for entry in manifest.get("history", [])],
    }


def _act(entry: dict[str, Any]) -> dict[str, Any]:
    """One act of learning, as it was measured on its day."""
    known = ("generation", "date", "classes", "extended", "images", "held_out", "accuracy")
    return {name: entry[name] for name in known}
