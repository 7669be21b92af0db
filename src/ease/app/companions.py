"""What lies beside a model directory and belongs to it: MODEL.jobs and MODEL.inbox."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from ease.errors import EaseError
from ease.filesystem import resolved, shown


def companion(model: Path | str, kind: Literal["inbox", "jobs"]) -> Path:
    """The folder of this kind beside a model directory: the same one whichever way leads to the model.

    Args:
        model: The model directory, or a link to it.
        kind: The ending of the folder's name.

    Example:
        >>> companion("/models/flowers/../birds", "jobs").as_posix()
        '/models/birds.jobs'
    """
    place = resolved(model)
    if not place.name:
        raise EaseError(f"'{shown(model)}' is no model: it is the top of the disk, name a model directory")
    return place.with_name(f"{place.name}.{kind}")
