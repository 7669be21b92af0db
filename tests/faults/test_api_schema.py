"""Requests that schemathesis derives from the server's own OpenAPI document: none is answered by 500 or more."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition

from ease import Classifier
from tests.app.serving import World, script, serving
from tests.faults.specification import CREATE, digits

schemathesis = pytest.importorskip("schemathesis")

EXAMPLES = int(os.environ.get("EASE_FAULT_EXAMPLES", "8"))
HEAD = {"Host": "127.0.0.1"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A server of three classes, whose jobs end at once without learning."""
    images, folder = digits(), tmp_path_factory.mktemp("schema")
    model = Classifier.create(folder / "origin", **CREATE)  # type: ignore[arg-type]
    model.learn({f"class {i}": images[4 * i : 4 * i + 4] for i in range(3)}, thumbnails=True)
    path = Path(shutil.copytree(folder / "origin", folder / "model"))
    with serving(path, start=script(""), inbox=True, collect_unsure=20) as made:
        yield made


def schema_of(world: World) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", world.client.app, headers=HEAD)


def quick(examples: int) -> Any:
    return settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def test_no_request_of_any_operation_is_a_server_error(world: World) -> None:
    answers: Counter[str] = Counter()
    schema = schema_of(world)
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 20

    for operation in operations:

        @quick(EXAMPLES)
        @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=_wrong()))
        def attempt(case: Any) -> None:
            answer = case.call(headers=HEAD)
            answers[f"{case.method} {case.path} {answer.status_code}"] += 1
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)

        attempt()
    assert sum(answers.values()) >= EXAMPLES * len(operations) // 2
    assert any(key.endswith(" 200") for key in answers), answers


def _wrong() -> Any:
    return schemathesis.GenerationMode.NEGATIVE


def test_no_sequence_of_requests_leads_to_a_server_error(world: World) -> None:
    """Answers feed later requests: ids of classes and jobs that there are, generations to go back to."""
    wrong, count = [], 0

    class Workflow(schema_of(world).as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: Any) -> dict[str, Any]:
            return {"headers": HEAD}

        def validate_response(self, response: Any, case: Any, **_: Any) -> None:
            nonlocal count
            count += 1
            if response.status_code >= 500:
                wrong.append((case.as_curl_command(), response.text))

    # The server is not the same for each sequence. Hypothesis stops where one that it repeats turns out otherwise.
    for _ in range(20):
        with contextlib.suppress(FlakyStrategyDefinition):
            Workflow.run(settings=settings(quick(EXAMPLES), stateful_step_count=6))
        if count >= EXAMPLES:
            break
    assert not wrong
    assert count >= EXAMPLES


@given(
    method=st.sampled_from(["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "TRACE"]),
    path=st.text("/abc.%0123456789?&=#\\é\u202e", min_size=0, max_size=30),
    head=st.dictionaries(
        st.sampled_from(
            ["Host", "Origin", "Content-Type", "Content-Length", "Authorization", "Range", "Cookie"]
        ),
        st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30),
        max_size=3,
    ),
    body=st.binary(max_size=60),
)
@settings(quick(EXAMPLES * 10))
def test_no_other_request_is_a_server_error(
    world: World, method: str, path: str, head: dict[str, str], body: bytes
) -> None:
    from urllib.parse import quote

    answer = world.client.request(
        method, "/" + quote(path, safe="/%?&="), headers={**HEAD, **head}, content=body
    )
    assert answer.status_code < 500, (method, path, head, answer.text)
