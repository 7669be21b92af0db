"""Traces for OpenTelemetry: a span for each request, decoding, batch, prediction and job.

Nothing of OpenTelemetry is imported unless traces are asked for. Spans have numbers and routes, no file names, no
images and no tokens.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.util import find_spec
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ease import __version__
from ease.app.server.exchange import known_method
from ease.errors import EaseError

OFF: dict[str, Any] = {
    "telemetry": dict.fromkeys(("tracing", "metrics", "logs", "operation_spans", "auto_configure"), False)
}
"""Arguments of FastAPI, whose later versions have spans of their own, with tracebacks; others ignore them."""
CLOSE_SECONDS = 5.0
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


class NoTracing:
    """Traces are off: every span is an empty `with`."""

    on = False

    def span(
        self, name: str, links: Sequence[Any] = (), parent: Any = None, **facts: float | int | str
    ) -> AbstractContextManager[Any]:
        """Around a piece of work; inside the `with` of another one it becomes a part of that."""
        return nullcontext()

    def here(self) -> Any:
        """The span that is under way, for `links` in another thread."""
        return None

    def mark(self, span: Any, **facts: float | int | str) -> None:
        """Add facts that are known only later."""

    def wrapped(self, app: ASGIApp) -> ASGIApp:
        """The application with a span around each request."""
        return app

    def close(self) -> None:
        """Send what is not sent yet."""


class Tracing(NoTracing):
    """Traces are on.

    Args:
        exporter: Where spans go; over OTLP to where the environment says if None.
    """

    on = True

    def __init__(self, exporter: Any = None) -> None:
        if find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None:
            raise EaseError("traces need OpenTelemetry, not installed here: run pip install 'ease-cil[otel]'")
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor

        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": "ease"}
        self._provider = TracerProvider(
            resource=Resource.create({**named, "service.version": __version__}), shutdown_on_exit=False
        )
        processor = BatchSpanProcessor(_otlp()) if exporter is None else SimpleSpanProcessor(exporter)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("ease", __version__)

    @contextmanager
    def span(
        self, name: str, links: Sequence[Any] = (), parent: Any = None, **facts: float | int | str
    ) -> Iterator[Any]:
        """See `NoTracing`."""
        from opentelemetry.trace import Link

        known = [Link(one) for one in links if one is not None and one.is_valid]
        attributes = {f"ease.{key}": value for key, value in facts.items()}
        with self._tracer.start_as_current_span(
            name, context=parent, links=known, attributes=attributes, record_exception=False
        ) as span:
            yield span

    def here(self) -> Any:
        """See `NoTracing`."""
        from opentelemetry.trace import get_current_span

        return get_current_span().get_span_context()

    def mark(self, span: Any, **facts: float | int | str) -> None:
        """See `NoTracing`."""
        span.set_attributes({f"ease.{key}": value for key, value in facts.items()})

    def wrapped(self, app: ASGIApp) -> ASGIApp:
        """See `NoTracing`."""
        return _Requests(app, self._tracer)

    def close(self) -> None:
        """See `NoTracing`. A receiver that does not answer is waited for a few seconds only."""
        last = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        last.start()
        last.join(CLOSE_SECONDS)


class _Requests:
    """A span around each request, a part of the trace that its `traceparent` header names."""

    def __init__(self, app: ASGIApp, tracer: Any) -> None:
        self._app, self._tracer = app, tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, StatusCode

        carrier = {
            key.decode("latin-1"): value.decode("latin-1")
            for key, value in scope["headers"]
            if key in (b"traceparent", b"tracestate")
        }
        status, method = 0, known_method(scope)

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        with self._tracer.start_as_current_span(
            method, context=extract(carrier), kind=SpanKind.SERVER, record_exception=False
        ) as span:
            try:
                await self._app(scope, receive, watched)
            finally:
                # The route, not the path: paths are as many as clients like.
                route = getattr(scope.get("route"), "path", "other")
                span.update_name(f"{method} {route}")
                span.set_attributes(
                    {
                        "http.request.method": method,
                        "http.route": f"{scope.get('root_path', '')}{route}",
                        "http.response.status_code": status,
                        "ease.images": scope.get("state", {}).get("images", 0),
                    }
                )
                if status >= 500:
                    span.set_status(StatusCode.ERROR)


def make_tracing(wanted: bool, environment: Mapping[str, str] = os.environ) -> tuple[NoTracing, str | None]:
    """Traces if they are asked for, by `--traces` or by the standard variables, and a remark about that.

    The variables may be meant for other programs: if they are set and OpenTelemetry is not installed, the model is
    served without traces and the remark says so. `--traces` without it is an error.
    """
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return NoTracing(), "OTEL_SDK_DISABLED is true: no traces" if wanted else None
    if wanted:
        return Tracing(), None
    chosen = environment.get("OTEL_TRACES_EXPORTER", "")
    if chosen not in ("", "otlp") or not (chosen or any(environment.get(name) for name in _ENDPOINTS)):
        return NoTracing(), None
    try:
        return Tracing(), None
    except EaseError as error:
        return NoTracing(), str(error)


def _otlp() -> Any:
    """The exporter for the protocol that the environment names; HTTP unless it says grpc."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            return Grpc()
        if protocol == "http/protobuf":
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

            return Http()
    except ImportError as error:
        raise EaseError(
            "traces need the OTLP exporter, not installed here: run pip install 'ease-cil[otel]'"
        ) from error
    raise EaseError(f"OTEL_EXPORTER_OTLP_PROTOCOL is '{protocol}': choose http/protobuf or grpc")
