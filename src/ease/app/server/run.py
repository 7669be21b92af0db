"""The server process of `ease serve`."""

from __future__ import annotations

import contextlib
import errno
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from ease.app.server.api import make_app
from ease.app.server.connections import bounded_connections, shortage
from ease.app.server.guard import check_token
from ease.app.server.limits import Limits
from ease.app.server.model_list import make_app_of_models
from ease.app.server.scoring import Scorer
from ease.app.server.service import Service
from ease.app.server.several import ModelFolder
from ease.app.server.telemetry import Log, bound_allocator
from ease.app.server.tracing import NoTracing, make_tracing
from ease.errors import EaseError
from ease.training.hardware import AskedPrecision

LOGGERS = ("uvicorn", "uvicorn.error", "uvicorn.asgi", "asyncio", "opentelemetry", "python_multipart", "PIL")
"""Their messages become lines of the log."""
GRACE = 5
"""Seconds that running requests get when the server is stopped."""


def serve(
    model: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    weights: Path | None = None,
    budget: int | None = None,
    precision: AskedPrecision | None = None,
    work: Path | None = None,
    limits: Limits | None = None,
    inbox: bool = False,
    collect_unsure: int = 0,
    traces: bool = False,
    ray: str | None = None,
    replicas: int = 2,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve a model until the process is stopped (Ctrl-C or SIGTERM). A running job is ended and changes nothing.

    Args:
        model: Model directory.
        host: Address to listen on; reachable from this machine only by default.
        port: Port to listen on; 0 takes a free one.
        token: Token that changes need; required if other machines can reach the host.
        weights: Weights file of the backbone, if it is not the embedded one.
        budget: Passes per image when predicting; all that the model has if None.
        precision: What the backbone computes in, as for `Classifier.open`; learning, too.
        work: Folder for uploads while they are needed; a temporary one if None.
        limits: Limits of requests and jobs.
        inbox: Keep photos whose answers are corrected, until they are learned.
        collect_unsure: Photos that the model is unsure of and that are kept per UTC day.
        traces: Send traces to OpenTelemetry, also if the environment does not ask for it.
        ray: Address of a Ray cluster on whose nodes images are scored; in this process if None.
        replicas: Models on that cluster.
        announce: Called with one line that contains the address.
    """
    check_token(host, token)
    with (
        _process(host, port, traces) as (listening, log, tracing),
        _scorer(ray, replicas, model, log, weights=weights, budget=budget, precision=precision) as scorer,
        Service(
            model,
            weights=weights,
            budget=budget,
            precision=precision,
            host=host,
            token=token,
            work=work,
            limits=limits,
            inbox=inbox,
            collect_unsure=collect_unsure,
            log=log,
            tracing=tracing,
            scorer=scorer,
        ) as service,
    ):
        server = make_server(service)
        service.model.when_failed = lambda: setattr(server, "should_exit", True)
        if service.model.failure is None:
            announce(f"serving {model} at {_address(listening)} (Ctrl-C ends it)")
            server.run(sockets=[listening])
        if service.model.failure is not None:
            raise service.model.failure


def serve_several(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str | None = None,
    tokens: Mapping[str, str] | None = None,
    weights: Path | None = None,
    budget: int | None = None,
    precision: AskedPrecision | None = None,
    work: Path | None = None,
    limits: Limits | None = None,
    inbox: bool = False,
    collect_unsure: int = 0,
    traces: bool = False,
    announce: Callable[[str], None] = print,
) -> None:
    """Serve every model in a folder until the process is stopped; those that come later too.

    Args:
        folder: Contains the model directories.
        host: As for `serve`.
        port: As for `serve`.
        token: Token of the models that have none of their own.
        tokens: Name of a model -> its own token.
        weights: As for `serve`, for all models.
        budget: As for `serve`, for all models.
        precision: As for `serve`.
        work: As for `serve`.
        limits: As for `serve`; those of connections are for all models together.
        inbox: As for `serve`, for all models.
        collect_unsure: As for `serve`, for each model.
        traces: As for `serve`.
        announce: As for `serve`.
    """
    with (
        _process(host, port, traces) as (listening, log, tracing),
        ModelFolder(
            folder,
            host=host,
            token=token,
            tokens=tokens,
            limits=limits,
            log=log,
            tracing=tracing,
            weights=weights,
            budget=budget,
            precision=precision,
            work=work,
            inbox=inbox,
            collect_unsure=collect_unsure,
        ) as models,
    ):
        count = len(models.listed())
        announce(
            f"serving {count} {'model' if count == 1 else 'models'} of {folder} at {_address(listening)} "
            "(Ctrl-C ends it)"
        )
        _server(make_app_of_models(models), models.limits).run(sockets=[listening])


@contextlib.contextmanager
def _scorer(address: str | None, replicas: int, model: Path, log: Log, **how: Any) -> Iterator[Scorer | None]:
    """Replicas on a Ray cluster, if they are asked for."""
    if address is None:
        yield None
        return
    from ease.app.server.replicas import Replicas
    from ease.cluster import connected

    with connected(address), Replicas(model, replicas, log=log, **how) as found:
        yield found


@contextlib.contextmanager
def _process(host: str, port: int, traces: bool) -> Iterator[tuple[socket.socket, Log, NoTracing]]:
    """What a process needs that serves, whether one model or several. Ctrl-C and SIGTERM end it without an error."""
    bound_allocator()
    log = Log()
    if (warning := shortage()) is not None:
        log.event("note", source="server", message=warning)
    with (
        contextlib.suppress(KeyboardInterrupt),
        log.capturing(*LOGGERS),
        _stopping_on_sigterm(),
        _bound(host, port) as listening,
        _traced(traces, log) as tracing,
    ):
        yield listening, log, tracing


@contextlib.contextmanager
def _traced(wanted: bool, log: Log) -> Iterator[NoTracing]:
    """Traces, if they are asked for; what is not sent at the end is sent then."""
    tracing, remark = make_tracing(wanted)
    if remark is not None:
        log.event("note", source="traces", message=remark)
    try:
        yield tracing
    finally:
        tracing.close()


def make_server(service: Service) -> uvicorn.Server:
    """The HTTP server of a service."""
    return _server(make_app(service), service.limits)


def _server(app: ASGIApp, limits: Limits) -> uvicorn.Server:
    """The HTTP server of an application."""
    config = uvicorn.Config(
        app,
        http=bounded_connections(limits),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=limits.keep_alive_seconds,
        timeout_graceful_shutdown=GRACE,
    )
    return uvicorn.Server(config)


@contextlib.contextmanager
def _stopping_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM, with which services are stopped, like Ctrl-C, unless the program has said what it does."""
    if callable(signal.getsignal(signal.SIGTERM)):
        yield
        return
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    before = signal.signal(signal.SIGTERM, on_ctrl_c if callable(on_ctrl_c) else signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _bound(host: str, port: int) -> socket.socket:
    """A listening socket; opened early, so that a wrong port is reported at once."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, OverflowError) as error:
        raise EaseError(f"cannot listen on host {host} ({error}): choose another with --host") from error
    listening = socket.socket(family, kind, protocol)
    try:
        if hasattr(socket, "SO_REUSEADDR") and not hasattr(socket, "SO_EXCLUSIVEADDRUSE"):
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        taken = "is taken" if error.errno == errno.EADDRINUSE else f"cannot be used ({error.strerror})"
        raise EaseError(f"port {port} on {host} {taken}: choose another with --port") from error
    return listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
