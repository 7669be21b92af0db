"""What a client can look at: the state of the server, the classes, thumbnails and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import PlainTextResponse, Response

from ease.app.classifier import Classifier
from ease.app.server import answers
from ease.app.server.model import Served
from ease.app.server.refusals import RefusalError
from ease.app.server.service import Service
from ease.storage.manifest import Manifest


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""

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
        found = described(served, request.scope.get("root_path", ""))
        return {**found, "inbox": await asyncio.to_thread(service.inbox_summary)}

    @app.get("/thumbnails/{class_id}", response_class=Response)
    async def thumbnail(class_id: int) -> Response:
        """The thumbnail of a class (JPEG), if one was kept."""
        served = service.ready()
        picture = await asyncio.to_thread(
            served.classifier.thumbnail, class_of_id(served.classifier, class_id)
        )
        if picture is None:
            raise RefusalError(404, f"no picture of class {class_id} was kept: learn with thumbnails=true")
        return Response(picture, media_type="image/jpeg", headers={"Cache-Control": "private, no-cache"})

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Metrics for Prometheus."""
        return Response(service.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def described(served: Served, root: str = "") -> dict[str, Any]:
    """A generation as /classes describes it; `root` is the address of the model in the server."""
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
        "thumbnails": {"on": bool(kept), "images": {each: f"{root}/thumbnails/{each}" for each in kept}},
    }


def class_of_id(model: Classifier, class_id: int) -> str:
    """The name of a class; refuses an id that there is not."""
    name = model.known.classes.get(class_id)
    if name is not None:
        return name
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
