"""The HTTP interface: its routes, and what every error is answered with."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from ease import __version__
from ease.app.server import answers
from ease.app.server.guard import Guard
from ease.app.server.refusals import RefusalError, refusal, refusal_of_disk
from ease.app.server.routes import (
    activity,
    changing,
    checking,
    explaining,
    history,
    inbox,
    learning,
    pages,
    predicting,
    reading,
)
from ease.app.server.service import Service
from ease.app.server.tracing import OFF
from ease.errors import EaseError
from ease.storage.contents import BrokenFileError
from ease.storage.lock import BusyError
from ease.streams.intake.limits import TooLargeError


def make_app(service: Service) -> FastAPI:
    """The ASGI application of a service; the service must be running while requests come in."""
    app = FastAPI(
        title="ease",
        version=__version__,
        description="An image classifier that learns new classes while it answers. "
        'Images are sent as multipart/form-data; errors are {"error": sentence}.',
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **OFF,
        responses={"4XX": {"model": answers.Failure, "description": "refused; one sentence says why"}},
    )
    _explain_errors(app, service)
    reads, changes = (
        (reading, predicting, explaining, checking, history, activity),
        (learning, inbox, changing),
    )
    for family in (*reads, *changes, pages):
        family.add_routes(app, service)
    app.add_middleware(
        Guard,
        limits=service.limits,
        host=service.host,
        token=service.token,
        log=service.log,
        metrics=service.metrics,
        arrivals=service.shared.arrivals,
    )
    if service.tracing.on:
        app.add_middleware(service.tracing.wrapped)
    return app


def _explain_errors(app: FastAPI, service: Service) -> None:
    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, RefusalError):
            return refusal(error)
        known = {
            404: "there is nothing at this address: see /docs",
            405: "this method is not allowed here: see /docs",
        }
        sentence = known.get(error.status_code, str(error.detail))
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        where = " ".join(str(part) for part in first["loc"] if part != "body") or "body"
        return JSONResponse({"error": f"{where}: {first['msg'].lower()}; see /docs"}, 422)

    @app.exception_handler(BusyError)
    async def busy(request: Request, error: BusyError) -> Response:
        return JSONResponse({"error": service.plain(error)}, 409)

    @app.exception_handler(BrokenFileError)
    async def damaged(request: Request, error: BrokenFileError) -> Response:
        return JSONResponse({"error": service.plain(error)}, 503)

    @app.exception_handler(EaseError)
    async def wrong(request: Request, error: EaseError) -> Response:
        if (of_disk := refusal_of_disk(error)) is not None:
            service.log.failure(f"{request.method} {request.url.path}", error)
            return refusal(of_disk)
        return JSONResponse({"error": service.plain(error)}, 413 if isinstance(error, TooLargeError) else 422)
