"""The addresses of a server of several models that belong to none of them: / and /models list them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape

from fastapi import FastAPI, Request
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp

from ease import __version__
from ease.app.server import answers, docs
from ease.app.server.guard import Guard
from ease.app.server.refusals import RefusalError, refusal
from ease.app.server.several import Dispatch, ListedModel, ModelFolder, address_of
from ease.app.server.telemetry import resident_bytes
from ease.app.server.tracing import OFF
from ease.app.server.watching import escaped

_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
OF_THE_PROCESS = "ease_resident_bytes"


class ModelList(BaseModel):
    """The models of the server."""

    models: list[ListedModel]


def make_app_of_models(models: ModelFolder) -> ASGIApp:
    """The ASGI application of several models."""
    app = FastAPI(
        title="ease",
        version=__version__,
        description="Several image classifiers. Each has a page and an API of its own below /m/NAME/.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        **OFF,
        responses={"4XX": {"model": answers.Failure, "description": "refused; one sentence says why"}},
    )

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        if isinstance(error, RefusalError):
            return refusal(error)
        known = {404: "there is nothing at this address", 405: "this method is not allowed here"}
        sentence = f"{known.get(error.status_code, str(error.detail))}: GET /models lists the models"
        return JSONResponse({"error": sentence}, error.status_code, error.headers)

    _add_routes(app, models)
    app.add_middleware(
        Guard,
        limits=models.limits,
        host=models.host,
        token=models.token,
        log=models.log,
        metrics=models.metrics,
        arrivals=models.shared.arrivals,
    )
    if models.tracing.on:
        app.add_middleware(models.tracing.wrapped)
    return Dispatch(models, app)


def _add_routes(app: FastAPI, models: ModelFolder) -> None:
    @app.get("/models")
    async def list_models() -> ModelList:
        """The models, by name."""
        return ModelList(models=models.listed())

    @app.get("/healthz", response_model=answers.Health)
    async def health() -> dict[str, str]:
        """Whether the process is running."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> ModelList:
        """The models, once each of them is loaded or has failed; 503 until then."""
        found = models.listed()
        if any(one.state == "loading" for one in found):
            raise RefusalError(503, "models are being loaded: try again in a moment", {"Retry-After": "1"})
        return ModelList(models=found)

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics of all models for Prometheus, labelled by model."""
        texts = {name: service.metrics_text() for name, service in models.services().items()}
        return Response(merged(texts), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return HTMLResponse(page(models.listed()), headers={"Content-Security-Policy": docs.POLICY})

    @app.get("/m/{name}", include_in_schema=False)
    async def without_slash(name: str) -> Response:
        _check(models, name)
        return RedirectResponse(f"../{address_of(name)}", 307)

    @app.api_route("/m/{name}/{rest:path}", methods=_METHODS, include_in_schema=False)
    async def missing(name: str, rest: str) -> Response:
        _check(models, name)
        raise RefusalError(503, "the model is being opened: try again in a moment", {"Retry-After": "1"})


_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]


def _check(models: ModelFolder, name: str) -> None:
    if (error := models.error(name)) is not None:
        raise RefusalError(503, f"this model cannot be served: {error}")
    if name not in models:
        raise RefusalError(404, "there is no such model: GET /models lists them")


def page(models: list[ListedModel]) -> str:
    """The list as a page without scripts; its addresses are relative."""
    rows = "".join(_row(one) for one in models) or "<tr><td>There is no model yet.</td></tr>"
    return (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width'>"
        f"<title>Models · ease</title><style>{docs.STYLE}</style></head><body>"
        f"<h1>Models</h1><table>{rows}</table>"
        "<p class='about'>For programs: <a href='models'>models</a>, <a href='metrics'>metrics</a>. "
        "Each model has a description of its API at docs below its own address.</p></body></html>"
    )


def _row(one: ListedModel) -> str:
    if one.state == "failed":
        why = f"<td class='about'>{escape(one.error or '')}</td>"
        return f"<tr><td>{escape(one.name)}</td><td>cannot be served</td>{why}</tr>"
    about = "is being loaded"
    if one.classes is not None:
        about = f"{one.classes} {'class' if one.classes == 1 else 'classes'}, generation {one.generation}"
    link = f"<a href='{escape(one.address)}'>{escape(one.name)}</a>"
    return f"<tr><td>{link}</td><td>{escape(about)}</td><td></td></tr>"


def merged(texts: Mapping[str, str]) -> str:
    """Metrics of several models as one text: each sample gets the label `model`, and families stay together."""
    about: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                family = line.split(" ", 3)[2]
                about.setdefault(family, [])
            if line.startswith("#"):
                about[family] += [line] if line not in about[family] else []
            elif family != OF_THE_PROCESS and (found := _SAMPLE.fullmatch(line)):
                labels = f'model="{escaped(model)}"' + (f",{found[2]}" if found[2] else "")
                samples.setdefault(family, []).append(f"{found[1]}{{{labels}}} {found[3]}")
    about[OF_THE_PROCESS] = [
        f"# HELP {OF_THE_PROCESS} memory used by the server",
        f"# TYPE {OF_THE_PROCESS} gauge",
    ]
    samples[OF_THE_PROCESS] = [f"{OF_THE_PROCESS} {resident_bytes()}"]
    return "".join(f"{line}\n" for family in about for line in (*about[family], *samples.get(family, ())))
