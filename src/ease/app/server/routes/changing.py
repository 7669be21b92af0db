"""Changing what the model knows without learning: forget, rename, roll back."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI

from ease.app.changes import Forgotten
from ease.app.classifier import Classifier
from ease.app.server import answers
from ease.app.server.refusals import RefusalError
from ease.app.server.routes.reading import class_of_id
from ease.app.server.service import Service
from ease.streams.intake import class_name


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""

    def check_idle() -> None:
        service.ready()
        if service.jobs.active:
            raise RefusalError(409, "a job is learning: wait until it ends, or cancel it")

    @app.delete("/classes/{class_id}")
    async def forget(class_id: int) -> Forgotten:
        """Forget a class. Earlier generations are removed as well, since they still contain it."""
        check_idle()
        return await asyncio.to_thread(
            service.model.change, lambda model: model.forget(class_of_id(model, class_id))
        )

    @app.patch("/classes/{class_id}", response_model=answers.Renamed)
    async def rename(class_id: int, body: answers.Rename) -> dict[str, Any]:
        """Rename a class."""
        check_idle()
        name = class_name(body.name)

        def change(model: Classifier) -> dict[str, Any]:
            old = class_of_id(model, class_id)
            if name in set(model.classes) - {old}:
                raise RefusalError(409, f"there is a class '{name}' already: choose another name")
            model.rename(old, name)
            return {"generation": model.generation, "name": name}

        return await asyncio.to_thread(service.model.change, change)

    @app.post("/rollback", response_model=answers.Ready)
    async def rollback(body: answers.Rollback) -> dict[str, Any]:
        """Go back to an earlier generation. Later ones are kept, and can be restored the same way."""
        check_idle()
        known = service.ready().classifier.generations()
        if body.generation not in known:
            numbers = ", ".join(map(str, known)) or "none"
            raise RefusalError(404, f"there is no generation {body.generation}: known: {numbers}")
        await asyncio.to_thread(service.model.change, lambda model: model.rollback(body.generation))
        served = service.ready()
        return {"generation": served.generation, "classes": len(served.classifier.classes)}
