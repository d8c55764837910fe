"""Annotations of the fleet charts: decisions about its size, and losses."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, render, render_cause, render_summary
from astraflow.contract.reports.report import Event, Report

RETAINED_ANNOTATIONS = 400


class AnnotationKind(Enum):
    """Style of an annotation."""

    DECISION = "decision"
    LOSS = "loss"


ANNOTATION_KINDS = {
    RecordKind.TARGET_MOVED: AnnotationKind.DECISION,
    RecordKind.FLOW_PAUSED: AnnotationKind.DECISION,
    RecordKind.FLOW_RESUMED: AnnotationKind.DECISION,
    RecordKind.NODE_LOST: AnnotationKind.LOSS,
    RecordKind.TRAINER_STALLED: AnnotationKind.LOSS,
}
"""Event kinds that become annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One event on the chart."""

    ordinal: int
    at: float
    kind: AnnotationKind
    text: str
    summary: str
    """Text without its cause."""
    cause: str
    """Cause that several annotations may share; empty for none."""


def capitalized(text: str) -> str:
    """Returns a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def event_text(event: Event) -> str:
    """Returns the sentence of an event, with a count if it stands for several occurrences."""
    sentence = capitalized(render(event))
    return f"{event.repeats + 1} times within a minute; latest: {sentence}" if event.repeats else sentence


def shared_cause(record: Record) -> str:
    """Returns the cause of a record as a sentence, which a list shows once for the records that share it."""
    return capitalized(render_cause(record))


def annotation_of(event: Event) -> Annotation | None:
    """Returns the annotation of an event; None for other kinds of events."""
    kind = ANNOTATION_KINDS.get(event.kind)
    if kind is None:
        return None
    begin = f"{event.kind.label}: {event.subject}. "
    cause = shared_cause(event)
    return Annotation(
        ordinal=event.ordinal,
        at=event.at,
        kind=kind,
        text=begin + event_text(event),
        summary=begin + (capitalized(render_summary(event)) if cause else event_text(event)),
        cause=cause,
    )


class AnnotationLog:
    """Annotations of the run, once each, and the recommendations behind moved targets."""

    def __init__(self) -> None:
        self._annotations: dict[int, Annotation] = {}
        self._recommendations: dict[tuple[str, float], PoolRecommendation] = {}

    @property
    def annotations(self) -> list[Annotation]:
        """Annotations, oldest first."""
        return [self._annotations[ordinal] for ordinal in sorted(self._annotations)]

    def add_report(self, report: Report) -> None:
        """Adds the events and recommendations of a report."""
        self.add_events(report.events)
        for recommendation in report.recommendations:
            self._recommendations.setdefault((recommendation.pool, recommendation.at), recommendation)
        while len(self._recommendations) > RETAINED_ANNOTATIONS:
            del self._recommendations[next(iter(self._recommendations))]

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds the annotations of events, from a report or from the history."""
        annotations = (annotation_of(event) for event in events)
        self._annotations |= {
            annotation.ordinal: annotation
            for annotation in annotations
            if annotation is not None and annotation.ordinal not in self._annotations
        }
        for ordinal in sorted(self._annotations)[:-RETAINED_ANNOTATIONS]:
            del self._annotations[ordinal]

    def recommendation_for(self, event: Event) -> PoolRecommendation | None:
        """Returns the recommendation behind a moved target: of the tick at, or last before, the event."""
        ticks = [at for pool, at in self._recommendations if pool == event.subject and at <= event.at + 1.0]
        return self._recommendations[event.subject, max(ticks)] if ticks else None


def annotation_json(pin: Annotation) -> list[object]:
    """Returns an annotation as JSON for the charts."""
    return [pin.ordinal, round(pin.at, 2), pin.kind.value, pin.text]
