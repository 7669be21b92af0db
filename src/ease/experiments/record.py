"""What a finished run has to say for itself, as `record.json` holds it."""

from __future__ import annotations

from typing import Any

from ease.errors import EaseError

Record = dict[str, Any]
FORMAT = 1
REQUIRED = (
    *("method", "dataset", "protocol", "backbone", "seed", "task_sizes", "test_images"),
    *("accuracy", "average", "last", "forgetting", "backward_transfer"),
    *("per_task", "top5", "task_id_accuracy", "parameters", "forward_passes", "seconds"),
)


def check(record: Record) -> None:
    """Refuse what is no record of a finished run."""
    if not isinstance(record, dict):
        raise EaseError(f"a record must be a JSON object, not {type(record).__name__}")
    if record.get("format", FORMAT) != FORMAT:
        raise EaseError(
            f"this record has format {record['format']}, known is {FORMAT}: update ease to read it"
        )
    missing = [key for key in REQUIRED if key not in record]
    if missing:
        name = plain(record.get("method", "unnamed"))
        raise EaseError(f"the record of '{name}' lacks {', '.join(missing)}: was the run finished?")
    lists, tables = (
        ("task_sizes", "accuracy", "per_task", "test_images"),
        ("parameters", "forward_passes", "seconds"),
    )
    for keys, shape, name in ((lists, list, "a list"), (tables, dict, "an object")):
        for key in keys:
            if not isinstance(record[key], shape):
                raise EaseError(
                    f"the record of '{plain(record['method'])}' is damaged: '{key}' is not {name}"
                )
    stages = {key: len(record[key]) for key in lists}
    if len(set(stages.values())) > 1 or not record["accuracy"]:
        counts = ", ".join(f"{key} {count}" for key, count in stages.items())
        raise EaseError(f"the record of '{plain(record['method'])}' does not agree on its stages: {counts}")


def plain(name: object) -> str:
    """A name fit to print: records are files, and a file may hold control characters."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(name))
