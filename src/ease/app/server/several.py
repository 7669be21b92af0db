"""Several models in one process: each folder with a model below DIR is served at /m/NAME/.

A thread looks at the folder every few seconds. It opens and closes the models, since a lock must be released by the
thread that took it. A model that cannot be opened is listed with the reason, and tried again once it has changed.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from ease.app.server.api import make_app
from ease.app.server.exchange import MODEL_ROOT
from ease.app.server.guard import check_token, is_loopback, without_paths
from ease.app.server.limits import Limits
from ease.app.server.service import Service
from ease.app.server.shared import SharedResources
from ease.app.server.telemetry import Log, Metrics
from ease.app.server.tracing import NoTracing
from ease.app.server.visits import Visits
from ease.documents import cannot_be_shown
from ease.errors import EaseError
from ease.filesystem import entries, is_file, is_folder, shown

LOOK_PERIOD = 2.0
"""Seconds between two looks at the folder."""
GRACE = 5.0
"""Seconds in which requests under way are answered before their model is closed."""
NAME_LENGTH = 100


class ListedModel(BaseModel):
    """A model of the server."""

    name: str
    address: str = Field(description="where its page and its routes are, relative to /")
    state: Literal["loading", "ready", "failed"]
    generation: int | None
    classes: int | None = Field(description="number of classes it knows")
    error: str | None = Field(description="why it cannot be served")


class ModelLog(Log):
    """A log whose lines name the model."""

    def __init__(self, log: Log, name: str) -> None:
        super().__init__()
        self._log, self._name = log, name

    def event(self, kind: str, **fields: Any) -> None:
        """See `Log`."""
        self._log.event(kind, model=self._name, **fields)


@dataclass
class _Hosted:
    """A folder with a model, as it was found."""

    name: str
    path: Path
    folder: int
    """Inode of the folder: another folder of the same name is another model."""
    version: tuple[int, int, int] | None
    service: Service | None = None
    app: ASGIApp | None = None
    visits: Visits = field(default_factory=Visits)
    error: str | None = None
    beyond: bool = False
    """Whether there were too many models already."""

    def listed(self, address: str) -> ListedModel:
        served = None if self.service is None or self.app is None else self.service.model.served
        return ListedModel(
            name=self.name,
            address=address,
            state="failed" if self.error is not None else "loading" if served is None else "ready",
            generation=None if served is None else served.generation,
            classes=None if served is None else len(served.classifier.classes),
            error=self.error,
        )


class ModelFolder:
    """The models in a folder; a context manager.

    Args:
        folder: Contains the model directories.
        host: Address that the server listens on.
        token: Token of the models that have none of their own.
        tokens: Name of a model -> its own token.
        limits: Limits of requests and jobs. At most `limits.models` models are loaded.
        log: Where events are logged.
        tracing: Where requests, batches and jobs are traced.
        options: Further arguments of each `Service`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        token: str | None = None,
        tokens: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        log: Log | None = None,
        tracing: NoTracing | None = None,
        **options: Any,
    ) -> None:
        self.folder, self.host, self.token = folder.resolve(), host, token
        self.tokens, self.limits = dict(tokens or {}), limits or Limits()
        self.log, self.metrics, self.tracing = log or Log(), Metrics(), tracing or NoTracing()
        self.shared = SharedResources(self.limits)
        self._options = options
        if not self.tokens or not is_loopback(host):
            check_token(host, token or next(iter(self.tokens.values()), None))
        for own in self.tokens.values():
            check_token(host, own)
        self._hosted: dict[str, _Hosted] = {}
        self._stopped, self._looked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._watch, name="models", daemon=True)
        self._complaint = ""

    def __enter__(self) -> ModelFolder:
        if not is_folder(self.folder):
            raise EaseError(f"{shown(self.folder)} is no folder of models: check --models")
        self._thread.start()
        self._looked.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    # --- asking -----------------------------------------------------------------------------------

    def listed(self) -> list[ListedModel]:
        """All models, by name."""
        return [one.listed(address_of(name)) for name, one in sorted(self._hosted.items())]

    def service(self, name: str) -> Service | None:
        """The service of a model that is being served."""
        found = self._hosted.get(name)
        return None if found is None or found.app is None else found.service

    def services(self) -> dict[str, Service]:
        """Name -> service of the models that are being served."""
        return {name: one.service for name, one in sorted(self._hosted.items()) if one.app and one.service}

    @contextlib.contextmanager
    def visited(self, name: str) -> Iterator[ASGIApp | None]:
        """Around a request: the application of a model that is being served, which is not closed meanwhile."""
        found = self._hosted.get(name)
        if found is None or (app := found.app) is None:
            yield None
            return
        with found.visits.one() as enters:
            yield app if enters else None

    def __contains__(self, name: object) -> bool:
        """Whether there is a model of this name, whatever its state."""
        return name in self._hosted

    def error(self, name: str) -> str | None:
        """Why a model cannot be served."""
        found = self._hosted.get(name)
        return None if found is None else found.error

    # --- looking ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while True:
                try:
                    self._look()
                    self._complaint = ""
                except Exception as error:  # the next look may succeed
                    if str(error) != self._complaint:
                        self._complaint = str(error)
                        self.log.event("error", what="looking for models", error=self._complaint)
                self._looked.set()
                if self._stopped.wait(LOOK_PERIOD):
                    return
        finally:
            self._looked.set()
            for one in self._hosted.values():
                self._close(one)

    def _look(self) -> None:
        found = self._found()
        for name in [name for name in self._hosted if name not in found]:
            gone = self._hosted[name]
            self._hosted = {key: each for key, each in self._hosted.items() if key != name}
            self._close(gone)
            self.log.event("model", model=name, state="gone")
        for name, there in found.items():
            one = self._hosted.get(name)
            if one is None:
                self._open(there)
            elif there.folder != one.folder or (one.error and self._may_succeed(one, there)):
                self._close(one)
                self._open(there)
            elif one.service is not None and one.service.model.failure is not None:
                failure = one.service.model.failure
                self._close(one)
                self._fail(one, failure)

    def _may_succeed(self, one: _Hosted, there: _Hosted) -> bool:
        """Whether a model that could not be served is worth another attempt."""
        return there.version != one.version or (one.beyond and len(self.services()) < self.limits.models)

    def _found(self) -> dict[str, _Hosted]:
        """The folders that hold a model."""
        found = {}
        for path in sorted(entries(self.folder)):
            name = path.name
            if name.startswith(".") or len(name) > NAME_LENGTH or cannot_be_shown(name):
                continue
            with contextlib.suppress(OSError):
                if is_folder(path) and is_file(path / "manifest.json"):
                    facts = os.stat(path / "manifest.json")
                    version = (facts.st_ino, facts.st_mtime_ns, facts.st_size)
                    found[name] = _Hosted(name, path, os.stat(path).st_ino, version)
        return found

    def _open(self, one: _Hosted) -> None:
        try:
            one.beyond = len(self.services()) >= self.limits.models
            if one.beyond:
                raise EaseError(
                    f"{self.limits.models} models are served already: raise the limit 'models', or move some away"
                )
            service = Service(
                one.path,
                host=self.host,
                token=self.tokens.get(one.name, self.token),
                limits=self.limits,
                log=ModelLog(self.log, one.name),
                tracing=self.tracing,
                shared=self.shared,
                **self._options,
            )
            one.service = service.__enter__()
            one.app = make_app(service)
        except Exception as error:
            self._close(one)
            self._fail(one, error)
        self._hosted = {**self._hosted, one.name: one}

    def _fail(self, one: _Hosted, error: Exception) -> None:
        if not isinstance(error, EaseError):
            self.log.failure(f"model {one.name}", error)
        known = {str(one.path): one.name, str(one.path.resolve()): one.name}
        one.error = without_paths(str(error), known)
        self.log.event("model", model=one.name, state="failed", error=one.error)

    def _close(self, one: _Hosted) -> None:
        service, one.service, one.app = one.service, None, None
        if service is not None:
            one.visits.close(GRACE)
            try:
                service.__exit__(None, None, None)
            except Exception as error:
                self.log.failure(f"closing model {one.name}", error)


class Dispatch:
    """Gives a request below /m/NAME/ to the application of that model, and every other one to the list of models.

    The applications find the address of their model in `root_path`, as below a proxy. Each has its own checks of
    access, so that a request passes exactly one of them.
    """

    def __init__(self, models: ModelFolder, others: ASGIApp) -> None:
        self._models, self._others = models, others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "http":
            root = scope.get("root_path", "")
            inner = scope["path"].removeprefix(root)
            begin, _, _ = inner.removeprefix("/m/").partition("/")
            if begin and inner.startswith(f"/m/{begin}/"):
                with self._models.visited(begin) as app:
                    if app is not None:
                        await app({**scope, "root_path": f"{root}/m/{begin}"}, receive, send)
                        return
                scope = {**scope, MODEL_ROOT: f"{root}/m/{begin}"}
        await self._others(scope, receive, send)


def address_of(name: str) -> str:
    """Where a model is served, relative to the list of models."""
    return f"m/{quote(name, safe='')}/"
