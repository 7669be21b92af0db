"""Naming what images show."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time

import torch
from fastapi import FastAPI, Query, Request

from ease.app.prediction import Predictions
from ease.app.server.exchange import while_connected
from ease.app.server.model import Answer, Served
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.bodies import FILE, multipart
from ease.app.server.service import Service
from ease.app.server.uploads import receive_form
from ease.app.server.work_folder import folder_for_request
from ease.app.unsure import is_unsure
from ease.errors import EaseError
from ease.streams.images import content_hash
from ease.streams.intake.decode import decode
from ease.streams.intake.sources import NamedFile

MOST_CLASSES = 1000


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""
    body = multipart({"image": {"type": "array", "items": FILE, "description": "one or more images"}})

    @app.post("/predict", openapi_extra=body)
    async def predict(
        request: Request,
        top: int = Query(5, ge=1, le=MOST_CLASSES, description="number of classes to name for each image"),
        named: bool = Query(True, description="answer photos that people have named with these names"),
    ) -> Predictions:
        """Name what the images show."""
        started = time.perf_counter()
        served = service.ready()
        if not served.classifier.classes:
            raise RefusalError(409, "the model knows no class yet: teach it some first (POST /learn)")
        uploads, answer = await _predicted(service, served, request, top, named)
        request.state.generation, request.state.images = answer.served.generation, len(uploads)
        service.metrics.predicted(len(uploads), time.perf_counter() - started)
        service.activity.add(answer.predictions, answer.served.manifest, service.ready().manifest)
        found = zip(uploads, answer.predictions, strict=True)
        return Predictions(
            generation=answer.served.generation,
            calibrated=answer.served.classifier.calibration.calibrated,
            predictions=tuple(one.model_copy(update={"file": upload.name}) for upload, one in found),
        )


async def _predicted(
    service: Service, served: Served, request: Request, top: int, named: bool
) -> tuple[list[NamedFile], Answer]:
    """The images of a request, and what they show; with `named`, names that people gave to photos count."""
    folder = folder_for_request(service.uploads)
    try:
        form = await receive_form(
            request.headers.get("content-type", ""),
            request.stream(),
            folder,
            files={"image": service.limits.predict_files},
            threads=service.writers,
        )
        files = form.files.get("image", [])
        if not files:
            raise RefusalError(422, "there is no image in the request: send parts named 'image'")
        answer, digests = await predicted(service, served, request, files, top, named)
        if service.collect_unsure and named:
            await asyncio.to_thread(_collect, service, files, answer, digests)
        return files, answer
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def predicted(
    service: Service,
    served: Served,
    request: Request,
    files: list[NamedFile],
    top: int,
    named: bool = True,
) -> tuple[Answer, list[str]]:
    """What received images show, and their content hashes; refuses them if too many others are waiting."""
    # Counted only now: a client that sends slowly must not keep others from being answered.
    with service.model.admitted(service.limits.waiting) as free:
        if not free:
            raise RefusalError(
                503, "too many predictions are waiting: try again in a moment", {"Retry-After": "1"}
            )
        work = _answer(service, served, files, top, named)
        return await while_connected(request, work, service.limits.answer_seconds)


def _collect(service: Service, files: list[NamedFile], answer: Answer, digests: list[str]) -> None:
    """Keep images that the model is unsure of. The answer does not depend on whether that succeeds."""
    known = answer.served.classifier.known
    for file, digest, prediction in zip(files, digests, answer.predictions, strict=True):
        if is_unsure(prediction):
            try:
                service.inbox.collect(
                    file.path.read_bytes(),
                    digest,
                    prediction,
                    known,
                    per_day=service.collect_unsure,
                    file=file.name,
                )
            except (EaseError, OSError) as error:
                service.log.failure("collecting an unsure photo", error)
                return


async def _answer(
    service: Service, served: Served, uploads: list[NamedFile], top: int, named: bool
) -> tuple[Answer, list[str]]:
    """What the images show. If cancelled, it stops before the next image is decoded or the next batch is scored."""
    decoders, limits = service.decoders, service.limits.image

    def prepared(upload: NamedFile) -> tuple[torch.Tensor, str]:
        content = upload.path.read_bytes()
        image = decode(content, upload.shown, limits)
        return served.classifier.pixels([image]), content_hash(content)

    turn = decoders.turn(len(uploads))
    with service.model.decoding(), service.tracing.span("decode", images=len(uploads)):
        # One after the other: a decoded photo is large, what the model reads of it is small.
        ready = [await decoders.prepared(turn, upload, limits, prepared) for upload in uploads]
    abandoned = threading.Event()
    try:
        digests = [digest for _, digest in ready]
        with service.tracing.span("predict", images=len(uploads)):  # from the queue to the answer
            pixels = torch.cat([one for one, _ in ready])
            work = service.model.submit(pixels, top, abandoned, digests if named else ())
            return await asyncio.wrap_future(work), digests
    except asyncio.CancelledError:
        abandoned.set()
        raise
