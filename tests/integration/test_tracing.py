"""The spans of a run of a job, as OpenTelemetry's SDK gets them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.integration.conftest import Place
from volstream.errors import VolstreamError

_EXPORTER = InMemorySpanExporter()

PICKY = "def f(file):\n    return {'n': 1 // len(file.read_text())}\n"
BROKEN = "class F:\n    def __init__(self):\n        raise OSError('no model')\n    def __call__(self, file): ...\nf = F\n"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Those of this process, whose tracer provider is set once: by a program, as here, that uses volstream."""
    if not isinstance(trace.get_tracer_provider(), TracerProvider):
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(_EXPORTER))
        trace.set_tracer_provider(provider)
    _EXPORTER.clear()
    yield _EXPORTER
    _EXPORTER.clear()


def said(span: ReadableSpan) -> dict[str, object]:
    return {name.removeprefix("volstream."): value for name, value in (span.attributes or {}).items()}


def test_a_run_is_a_tree_of_plan_and_batches_with_their_numbers(place: Place, spans: InMemorySpanExporter) -> None:
    place.put("a", "1")
    place.put("b", "")
    place.job(PICKY, retries=0)
    place.run()
    found = spans.get_finished_spans()
    named = {one.name: one for one in found}
    assert {"refresh", "job", "plan", "batch", "run", "commit"} <= named.keys()
    names = {one.context.span_id: one.name for one in found}
    parents = {one.name: names.get(one.parent.span_id) if one.parent else None for one in found}
    assert parents == {"refresh": None, "job": None, "plan": "job", "batch": "job", "run": "batch", "commit": "batch"}
    batch = said(named["batch"])
    assert (batch["job"], batch["files"], batch["bytes"]) == ("j", 2, 1)
    commit = said(named["commit"])
    assert (commit["rows"], commit["failed"], commit["batch"]) == (1, 1, batch["batch"])
    refresh = said(named["refresh"])
    assert (refresh["volume"], refresh["inserted"]) == ("v", 2)
    assert said(named["plan"])["files"] == 2


def test_a_batch_that_fails_is_a_failed_span_with_the_error(place: Place, spans: InMemorySpanExporter) -> None:
    place.put("a", "1")
    place.job(BROKEN)
    with pytest.raises(VolstreamError):
        place.run()
    (batch,) = [span for span in spans.get_finished_spans() if span.name == "batch"]
    assert not batch.status.is_ok
    assert "no model" in str((batch.events[0].attributes or {})["exception.message"])
