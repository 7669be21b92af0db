"""The web page and the documentation of the API."""

from __future__ import annotations

import functools
from importlib.resources import files
from pathlib import Path

from fastapi import FastAPI
from starlette.responses import HTMLResponse, Response

from ease.app.server import docs
from ease.app.server.refusals import RefusalError
from ease.app.server.service import Service

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


def add_routes(app: FastAPI, service: Service) -> None:
    """Add the page, its files and the documentation of the API; to be called after all other routes."""
    known = _page_files()

    @functools.cache
    def page_of_docs() -> str:
        return docs.page(app.openapi())

    @app.get("/docs", include_in_schema=False)
    async def documentation() -> Response:
        return HTMLResponse(page_of_docs(), headers={"Content-Security-Policy": docs.POLICY})

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
