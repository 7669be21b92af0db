"""The routes of the HTTP interface."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from ease import __version__
from ease.app.classifier import Forgotten
from ease.app.prediction import Predictions
from ease.app.server import answers, docs
from ease.app.server.exchange import while_connected
from ease.app.server.guard import Guard
from ease.app.server.jobs import LearningOrder
from ease.app.server.model import Answer, Served
from ease.app.server.refusals import RefusalError, refusal, refusal_of_disk
from ease.app.server.service import Service
from ease.app.server.uploads import Form, receive_form
from ease.errors import EaseError
from ease.storage.lock import BusyError
from ease.storage.manifest import Manifest
from ease.streams.intake import class_name
from ease.streams.intake.checks import check_upload
from ease.streams.intake.decode import LARGE_IMAGE_PIXELS, count_pixels, decode
from ease.streams.intake.limits import TooLargeError
from ease.streams.intake.names import display_name
from ease.streams.intake.sources import (
    Candidate,
    NamedFile,
    from_archive,
    from_uploads,
    move_to_class_folders,
)

MOST_CLASSES = 1000
PAGE_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
    ".webmanifest": "application/manifest+json",
}
_FILE = {"type": "string", "format": "binary"}


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
        responses={"4XX": {"model": answers.Failure, "description": "refused; one sentence says why"}},
    )
    _explain_errors(app, service)
    _reading(app, service)
    _predicting(app, service)
    _learning(app, service)
    _changing(app, service)
    _pages(app)
    app.add_middleware(
        Guard,
        limits=service.limits,
        host=service.host,
        token=service.token,
        log=service.log,
        metrics=service.metrics,
    )
    return app


# --- errors ---------------------------------------------------------------------------------------


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

    @app.exception_handler(EaseError)
    async def wrong(request: Request, error: EaseError) -> Response:
        if (of_disk := refusal_of_disk(error)) is not None:
            service.log.failure(f"{request.method} {request.url.path}", error)
            return refusal(of_disk)
        return JSONResponse({"error": service.plain(error)}, 413 if isinstance(error, TooLargeError) else 422)


# --- reading --------------------------------------------------------------------------------------


def _reading(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=answers.Health)
    async def health() -> dict[str, Any]:
        """Whether the process is running."""
        return {"status": "ok"}

    @app.get("/readyz", response_model=answers.Ready)
    async def ready() -> dict[str, Any]:
        """Whether the model is loaded; 503 until then."""
        served = service.ready()
        return {"generation": served.generation, "classes": len(served.classifier.classes)}

    @app.get("/classes", response_model=answers.Classes)
    async def classes(request: Request) -> dict[str, Any]:
        """The classes of the model, and the history of its learning."""
        served = service.ready()
        request.state.generation = served.generation
        return described(served)

    @app.get("/thumbnails/{class_id}", response_class=Response)
    async def thumbnail(class_id: int) -> Response:
        """The thumbnail of a class (JPEG), if one was kept."""
        served = service.ready()
        picture = await asyncio.to_thread(served.classifier.thumbnail, _named(served, class_id))
        if picture is None:
            raise RefusalError(404, f"no picture of class {class_id} was kept: learn with thumbnails=true")
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        text = service.metrics.text(service.gauges())
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def described(served: Served) -> dict[str, Any]:
    """A generation as /classes describes it."""
    manifest, history = served.manifest, served.classifier.history
    kept = manifest.kept_images
    # The model of a run has no history: its tasks are made from its classes.
    number = _history_numbers(served) if history else {}
    tasks = [
        {
            "task": position,
            "date": entry.date,
            "classes": list(entry.classes),
            "extended": list(entry.extended),
            "images": entry.images,
            "held_out": entry.held_out,
            "accuracy": entry.accuracy,
            "notes": list(entry.notes),
        }
        for position, entry in enumerate(history, start=1)
    ]
    return {
        "generation": served.generation,
        "method": manifest.method,
        "backbone": manifest.backbone.name,
        "tunable": served.classifier.tunable,
        "passes_per_image": manifest.passes_per_image,
        "bytes": manifest.bytes,
        "calibrated": served.classifier.calibration.calibrated,
        "classes": [
            {
                "id": entry.id,
                "name": entry.name,
                "task": number.get(entry.task, entry.task + 1),
                "count": entry.count,
            }
            for entry in manifest.classes
        ],
        "tasks": tasks if history else _tasks_without_history(manifest),
        "thumbnails": {"on": bool(kept), "images": {each: f"/thumbnails/{each}" for each in kept}},
    }


def _named(served: Served, class_id: int) -> str:
    for entry in served.manifest.classes:
        if entry.id == class_id:
            return entry.name
    raise RefusalError(404, f"there is no class with id {class_id}: GET /classes lists them")


def _history_numbers(served: Served) -> dict[int, int]:
    """The learner's task -> its number in the history. Entries that only extended classes made no task."""
    history = enumerate(served.classifier.history, start=1)
    return dict(enumerate(number for number, e in history if e.classes or not e.extended))


