"""Traces: spans of requests, decoding, batches, predictions and jobs, and nothing at all when they are off."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ease.app.server import tracing
from ease.app.server.tracing import NoTracing, make_tracing
from ease.errors import EaseError
from tests.app.serving import images, png, sentence, serving

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

PARENT = "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"


def spans(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


def test_a_prediction_is_traced_from_the_request_to_the_batch(model: Path, pictures: Any) -> None:
    exporter = InMemorySpanExporter()
    with serving(model, tracing=tracing.Tracing(exporter)) as world:
        exporter.clear()
        answer = world.client.post(
            "/predict", files=images(*pictures["d0"][:2]), headers={"traceparent": PARENT}
        )
        assert answer.status_code == 200
        found = spans(exporter)
    assert set(found) == {"POST /predict", "decode", "predict", "batch"}
    request = found["POST /predict"]
    assert f"{request.context.trace_id:032x}" == "0123456789abcdef0123456789abcdef"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["ease.images"] == 2
    for name in ("decode", "predict"):
        assert found[name].parent.span_id == request.context.span_id
        assert found[name].attributes["ease.images"] == 2
    assert [link.context.span_id for link in found["batch"].links] == [found["predict"].context.span_id]
    assert found["batch"].attributes["ease.generation"] == 3
    told = " ".join(f"{span.name} {dict(span.attributes)}" for span in found.values())
    assert "0.png" not in told


def test_a_job_is_traced_and_linked_to_the_request_that_submitted_it(model: Path, pictures: Any) -> None:
    exporter = InMemorySpanExporter()
    with serving(model, tracing=tracing.Tracing(exporter)) as world:
        files = [("image", (f"{i}.png", png(each))) for i, each in enumerate(pictures["d4"][:4])]
        job = world.learn(files, name="four").json()["job"]
        assert world.job(job)["state"] == "done"
    found = spans(exporter)
    assert found["job"].attributes == {"ease.id": job, "ease.state": "done"}
    assert [link.context.span_id for link in found["job"].links] == [found["POST /learn"].context.span_id]


def test_refusals_are_traced_by_route_and_not_by_path(model: Path) -> None:
    exporter = InMemorySpanExporter()
    with serving(model, tracing=tracing.Tracing(exporter)) as world:
        exporter.clear()
        sentence(world.client.get("/nothing/private"), 404)
        sentence(world.client.get("/classes", headers={"Host": "evil.example"}), 403)
        sentence(world.client.get("/jobs/none", headers={"traceparent": "nonsense"}), 404)
        told = [
            (span.name, span.attributes["http.response.status_code"])
            for span in exporter.get_finished_spans()
        ]
    assert told == [("GET other", 404), ("GET other", 403), ("GET /jobs/{job}", 404)]


def test_without_traces_nothing_of_opentelemetry_is_imported(model: Path) -> None:
    check = (
        "import sys; from ease.app.server import api, run, several; "
        # Later versions of FastAPI import the API, which does nothing without the SDK.
        "assert not [n for n in sys.modules if n.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))]"
    )
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.parametrize(
    ("wanted", "environment", "on"),
    [
        (False, {}, False),
        (True, {}, True),
        (True, {"OTEL_SDK_DISABLED": "true"}, False),
        (False, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, True),
        (False, {"OTEL_TRACES_EXPORTER": "otlp"}, True),
        (False, {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}, False),
    ],
)
def test_the_option_or_the_standard_variables_turn_traces_on(
    wanted: bool, environment: dict[str, str], on: bool
) -> None:
    found, _ = make_tracing(wanted, environment)
    assert found.on is on
    found.close()


def test_a_missing_package_is_an_error_if_asked_for_and_a_remark_if_only_the_environment_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "find_spec", lambda name: None)
    with pytest.raises(EaseError, match=r"ease-cil\[otel\]"):
        make_tracing(True, {})
    found, remark = make_tracing(False, {"OTEL_TRACES_EXPORTER": "otlp"})
    assert type(found) is NoTracing
    assert remark is not None
    assert "ease-cil[otel]" in remark


def test_an_unknown_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "pigeon")
    with pytest.raises(EaseError, match="pigeon"):
        make_tracing(True, {})
