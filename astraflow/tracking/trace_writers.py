"""Targets of traces: OpenTelemetry, MLflow and Trackio, each by its public interface."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from astraflow.contract.errors import InvalidInput
from astraflow.runtime.imports import needs_extra
from astraflow.runtime.tracing import SpanRecord
from astraflow.tracking.base import TrackedRun, TrackerOptions
from astraflow.tracking.traces import Trace, genai_spans, messages_of
from astraflow.tracking.trackio_tracker import TrackioTracker

SPANS_ENDING = ".spans"
"""Ending of folders with spans of OpenTelemetry as JSON lines."""
_FLUSHED_TRACES = 64
"""Traces after which spans are exported, so that none is dropped for lack of room. Count."""

Write = Callable[[Trace], None]


def is_trace_target(to: str) -> bool:
    """Returns whether a target takes traces."""
    return to.startswith(("http://", "https://", "mlflow:", "trackio:")) or to.endswith(SPANS_ENDING)


@contextmanager
def trace_writer(to: str, *, run: str) -> Iterator[Write]:
    """Opens a target: `http://HOST:PORT` of a collector, `NAME.spans`, `mlflow:URI` or `trackio:FOLDER`.

    run: name of the run, from which ids of spans follow. Raises: InvalidInput for another target, or without the
    library of this one.
    """
    kind, _, location = to.partition(":")
    if not is_trace_target(to):
        raise InvalidInput(
            f"cannot write traces to {to!r}: no such target; use http://HOST:PORT, NAME{SPANS_ENDING}, mlflow:URI or "
            "trackio:FOLDER",
            code="trajectories.unknown_target",
        )
    if kind == "mlflow":
        yield _mlflow(location, run)
    elif kind == "trackio":
        with _trackio(Path(location), run) as write:
            yield write
    else:
        with _otel(to, run) as write:
            yield write


@contextmanager
def _otel(to: str, run: str) -> Iterator[Write]:
    with needs_extra("otel", to="export spans"):
        from astraflow.runtime.otel_export import OtelRecorder, create_exporter

    with closing(OtelRecorder(create_exporter(to, role="trajectories"), role="trajectories")) as recorder:
        count = 0

        def write(trace: Trace) -> None:
            nonlocal count
            for span in genai_spans(trace, run=run):
                recorder.record(span)
            count += 1
            if count % _FLUSHED_TRACES == 0:
                recorder.flush()

        yield write


def _mlflow(uri: str, run: str) -> Write:
    with needs_extra("mlflow", to="write traces to MLflow"):
        import mlflow

        from astraflow.tracking.mlflow_tracker import experiment_of

    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=experiment_of(mlflow.MlflowClient(uri), TrackerOptions().project))

    def write(trace: Trace) -> None:
        opened: list[tuple[Any, SpanRecord]] = []
        for span in genai_spans(trace, run=run):
            values = {key.removeprefix("gen_ai."): value for key, value in span.attributes.items()}
            begun = mlflow.start_span_no_context(
                span.name,
                span_type={"invoke_agent": "AGENT", "chat": "CHAT_MODEL"}.get(str(values["operation.name"]), "TOOL"),
                parent_span=opened[0][0] if opened else None,
                inputs=values.pop("input.messages", values.pop("tool.call.arguments", trace.name)),
                attributes={key: str(value) for key, value in values.items()},
                start_time_ns=span.began_ns,
            )
            begun.set_outputs(values.get("output.messages", values.get("tool.call.result")))
            opened.append((begun, span))
        for begun, span in reversed(opened):  # the root ends last, and is then stored with all others
            begun.end(end_time_ns=span.ended_ns)

    return write


@contextmanager
def _trackio(folder: Path, run: str) -> Iterator[Write]:
    with needs_extra("trackio", to="write traces to Trackio"):
        tracker = TrackioTracker(TrackerOptions(), TrackedRun(name=run, folder=folder.absolute(), id=run))
        from trackio import Trace as TrackioTrace  # after the tracker has named its folder

    def write(trace: Trace) -> None:
        facts = {**trace.facts, "session_id": str(trace.sample.task), "duration_ms": 1000 * trace.sample.duration_s}
        tracker.run.log({"trajectory": TrackioTrace(messages_of(trace), facts)}, step=trace.sample.ordinal)

    with closing(tracker):
        yield write
