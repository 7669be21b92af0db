"""The folder MODEL.jobs, in which a server remembers its jobs: names of forgotten classes are removed from it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ease.app.companions import companion
from ease.errors import EaseError
from ease.filesystem import entries, is_folder
from ease.storage.contents import read_json, write_json
from ease.storage.lock import WriterLock

JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
JOB_BYTES = 1 << 20
ENDED = ("done", "failed", "cancelled", "interrupted")


def job_book(model: Path) -> Path:
    """The folder with the jobs of a model: it lies beside the model directory."""
    return companion(model, "jobs")


def without_unknown_names(job: dict[str, Any], known: Collection[str]) -> dict[str, Any] | None:
    """A job without names of classes that do not exist; None if it has none.

    Its notes and its error may name such a class in a sentence, so that they are removed.
    """
    names = [name for name in job["classes"] if name in known]
    if len(names) == len(job["classes"]):
        return None
    error = None if job.get("error") is None else "a class of this job was forgotten since"
    learned = job.get("learned")
    if learned is not None:
        kept = {key: [n for n in learned[key] if n in known] for key in ("classes", "extended")}
        learned = {**learned, **kept, "notes": []}
    return {**job, "classes": names, "message": job["state"], "error": error, "learned": learned}


def jobs_that_name(model: Path, name: str) -> int:
    """Number of remembered jobs of a model that name a class."""
    return sum(name in job["classes"] for _, job in _jobs(job_book(model)))


def forget_in_jobs(model: Path, known: Collection[str]) -> None:
    """Remove names of classes that do not exist from the jobs of a model, while no server does it.

    A job that has not ended is left alone if a server is running: its classes are about to be learned.

    Args:
        model: The model directory.
        known: Names of the classes that there are.
    """
    book = job_book(model)
    if not is_folder(book):
        return
    with ExitStack() as held:
        alone = True
        try:
            held.enter_context(WriterLock(book).hold())
        except EaseError:
            alone = False
        for path, job in _jobs(book):
            changed = without_unknown_names(job, known)
            if changed is not None and (alone or job["state"] in ENDED):
                write_json(path, changed)


def _jobs(book: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The files of jobs that can be read."""
    for path in entries(book) if is_folder(book) else []:
        if not (path.suffix == ".json" and JOB_ID.fullmatch(path.stem)):
            continue
        try:
            job = read_json(path, JOB_BYTES)
        except EaseError:  # the server reports it when it starts
            continue
        if (
            isinstance(job, dict)
            and isinstance(job.get("classes"), list)
            and isinstance(job.get("state"), str)
        ):
            learned = job.get("learned")
            lists = (
                {"classes", "extended"} <= learned.keys() if isinstance(learned, dict) else learned is None
            )
            if lists:
                yield path, job
