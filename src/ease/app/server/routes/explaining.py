"""Saying why an image is taken for a class."""

from __future__ import annotations

import asyncio
import shutil
import threading
from functools import partial

import torch
from fastapi import FastAPI, Request

from ease.app.explain import Explanation, explain_pixels
from ease.app.server.answers import ExplainedAnswer
from ease.app.server.exchange import while_connected
from ease.app.server.model import Served
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.bodies import FILE, multipart
from ease.app.server.service import Service
from ease.app.server.uploads import Form, receive_form
from ease.app.server.work_folder import folder_for_request
from ease.streams.intake.decode import decode
from ease.streams.intake.sources import NamedFile

NEAREST = 3
"""Other classes that the answer is compared with."""


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""
    body = multipart(
        {
            "image": {**FILE, "description": "one image"},
            "name": {"type": "string", "description": "the class to explain; the answer if left out"},
        }
    )

    @app.post("/explain", response_model=ExplainedAnswer, openapi_extra=body)
    async def explain(request: Request) -> ExplainedAnswer:
        """Which parts of an image speak for the answer, and what separates it from the nearest other classes.

        It takes about as long as a hundred predictions, in small batches between which others are answered.
        """
        served = service.ready()
        if not served.classifier.classes:
            raise RefusalError(409, "the model knows no class yet: teach it some first (POST /learn)")
        folder = folder_for_request(service.uploads)
        try:
            form = await receive_form(
                request.headers.get("content-type", ""),
                request.stream(),
                folder,
                files={"image": 1},
                fields=("name",),
                threads=service.writers,
            )
            # Counted only now: a client that sends slowly must not keep others from being answered.
            with service.model.admitted(service.limits.waiting) as free:
                if not free:
                    raise RefusalError(
                        503, "too many predictions are waiting: try again in a moment", {"Retry-After": "1"}
                    )
                work = _explained(service, served, form)
                found = await while_connected(request, work, service.limits.answer_seconds)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        request.state.generation, request.state.images = served.generation, 1
        return ExplainedAnswer(**dict(found), generation=served.generation)


async def _explained(service: Service, served: Served, form: Form) -> Explanation:
    """Why the image of a form is taken for a class. If cancelled, it stops before the next batch is scored."""
    files, name = form.files.get("image", []), form.fields.get("name")
    if not files:
        raise RefusalError(422, "there is no image in the request: send a part named 'image'")
    if name is not None and name not in served.classifier.classes:
        raise RefusalError(422, f"there is no class '{name[:60]}': GET /classes lists them")
    pixels, gone = await _pixels(service, served, files[0]), threading.Event()
    try:
        work = partial(
            explain_pixels,
            served.classifier,
            pixels,
            NEAREST,
            name,
            cancelled=gone.is_set,
            through=service.model.between,
        )
        return await asyncio.get_running_loop().run_in_executor(service.explainers, work)
    except asyncio.CancelledError:
        gone.set()
        raise


async def _pixels(service: Service, served: Served, upload: NamedFile) -> torch.Tensor:
    decoders, limits = service.decoders, service.limits.image

    def prepared(image: NamedFile) -> torch.Tensor:
        return served.classifier.pixels([decode(image.path.read_bytes(), image.shown, limits)])

    return await decoders.prepared(decoders.turn(1), upload, limits, prepared)
