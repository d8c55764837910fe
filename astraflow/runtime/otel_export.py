"""Export of spans with OpenTelemetry: to a collector, or into files. Needs the extra `otel`."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from astraflow.runtime.logs import get_logger
from astraflow.runtime.tracing import SpanRecord

log = get_logger()

QUEUE_SPANS = 16_384
"""Spans that may wait for export; further spans are dropped."""

EXPORT_INTERVAL_MS = 1000.0
"""Export period in milliseconds."""


class OtelRecorder:
    """Passes spans to OpenTelemetry's batch processor, which exports them in a thread. `close` exports the rest."""

    def __init__(self, exporter: SpanExporter, *, role: str) -> None:
        self._ids = _PresetIds()
        resource = Resource.create({"service.name": f"astraflow-{role}", "process.pid": os.getpid()})
        self._provider = TracerProvider(resource=resource, id_generator=self._ids)
        batches = BatchSpanProcessor(exporter, max_queue_size=QUEUE_SPANS, schedule_delay_millis=EXPORT_INTERVAL_MS)
        self._provider.add_span_processor(batches)
        self._tracer = self._provider.get_tracer("astraflow")

    def record(self, span: SpanRecord) -> None:
        """Queues the span."""
        self._ids.set_next(span.trace, span.span)
        parent = None if span.parent is None else NonRecordingSpan(_context(span.trace, span.parent))
        otel_span = self._tracer.start_span(
            span.name,
            context=set_span_in_context(parent) if parent is not None else _NO_PARENT,
            start_time=span.began_ns,
            attributes=dict(span.attributes),
            links=[Link(_context(trace, other)) for trace, other in span.links],
        )
        if span.error:
            otel_span.set_status(Status(StatusCode.ERROR, span.error))
        otel_span.end(end_time=span.ended_ns)

    def flush(self) -> None:
        """Exports the queued spans, so that as many as wanted can be recorded at once."""
        self._provider.force_flush()

    def close(self) -> None:
        """Exports the remaining spans."""
        self._provider.shutdown()


class SpanFile(SpanExporter):
    """A file of OpenTelemetry JSON spans, one per line."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._has_failed = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Appends the spans; spans that a full disk rejects are lost."""
        lines = "".join(f"{span.to_json(indent=None)}\n" for span in spans)
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(lines)
        except OSError as problem:
            if not self._has_failed:
                log.warning("spans_lost", file=str(self._file), problem=str(problem))
            self._has_failed = True
            return SpanExportResult.FAILURE
        self._has_failed = False
        return SpanExportResult.SUCCESS


def create_exporter(to: str, *, role: str) -> SpanExporter:
    """Returns the exporter for a target as in `TracingConfig.to`."""
    if to.startswith(("http://", "https://")):
        return OTLPSpanExporter(endpoint=f"{to.rstrip('/')}/v1/traces")
    return SpanFile(Path(to) / f"{role}-{os.getpid()}.jsonl")


class _PresetIds(RandomIdGenerator):
    def __init__(self) -> None:
        self._next = threading.local()

    def set_next(self, trace: int, span: int) -> None:
        """Sets the ids of the next span that this thread creates."""
        self._next.trace, self._next.span = trace, span

    def generate_trace_id(self) -> int:
        return int(self._next.trace)

    def generate_span_id(self) -> int:
        return int(self._next.span)

    def is_trace_id_random(self) -> bool:
        """Trace ids are derived, not random."""
        return False


def _context(trace: int, span: int) -> SpanContext:
    return SpanContext(trace, span, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))


_NO_PARENT = set_span_in_context(NonRecordingSpan(SpanContext(0, 0, is_remote=False)))
"""Prevents spans of other libraries in this process from becoming parents."""
