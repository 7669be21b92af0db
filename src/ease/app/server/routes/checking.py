"""Looking for wrong labels before anything is learned."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from ease.app.audit import Audit, audit
from ease.app.server.exchange import while_connected
from ease.app.server.model import Served
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.learning import (
    BODY,
    check_images,
    receive_images,
    sent_images,
    unreadable_of,
    until_done,
)
from ease.app.server.service import Service
from ease.app.server.uploads import Form
from ease.app.server.work_folder import folder_for_request
from ease.experiments.predictor import PredictionCancelledError
from ease.streams.intake import ArchiveLimits, collect_images


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""
    one = threading.Lock()

    @app.post("/check", response_model=Audit, openapi_extra=BODY)
    async def check(request: Request) -> Audit:
        """Photos whose labels look wrong, near-duplicates, and classes that look the same.

        The form is that of /learn, so that the same one can be sent to both; `extend`, `tune` and `thumbnails` make no
        difference here. Nothing is changed.
        """
        served = service.ready()
        if not one.acquire(blocking=False):  # its photos lie on the disk of the server
            raise RefusalError(
                503,
                "labels of another request are being checked: try again in a moment",
                {"Retry-After": "5"},
            )
        try:
            folder = folder_for_request(service.uploads)
            try:
                form = await receive_images(service, request, folder, service.limits.check_files)
                work = until_done(lambda gone: _audit(service, served, form, folder, gone))
                found = await while_connected(request, work, service.limits.check_seconds)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            one.release()
        request.state.generation, request.state.images = served.generation, found.images
        return found


def _audit(service: Service, served: Served, form: Form, folder: Path, gone: threading.Event) -> Audit:
    unreadable, limits = unreadable_of(form), service.limits
    found = sent_images(form, folder, ArchiveLimits(limits.check_files, limits.unpacked_bytes, limits.image))
    check_images(service, found, unreadable, gone)
    photos = collect_images(found, unreadable=unreadable)
    if gone.is_set():
        raise ClientDisconnect()
    try:
        return audit(photos, served.classifier, cancelled=gone.is_set, through=service.model.between)
    except PredictionCancelledError as error:
        raise ClientDisconnect() from error
