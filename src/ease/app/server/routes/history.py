"""What happened to the model, and how its answers turned out."""

from __future__ import annotations

import asyncio

from fastapi import FastAPI, Request

from ease.app.history import HistoryReader, Measured, ModelHistory
from ease.app.server.service import Service


class JudgedAnswers(Measured):
    """How the answers that people looked at turned out."""

    since: str


class WholeHistory(ModelHistory):
    """The generations of the model, and how its answers turned out."""

    corrections: JudgedAnswers | None


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
        return WholeHistory(**dict(found), corrections=await asyncio.to_thread(outcomes, service))


def outcomes(service: Service) -> JudgedAnswers | None:
    """How the answers that people looked at since the last learning turned out; None if there are none."""
    learned = service.ready().classifier.history
    found = service.inbox.outcomes(learned[-1].generation if learned else 0)
    if not found.count:
        return None
    about = "answers that people looked at and judged: not a sample of all answers"
    return JudgedAnswers(**dict(Measured.of(found.right, found.count, about)), since=str(found.since))