def _tasks_without_history(manifest: Manifest) -> list[dict[str, Any]]:
    tasks: dict[int, dict[str, Any]] = {}
    for entry in manifest.classes:
        blank = {"task": entry.task + 1, "date": manifest.created, "classes": [], "extended": []}
        task = tasks.setdefault(
            entry.task, {**blank, "images": 0, "held_out": 0, "accuracy": None, "notes": []}
        )
        task["classes"].append(entry.name)
        task["images"] += entry.count
    return [tasks[task] for task in sorted(tasks)]


# --- predicting -----------------------------------------------------------------------------------


def _predicting(app: FastAPI, service: Service) -> None:
    body = _multipart({"image": {"type": "array", "items": _FILE, "description": "one or more images"}})

    @app.post("/predict", openapi_extra=body)
    async def predict(
        request: Request,
        top: int = Query(5, ge=1, le=MOST_CLASSES, description="number of classes to name for each image"),
    ) -> Predictions:
        """Name what the images show."""
        started = time.perf_counter()
        served = service.ready()
        if not served.classifier.classes:
            raise RefusalError(409, "the model knows no class yet: teach it some first (POST /learn)")
        uploads, answer = await _predicted(service, served, request, top)
        request.state.generation, request.state.images = answer.served.generation, len(uploads)
        service.metrics.predicted(len(uploads), time.perf_counter() - started)
        found = zip(uploads, answer.predictions, strict=True)
        return Predictions(
            generation=answer.served.generation,
            calibrated=answer.served.classifier.calibration.calibrated,
            predictions=tuple(one.model_copy(update={"file": upload.name}) for upload, one in found),
        )


