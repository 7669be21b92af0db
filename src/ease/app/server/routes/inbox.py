"""The review inbox: people correct answers, look at what was kept, name it, and have it learned."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response

from ease.app.corrections import names_of
from ease.app.inbox import Inbox
from ease.app.inbox_folder import InboxFullError, InboxOffError, NoPhotoError
from ease.app.inbox_photos import SUGGESTIONS, InboxPhoto
from ease.app.names import LikeNameError
from ease.app.server import answers, inbox_answers
from ease.app.server.jobs import LearningOrder
from ease.app.server.model import Served
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.bodies import FILE, flag, multipart
from ease.app.server.routes.predicting import predicted
from ease.app.server.service import Service
from ease.app.server.uploads import receive_form
from ease.app.server.work_folder import folder_for_request
from ease.streams.intake.checks import check_upload
from ease.streams.intake.decode import content_digest, media_type

REFUSED = {
    NoPhotoError: 404,
    InboxOffError: 409,
    InboxFullError: 409,
    LikeNameError: 409,
}


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""
    for kind, status in REFUSED.items():
        app.add_exception_handler(kind, _refusing(service, status))
    body = multipart(
        {
            "image": {**FILE, "description": "the photo, with the bytes that were sent to /predict"},
            "name": {"type": "string", "description": "what it shows: a known class, or a new one"},
            "confirm": {
                "type": "boolean",
                "default": False,
                "description": "accept a name that differs from a known one only by case, spaces or Unicode form",
            },
        },
        required=("image", "name"),
    )

    @app.get("/inbox", response_model=inbox_answers.InboxState)
    async def inbox() -> dict[str, Any]:
        """The photos that wait for a person or for learning. Needs the token, if the server has one."""
        served = service.ready()
        return await asyncio.to_thread(_described, service, served)

    @app.get("/inbox/{photo}/image", response_class=Response)
    async def image(photo: str) -> Response:
        """A photo of the inbox as it came. Needs the token, if the server has one."""
        content = await asyncio.to_thread(service.open_inbox().image, photo)
        kind = media_type(content)
        if kind is None:
            raise RefusalError(404, "this photo is damaged: discard it")
        return Response(content, media_type=kind, headers={"Cache-Control": "private, no-store"})

    @app.post("/feedback", response_model=inbox_answers.Feedback, status_code=201, openapi_extra=body)
    async def feedback(request: Request) -> dict[str, Any]:
        """Say what a photo shows. If the answer was another, the photo is kept until it is learned."""
        inbox, served = service.open_inbox(), service.ready()
        folder = folder_for_request(service.uploads)
        try:
            return await _feedback(service, inbox, served, request, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @app.patch("/inbox/{photo}", response_model=inbox_answers.PhotoState)
    async def name(photo: str, body: inbox_answers.Naming) -> dict[str, Any]:
        """Name a photo, change its name, or take it back (null)."""
        inbox = service.open_inbox()
        named = await asyncio.to_thread(inbox.rename, photo, body.name, confirm=body.confirm)
        return _shown(named, service.groups.last if named.name is None else [])

    @app.delete("/inbox/{photo}", response_model=inbox_answers.Removed)
    async def discard(photo: str) -> dict[str, Any]:
        """Discard a photo. It is not collected again."""
        await asyncio.to_thread(service.open_inbox().discard, photo)
        return {"removed": 1}

    @app.delete("/inbox", response_model=inbox_answers.Removed)
    async def clear() -> dict[str, Any]:
        """Discard all photos."""
        return {"removed": await asyncio.to_thread(service.open_inbox().clear)}

    @app.post("/inbox/learn", response_model=answers.Accepted, status_code=202)
    async def learn() -> dict[str, Any]:
        """Learn all photos that people have named, in a job; they leave the inbox once the model has learned them."""
        inbox, served = service.open_inbox(), service.ready()
        async with service.jobs.reserved() as folder:
            photos = await asyncio.to_thread(inbox.to_learn, served.classifier.known)
            if not photos:
                raise RefusalError(409, "no photo of the inbox has a name: name some first")
            names = names_of(photos)
            order = LearningOrder(
                folder, names, True, False, "refuse", False, inbox=[photo.id for photo in photos]
            )
            job = await asyncio.to_thread(service.jobs.begin, folder, order)
        return {"job": job["id"], "state": job["state"]}


def _refusing(service: Service, status: int) -> Any:
    async def refuse(request: Request, error: Exception) -> Response:
        return JSONResponse({"error": service.plain(error)}, status)  # type: ignore[arg-type]

    return refuse


async def _feedback(
    service: Service, inbox: Inbox, served: Served, request: Request, folder: Path
) -> dict[str, Any]:
    form = await receive_form(
        request.headers.get("content-type", ""),
        request.stream(),
        folder,
        files={"image": 1},
        fields=("name", "confirm"),
        threads=service.writers,
    )
    files = form.files.get("image", [])
    if not files or "name" not in form.fields:
        raise RefusalError(422, "send the photo as part 'image' and what it shows as field 'name'")
    (upload,), given, confirm = files, form.fields["name"], flag(form, "confirm")
    inbox.check_name(given, served.classifier.known, confirm=confirm)  # before the work
    prediction, known = None, served.classifier.known
    if served.classifier.classes:
        answer, digests = await predicted(service, served, request, files, SUGGESTIONS)
        prediction, known, digest = answer.predictions[0], answer.served.classifier.known, digests[0]
        request.state.generation = answer.served.generation
    else:
        await asyncio.to_thread(check_upload, upload.path, upload.shown, service.limits.image)
        digest = await asyncio.to_thread(content_digest, upload.path)
    request.state.images = 1

    def judge() -> Any:
        content = upload.path.read_bytes()
        return inbox.judge(content, digest, given, prediction, known, confirm=confirm, file=upload.name)

    done = await asyncio.to_thread(judge)
    return {
        "id": done.id,
        "name": done.name,
        "known": done.known,
        "confirmed": done.confirmed,
        "similar": list(done.similar),
    }


def _described(service: Service, served: Served) -> dict[str, Any]:
    """What GET /inbox answers. A server without --inbox shows nothing of what others put there."""
    inbox, history = service.inbox, served.classifier.history
    photos = inbox.photos(served.classifier.known) if service.keeps else []
    groups = service.groups.of(served.classifier, photos)
    outcome = inbox.outcomes(history[-1].generation if history else 0)
    return {
        "on": service.keeps,
        "most_images": inbox.most_images,
        "most_bytes": inbox.most_bytes,
        "bytes": sum(photo.bytes for photo in photos),
        "per_day": service.collect_unsure,
        "today": inbox.collected_today() if service.keeps else 0,
        "photos": [_shown(photo, groups) for photo in photos],
        "groups": [{"id": number, "photos": ids} for number, ids in enumerate(groups, start=1)],
        "outcomes": {"right": outcome.right, "wrong": outcome.wrong, "since": outcome.since},
    }


def _shown(photo: InboxPhoto, groups: list[list[str]]) -> dict[str, Any]:
    group = next((number for number, ids in enumerate(groups, start=1) if photo.id in ids), None)
    return {
        "id": photo.id,
        "date": photo.date,
        "state": photo.state,
        "name": photo.name,
        "known": photo.class_id is not None,
        "file": photo.file,
        "image": f"inbox/{photo.id}/image",
        "suggestions": [each.model_dump() for each in photo.suggestions],
        "unknown": photo.unknown,
        "group": group,
    }
