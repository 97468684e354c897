"""Spans of what volstream does, for OpenTelemetry. Without it, or while nobody asked for them, a span costs
microseconds.

volstream's own processes export spans as the standard ``OTEL_*`` variables say (:func:`configure`); in a
program that has set up OpenTelemetry itself, spans go where the program's go. Attributes are named
``volstream.job``, ``volstream.batch`` ...
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from volstream.base.config import environment
from volstream.base.log import get
from volstream.base.threads import Backoff, FailureTracker
from volstream.errors import DependencyError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

_log = get("tracing")

#: The longest that the end of a process waits for its last spans to be sent.
_END_SECONDS = 5.0

_provider: TracerProvider | None = None


class Span:
    """A span that is open, of OpenTelemetry; None: without it."""

    def __init__(self, span: Any = None) -> None:
        self._span = span

    def set(self, **attributes: str | int | float) -> None:
        """Adds attributes."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))


_NOTHING = Span()


@contextmanager
def span(name: str, **attributes: str | int | float) -> Iterator[Span]:
    """Makes the block a span, the parent of spans inside of it. An exception is recorded, and raised
    again."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        yield _NOTHING
        return
    tracer = trace.get_tracer("volstream")
    with tracer.start_as_current_span(name, attributes=_named(attributes)) as current:
        yield Span(current)


def _named(attributes: dict[str, str | int | float]) -> dict[str, str | int | float]:
    return {f"volstream.{name}": value for name, value in attributes.items()}


def configure() -> None:
    """Exports the spans of this process, which must be one of volstream's own, if the ``OTEL_*`` variables
    name an exporter or an endpoint. Otherwise imports nothing."""
    global _provider
    exporter = environment("OTEL_TRACES_EXPORTER")
    endpoint = environment("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    disabled = (environment("OTEL_SDK_DISABLED") or "").lower() == "true" or exporter == "none"
    if _provider is not None or disabled or not (exporter or endpoint):
        return
    try:
        from opentelemetry import trace

        if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
            return  # opentelemetry-instrument has set it up
        sender = _exporter(exporter or "otlp")
        provider = None if sender is None else _provided(sender)
    except ImportError:
        _log.warning("tracing_unavailable", do="run: pip install 'volstream[otel]'")
        return
    except ValueError as error:
        _log.warning("tracing_unavailable", why=str(error), do="correct the OTEL_* variables")
        return
    if provider is not None:
        _provider = provider
        trace.set_tracer_provider(provider)


def _provided(exporter: SpanExporter) -> TracerProvider:
    """Returns a provider that sends spans by an exporter. Raises ValueError: a variable has no value that
    there is."""
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    named = environment("OTEL_SERVICE_NAME") or f"{SERVICE_NAME}=" in (environment("OTEL_RESOURCE_ATTRIBUTES") or "")
    resource = Resource.create({} if named else {SERVICE_NAME: "volstream"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    logging.getLogger("opentelemetry.exporter").setLevel(logging.CRITICAL)  # it would repeat itself while a collector is away
    provider.add_span_processor(BatchSpanProcessor(_reporting(exporter)))
    return provider


def _exporter(name: str) -> SpanExporter | None:
    protocol = environment("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL") or "http/protobuf"
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter(out=sys.stderr)
    if name != "otlp" or protocol != "http/protobuf":
        _log.warning("tracing_unavailable", exporter=name, protocol=protocol, do="use otlp with http/protobuf, or console")
        return None
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _reporting(exporter: SpanExporter) -> SpanExporter:
    """Returns an exporter that logs, at a limited rate, when another one fails, and when it works again."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    trouble = FailureTracker("tracing", _log, Backoff())

    class Reporting(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            result = exporter.export(spans)
            if result is SpanExportResult.SUCCESS:
                trouble.recovered()
            else:
                trouble.failed(DependencyError("Spans could not be sent.", "Check the OTEL_EXPORTER_OTLP_* variables."))
            return result

        def shutdown(self) -> None:
            exporter.shutdown()

        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return exporter.force_flush(timeout_millis)

    return Reporting()


def end() -> None:
    """Sends the last spans, for at most a few seconds."""
    global _provider
    if _provider is None:
        return
    ending = threading.Thread(target=_provider.shutdown, name="tracing", daemon=True)
    ending.start()
    ending.join(_END_SECONDS)
    _provider = None