async def _predicted(
    service: Service, served: Served, request: Request, top: int
) -> tuple[list[NamedFile], Answer]:
    """The images of a request, and what they show."""
    folder = Path(tempfile.mkdtemp(dir=service.uploads))
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
        # Counted only now: a client that sends slowly must not keep others from being answered.
        with service.model.admitted(service.limits.waiting) as free:
            if not free:
                raise RefusalError(
                    503, "too many predictions are waiting: try again in a moment", {"Retry-After": "1"}
                )
            work = _answer(service, served, files, top)
            return files, await while_connected(request, work, service.limits.answer_seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def _answer(service: Service, served: Served, uploads: list[NamedFile], top: int) -> Answer:
    """What the images show. If cancelled, it stops before the next image is decoded or the next batch is scored."""
    loop, limits = asyncio.get_running_loop(), service.limits.image

    def prepared(upload: NamedFile) -> torch.Tensor:
        image = decode(upload.path.read_bytes(), upload.shown, limits)
        return served.classifier.pixels([image])

    ready = []
    with service.model.decoding():
        # One after the other: a decoded photo is large, what the model reads of it is small.
        for upload in uploads:
            pixels = await loop.run_in_executor(
                service.decoders, count_pixels, upload.path, upload.shown, limits
            )
            threads = service.decoders if pixels <= LARGE_IMAGE_PIXELS else service.large_decoder
            ready.append(await loop.run_in_executor(threads, prepared, upload))
    abandoned = threading.Event()
    try:
        return await asyncio.wrap_future(service.model.submit(torch.cat(ready), top, abandoned))
    except asyncio.CancelledError:
        abandoned.set()
        raise


# --- learning -------------------------------------------------------------------------------------


def _learning(app: FastAPI, service: Service) -> None:
    body = _multipart(
        {
            "archive": {**_FILE, "description": "a zip of class folders, instead of images"},
            "image": {"type": "array", "items": _FILE, "description": "images whose filename is CLASS/FILE"},
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

    @app.post("/learn", response_model=answers.Accepted, status_code=202, openapi_extra=body)
    async def learn(request: Request) -> dict[str, Any]:
        """Learn new classes in a job. The model goes on answering; it knows the classes when the job is done."""
        served = service.ready()
        async with service.jobs.reserved() as folder:
            form = await receive_form(
                request.headers.get("content-type", ""),
                request.stream(),
                folder,
                files={"archive": 1, "image": service.limits.learn_files},
                fields=("name", "extend", "tune", "unreadable", "thumbnails"),
                threads=service.writers,
            )
            order = await while_connected(request, _ordered(service, served, form, folder))
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


async def _ordered(service: Service, served: Served, form: Form, folder: Path) -> LearningOrder:
    """What a form asks for. If cancelled, it ends only when no thread works in the folder any more."""
    gone = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(_order, service, served, form, folder, gone))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        gone.set()
        await asyncio.wait({work})
        raise


def _order(
    service: Service, served: Served, form: Form, folder: Path, gone: threading.Event
) -> LearningOrder:
    """What a form asks for, checked as far as possible without learning; stops once the client is gone."""
    extend, unreadable = _flag(form, "extend"), form.fields.get("unreadable", "refuse")
    tune = _flag(form, "tune")
    if tune and not served.classifier.tunable:
        raise RefusalError(
            409,
            "this model cannot be tuned: it has learned classes already, or its method has nothing to tune",
        )
    if unreadable not in ("refuse", "skip"):
        raise RefusalError(422, "field 'unreadable' must be refuse or skip")
    archives, uploads = form.files.get("archive", []), form.files.get("image", [])
    if archives and uploads:
        raise RefusalError(422, "send either one 'archive' or parts named 'image', not both")
    if archives:
        found = from_archive(archives[0].path, folder, service.limits.archive, form.fields.get("name"))
        archives[0].path.unlink()
    else:
        found = from_uploads(uploads, form.fields.get("name"))
    again = [name for name in found.class_names if name in served.classifier.classes]
    if again and not extend:
        raise RefusalError(
            409,
            f"class '{again[0]}' is known already: choose another name, or send extend=true to add images",
        )

    def check(image: Candidate) -> None:
        if gone.is_set():
            raise ClientDisconnect()
        name = display_name(image.name)
        check_upload(image.content, name, service.limits.image, decode=unreadable == "refuse")

    for _ in service.checkers.map(check, found.images):
        pass
    images = move_to_class_folders(found, folder / "images")
    return LearningOrder(folder / "images", images, extend, tune, unreadable, _flag(form, "thumbnails"))


def _flag(form: Form, name: str) -> bool:
    value = form.fields.get(name, "false").strip().lower()
    if value not in ("true", "false"):
        raise RefusalError(422, f"field '{name}' must be true or false")
    return value == "true"


# --- changing -------------------------------------------------------------------------------------


def _changing(app: FastAPI, service: Service) -> None:
    def check_idle() -> None:
        service.ready()
        if service.jobs.active:
            raise RefusalError(409, "a job is learning: wait until it ends, or cancel it")

    @app.delete("/classes/{class_id}")
    async def forget(class_id: int) -> Forgotten:
        """Forget a class. Earlier generations are removed as well, since they still contain it."""
        check_idle()
        name = _named(service.ready(), class_id)
        forgotten = await asyncio.to_thread(service.model.change, lambda model: model.forget(name))
        await asyncio.to_thread(service.jobs.forget_others, service.ready().classifier.classes)
        return forgotten

    @app.patch("/classes/{class_id}", response_model=answers.Renamed)
    async def rename(class_id: int, body: answers.Rename) -> dict[str, Any]:
        """Rename a class."""
        check_idle()
        old = _named(service.ready(), class_id)
        name = class_name(body.name)
        if name in set(service.ready().classifier.classes) - {old}:
            raise RefusalError(409, f"there is a class '{name}' already: choose another name")
        await asyncio.to_thread(service.model.change, lambda model: model.rename(old, name))
        return {"generation": service.ready().generation, "name": _named(service.ready(), class_id)}

    @app.post("/rollback", response_model=answers.Ready)
    async def rollback(body: answers.Rollback) -> dict[str, Any]:
        """Go back to an earlier generation. Later ones are kept, and can be restored the same way."""
        check_idle()
        known = service.ready().classifier.generations()
        if body.generation not in known:
            numbers = ", ".join(map(str, known))
            raise RefusalError(404, f"there is no generation {body.generation}: known: {numbers}")
        await asyncio.to_thread(service.model.change, lambda model: model.rollback(body.generation))
        served = service.ready()
        return {"generation": served.generation, "classes": len(served.classifier.classes)}


# --- pages ----------------------------------------------------------------------------------------


def _pages(app: FastAPI) -> None:
    known = _page_files()
    text = docs.page(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def documentation() -> Response:
        return HTMLResponse(text, headers={"Content-Security-Policy": docs.POLICY})

    def file(name: str) -> Response:
        if name not in known:
            raise RefusalError(404, "there is no such file: see /docs")
        return Response(
            known[name], media_type=PAGE_KINDS[Path(name).suffix], headers={"Cache-Control": "no-cache"}
        )

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return file("index.html")

    @app.get("/assets/{name}", include_in_schema=False)
    async def asset(name: str) -> Response:
        return file(name)


def _page_files() -> dict[str, bytes]:
    """The page's files by name, read once."""
    folder = files("ease.app").joinpath("page")
    if not folder.is_dir():
        return {}
    return {f.name: f.read_bytes() for f in folder.iterdir() if Path(f.name).suffix in PAGE_KINDS}


def _multipart(properties: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
