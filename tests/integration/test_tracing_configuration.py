"""Tracing in processes of their own: what the variables configure, and what nobody asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.receivers import receiving

SPANS = """
from volstream.base import tracing
tracing.configure()
with tracing.span("batch", job="j", files=2) as outer:
    with tracing.span("commit"):
        pass
    outer.set(rows=5)
tracing.end()
"""

UNASKED = """
import sys
from volstream.base import config, tracing
from volstream.api.session import Session
tracing.configure()
with Session(config.load(sys.argv[1])) as session, tracing.span("batch"):
    session.jobs.list()
print([one for one in sys.modules if one.startswith(("opentelemetry", "openlineage"))])
"""


def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "OPENLINEAGE"))}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**kept, **variables},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )


def test_spans_are_sent_to_the_collector_that_the_variables_name() -> None:
    with receiving() as collector:
        run(SPANS, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_RESOURCE_ATTRIBUTES="deployment.environment=test")
        (post,) = collector.posts
    assert post.path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(post.body).resource_spans
    about = {attribute.key: attribute.value.string_value for attribute in resource.resource.attributes}
    assert (about["service.name"], about["deployment.environment"]) == ("volstream", "test")
    spans = {span.name: span for scope in resource.scope_spans for span in scope.spans}
    assert spans["commit"].parent_span_id == spans["batch"].span_id
    numbers = {
        attribute.key: attribute.value.int_value
        for attribute in spans["batch"].attributes
        if attribute.value.HasField("int_value")
    }
    assert numbers == {"volstream.files": 2, "volstream.rows": 5}


@pytest.mark.parametrize("variables", [{}, {"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "true"}])
def test_without_configuration_nothing_is_imported(tmp_path: Path, variables: dict[str, str]) -> None:
    if variables:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", **variables}
    assert run(UNASKED, str(tmp_path), **variables).stdout == "[]\n"


@pytest.mark.long
def test_a_collector_that_hangs_does_not_keep_a_process() -> None:
    with receiving() as collector:
        collector.hangs = threading.Event()
        began = time.monotonic()
        run(SPANS, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_EXPORTER_OTLP_TIMEOUT="50")
        assert time.monotonic() - began < 20


def test_a_collector_that_is_away_is_said_in_one_line() -> None:
    done = run(SPANS, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_TIMEOUT="1")
    (line,) = done.stderr.splitlines()
    assert "Spans could not be sent." in line


def test_a_protocol_that_is_not_there_is_said_and_nothing_else_happens() -> None:
    done = run(SPANS, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    assert "use otlp with http/protobuf" in done.stderr


@pytest.mark.parametrize("variable", ["OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"])
def test_a_variable_with_an_impossible_value_is_said_and_nothing_else_happens(variable: str) -> None:
    done = run(SPANS, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **{variable: "-1"})
    assert "correct the OTEL_* variables" in done.stderr


def test_packages_that_are_missing_are_said_with_what_to_install() -> None:
    missing = "import sys\nsys.modules['opentelemetry'] = None\n"
    done = run(missing + SPANS, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert "pip install 'volstream[otel]'" in done.stderr
