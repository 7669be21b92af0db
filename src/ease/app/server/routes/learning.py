"""Learning new classes in jobs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from ease.app.server import answers
from ease.app.server.exchange import while_connected
from ease.app.server.jobs import LearningOrder
from ease.app.server.model import Served
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.bodies import FILE, flag, multipart
from ease.app.server.service import Service
from ease.app.server.uploads import Form, receive_form
from ease.streams.intake.checks import check_upload
from ease.streams.intake.limits import ArchiveLimits
from ease.streams.intake.names import display_name
from ease.streams.intake.sources import (
    Candidate,
    Candidates,
    from_archive,
    from_uploads,
    move_to_class_folders,
)

Result = TypeVar("Result")

FIELDS = ("name", "extend", "tune", "unreadable", "thumbnails")
"""The plain values in a form with images to learn."""


BODY = multipart(
    {
        "archive": {**FILE, "description": "a zip of class folders, instead of images"},
        "image": {"type": "array", "items": FILE, "description": "images whose filename is CLASS/FILE"},
        "name": {"type": "string", "description": "the class of images whose filename has no folder"},
        "extend": {
            "type": "boolean",
            "default": False,
            "description": "add images to classes that are known already",
        },
        "tune": {
            "type": "boolean",
            "default": False,
            "description": "adapt the backbone to the first images of a new model; see `tunable` of /classes",
        },
        "unreadable": {"enum": ["refuse", "skip"], "default": "refuse", "description": "damaged images"},
        "thumbnails": {
            "type": "boolean",
            "default": False,
            "description": "keep one small picture of each new class",
        },
    }
)
"""How a form with images to learn is described in the OpenAPI document."""


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""

    @app.post("/learn", response_model=answers.Accepted, status_code=202, openapi_extra=BODY)
    async def learn(request: Request) -> dict[str, Any]:
        """Learn new classes in a job. The model goes on answering; it knows the classes when the job is done."""
        served = service.ready()
        async with service.jobs.reserved() as folder:
            form = await receive_images(service, request, folder, service.limits.learn_files)
            work = until_done(lambda gone: _order(service, served, form, folder, gone))
            order = await while_connected(request, work)
            request.state.images = sum(map(len, order.images.values()))
            job = await asyncio.to_thread(service.jobs.begin, folder, order)
        return {"job": job["id"], "state": job["state"]}

    @app.get("/jobs", response_model=answers.JobList)
    async def jobs() -> dict[str, Any]:
        """All jobs, the newest first."""
        return {"jobs": service.jobs.all()}

    @app.get("/jobs/{job}", response_model=answers.JobState)
    async def one(job: str) -> dict[str, Any]:
        """One job."""
        return service.jobs.one(job)

    @app.post("/jobs/{job}/cancel", response_model=answers.JobState)
    async def cancel(job: str) -> dict[str, Any]:
        """Cancel a job; one that has ended stays as it is."""
        return await asyncio.to_thread(service.jobs.cancel, job)


async def receive_images(service: Service, request: Request, folder: Path, most: int) -> Form:
    """A form with images to learn or to check, at most so many, which are put into the folder."""
    return await receive_form(
        request.headers.get("content-type", ""),
        request.stream(),
        folder,
        files={"archive": 1, "image": most},
        fields=FIELDS,
        threads=service.writers,
    )


async def until_done(work: Callable[[threading.Event], Result]) -> Result:
    """Work in a thread, which is told by the event that nobody waits for it any more.

    If cancelled, it ends only when the thread has ended, so that nothing works in a folder that is removed next.
    """
    gone = threading.Event()
    running = asyncio.ensure_future(asyncio.to_thread(work, gone))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait({running})
        if not running.cancelled():
            running.exception()  # it was retrieved; the client is gone
        raise


def _order(
    service: Service, served: Served, form: Form, folder: Path, gone: threading.Event
) -> LearningOrder:
    """What a form asks for, checked as far as possible without learning; stops once the client is gone."""
    extend, tune, unreadable = flag(form, "extend"), flag(form, "tune"), unreadable_of(form)
    if tune and not served.classifier.tunable:
        raise RefusalError(
            409,
            "this model cannot be tuned: it has learned classes already, or its method has nothing to tune",
        )
    found = sent_images(form, folder, service.limits.archive)
    again = [name for name in found.class_names if name in served.classifier.classes]
    if again and not extend:
        raise RefusalError(
            409,
            f"class '{again[0]}' is known already: choose another name, or send extend=true to add images",
        )

    check_images(service, found, unreadable, gone)
    images = move_to_class_folders(found, folder / "images")
    return LearningOrder(folder / "images", images, extend, tune, unreadable, flag(form, "thumbnails"))


def sent_images(form: Form, folder: Path, limits: ArchiveLimits) -> Candidates:
    """The images of a form by class, from an archive or from single files; they lie in the folder."""
    archives, uploads = form.files.get("archive", []), form.files.get("image", [])
    if archives and uploads:
        raise RefusalError(422, "send either one 'archive' or parts named 'image', not both")
    if not archives:
        return from_uploads(uploads, form.fields.get("name"))
    found = from_archive(archives[0].path, folder, limits, form.fields.get("name"))
    archives[0].path.unlink()
    return found


def check_images(service: Service, found: Candidates, unreadable: str, gone: threading.Event) -> None:
    """Refuse images that are too large or, unless they are skipped, damaged; stops once the client is gone."""

    def check(image: Candidate) -> None:
        if gone.is_set():
            raise ClientDisconnect()
        name = display_name(image.name)
        check_upload(image.content, name, service.limits.image, decode=unreadable == "refuse")

    for _ in service.checkers.map(check, found.images):
        pass


def unreadable_of(form: Form) -> Literal["refuse", "skip"]:
    """What shall be done with damaged images."""
    value = form.fields.get("unreadable", "refuse")
    if value == "refuse":
        return "refuse"
    if value == "skip":
        return "skip"
    raise RefusalError(422, "field 'unreadable' must be refuse or skip")
