"""What the model was asked, day by day, and whether that has changed since it learned."""

from __future__ import annotations

from fastapi import FastAPI

from ease.app.activity import ActivityReport
from ease.app.server.service import Service


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the routes of this family."""

    @app.get("/activity")
    async def activity() -> ActivityReport:
        """Number of photos, share of unknown ones, mean confidence and shares of the classes per day (UTC)."""
        return service.activity.report(service.ready().manifest)
