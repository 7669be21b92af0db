"""What happened to the model, and how its answers turned out."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request

from ease.app.history import HistoryReader, Measured, ModelHistory
from ease.app.server.service import Service


class Outcomes(Measured):
    """How the answers that people looked at turned out."""

    since: str


class WholeHistory(ModelHistory):
    """The generations of the model, and how its answers turned out."""

    corrections: Outcomes | None


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""
    reader, reading = HistoryReader(service.path), asyncio.Lock()

    @app.get("/history")
    async def history(request: Request) -> WholeHistory:
        """What each generation learned, extended, renamed or forgot, and how well it did on held-out photos.

        The accuracies are those of the day, on a few held-out photos; each has its 95 % interval.
        """
        request.state.generation = service.ready().generation
        async with reading:
            found = await asyncio.to_thread(reader.read)
        return WholeHistory(**dict(found), corrections=outcomes(service))


def outcomes(service: Service) -> Outcomes | None:
    """How the answers that people looked at turned out; None where nobody can say so."""
    return None
