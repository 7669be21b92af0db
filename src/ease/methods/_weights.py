"""Where the weights of a saved model's backbone are found, so that nobody has to name their file twice.

The manifest has a hash of the weights and no path: it is the same on every machine. The path of the file is in
`weights.json` beside the manifest, which `ease pack` leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from ease.backbone.weights_file import SUFFIXES
from ease.backbone.zoo import EMBEDDED
from ease.errors import EaseError
from ease.filesystem import is_folder, shown, what_is
from ease.storage.contents import read_json, sha256_of, write_json
from ease.storage.manifest import BackboneEntry
from ease.storage.model_directory import ModelDirectory

BACKBONE_FILE = "backbone.safetensors"
"""Where a model directory that was unpacked from an archive has its backbone."""

REMEMBERED = "weights.json"
"""The file of a model directory with the path and the SHA-256 of the weights file that was given last."""

PLACE = "EASE_WEIGHTS"
"""Environment variable with a weights file, or a folder of them."""

_LIMIT = 64 * 1024

Found = TypeVar("Found")


def weights_beside(directory: ModelDirectory) -> Path | None:
    """The file with the backbone's weights in the model directory, if there is one."""
    path = directory.path / BACKBONE_FILE
    return path if path.is_file() else None


def remember_weights(directory: ModelDirectory, weights: Path | str | None) -> None:
    """Keep the path of a weights file beside the model. Only writers call this.

    The model is complete without it, so a disk that is full now is no error.
    """
    if weights is None or Path(weights).name == BACKBONE_FILE:
        return
    path = Path(os.path.abspath(weights))
    with suppress(EaseError):
        if remembered_weights(directory)[0] != path:
            write_json(directory.path / REMEMBERED, {"path": str(path), "sha256": sha256_of(path)})


def remembered_weights(directory: ModelDirectory) -> tuple[Path | None, str | None]:
    """Path and SHA-256 of the weights file that a model was written with last; None where it is not known."""
    try:
        known = read_json(directory.path / REMEMBERED, _LIMIT)
    except EaseError:
        return None, None
    if not isinstance(known, dict):
        return None, None
    path, sha256 = known.get("path"), known.get("sha256")
    if not isinstance(path, str) or not path or "\0" in path:
        return None, None
    return Path(path), sha256 if isinstance(sha256, str) and len(sha256) == 64 else None


def with_weights(
    directory: ModelDirectory,
    spec: BackboneEntry,
    use: Callable[[Path | None], Found],
    hash_of: Callable[[Found], str],
) -> Found:
    """Load a model's backbone from the first place that has the weights it was learned on.

    The places are, in this order: the model directory (if it was unpacked), the remembered path, the file or folder in
    `EASE_WEIGHTS`, the folder that the model directory is in, and at last the package or the hub. In a folder the file
    has the remembered name, or that of the backbone.

    Args:
        directory: The model.
        spec: Its backbone, as the manifest has it.
        use: Loads from a file, or from the package or the hub if it is given None.
        hash_of: The hash of what was loaded, to be compared with that of the manifest.

    Returns:
        What `use` returned.

    Raises:
        EaseError: No place has them. The message names all that were tried.
    """
    tried: list[str] = []
    for place, path in _places(directory, spec):
        if path is not None and what_is(path) != "file":
            tried.append(f"{place} (no such file)")
            continue
        try:
            found = use(path)
        except EaseError as error:
            tried.append(f"{place} ({_reason(path, error)})")
            continue
        if hash_of(found) == spec.weights_hash:
            return found
        tried.append(f"{place} (its weights differ)")
    if not os.environ.get(PLACE):
        tried.append(f"{PLACE} (not set)")
    digest = remembered_weights(directory)[1]
    which = "" if digest is None else f", which has the SHA-256 {digest},"
    raise EaseError(
        f"the model in {directory.path} was learned on another '{spec.name}' than those found here; tried "
        f"{', '.join(tried)}: give the file it was learned with{which} (--weights), or set {PLACE}"
    )


def _places(directory: ModelDirectory, spec: BackboneEntry) -> Iterator[tuple[str, Path | None]]:
    """What to call each place, and the file there; None stands for the package or the hub."""
    inside, (remembered, _) = weights_beside(directory), remembered_weights(directory)
    seen = set()
    if inside is not None:  # a part of the model: another place does not make up for a wrong one
        yield f"'{shown(inside)}'", inside
        return
    own = ("the embedded weights", None) if spec.name == EMBEDDED else ("the hub", None)
    if spec.name == EMBEDDED and remembered is None:  # nearly every model: no file is looked for
        yield own
    if remembered is not None:
        seen.add(remembered)
        yield f"'{shown(remembered)}'", remembered
    names = [remembered.name] if remembered is not None else []
    names += [f"{name}{suffix}" for name in (spec.name, spec.name.split(".")[0]) for suffix in SUFFIXES]
    given = os.environ.get(PLACE)
    folders = [] if not given else [(PLACE, Path(given).expanduser())]
    for what, folder in (*folders, ("beside the model", Path(os.path.abspath(directory.path)).parent)):
        if what == PLACE and not is_folder(folder):
            yield f"{PLACE} '{shown(folder)}'", folder
            continue
        there = [folder / name for name in dict.fromkeys(names) if what_is(folder / name) == "file"]
        if not there:
            yield f"{what} '{shown(folder / names[0])}'", folder / names[0]
        for path in there:
            if path not in seen:
                seen.add(path)
                yield f"{what} '{shown(path)}'", path
    if spec.name != EMBEDDED or remembered is not None:
        yield own


def _reason(path: Path | None, error: EaseError) -> str:
    text = str(error).split(": ")[0] if path is None else str(error)
    return text.replace(f"weights file '{path}' ", "it ").replace("; give a file with --weights", "")[:160]
