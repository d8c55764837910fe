"""Annotations of charts: decisions about the fleet, faults, losses and launches of nodes, evaluations."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from astraflow.contract.fleet.decisions import Decision
from astraflow.contract.fleet.recommendations import PoolRecommendation
from astraflow.contract.record_kinds import RecordKind
from astraflow.contract.records import Record, clean, render, render_cause, render_summary
from astraflow.contract.reports.report import Event, Report
from web.database.tables import Alert

RETAINED_ANNOTATIONS = 400
"""Annotations of one kind that are retained."""


class AnnotationKind(Enum):
    """Style of an annotation."""

    DECISION = "decision"
    """A person, a program or the rule changed, or stopped changing, the fleet or the run."""
    LOSS = "loss"
    """Something was lost or stalled."""
    NODE = "node"
    """A node came or leaves by request."""
    EVALUATION = "evaluation"
    ALERT = "alert"
    """An alert fired."""


ANNOTATION_KINDS = {
    RecordKind.TARGET_MOVED: AnnotationKind.DECISION,
    RecordKind.FLOW_PAUSED: AnnotationKind.DECISION,
    RecordKind.FLOW_RESUMED: AnnotationKind.DECISION,
    RecordKind.NODE_DRAINED: AnnotationKind.DECISION,
    RecordKind.LOAD_CHANGED: AnnotationKind.DECISION,
    RecordKind.NODE_LOST: AnnotationKind.LOSS,
    RecordKind.TRAINER_STALLED: AnnotationKind.LOSS,
    RecordKind.CHECKPOINT_SET_ASIDE: AnnotationKind.LOSS,
    RecordKind.BATCH_SET_ASIDE: AnnotationKind.LOSS,
    RecordKind.RUN_SUSPENDED: AnnotationKind.LOSS,
    RecordKind.NODE_JOINED: AnnotationKind.NODE,
    RecordKind.NODE_LEFT: AnnotationKind.NODE,
    RecordKind.EVALUATION_DONE: AnnotationKind.EVALUATION,
}
"""Event kinds that become annotations."""

DECISION_KINDS = {
    RecordKind.APPLY: AnnotationKind.DECISION,
    RecordKind.REJECT: AnnotationKind.DECISION,
    RecordKind.SPEC: AnnotationKind.DECISION,
    RecordKind.HOLD: AnnotationKind.DECISION,
    RecordKind.KILL_SWITCH: AnnotationKind.DECISION,
    RecordKind.MAINTAINER_MODE: AnnotationKind.DECISION,
    RecordKind.FAULT: AnnotationKind.LOSS,
    RecordKind.LAUNCH_FAILED: AnnotationKind.LOSS,
}
"""Kinds of the fleet service's decisions that become annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotation:
    """One event on the chart."""

    number: int = 0
    """Grows with each annotation that this process received: charts ask for those after a number."""
    path: str
    """Path of the page of the event or decision, which is unique."""
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
    return None if kind is None else _annotation(event, event.at, kind, f"/events/{event.ordinal}", event_text(event))


def decision_annotation(decision: Decision) -> Annotation | None:
    """Returns the annotation of a decision of the fleet service; None for other kinds of decisions."""
    kind = DECISION_KINDS.get(decision.kind)
    if kind is None:
        return None
    path = f"/decisions/fleet-{decision.ordinal}"
    return _annotation(decision, decision.at, kind, path, capitalized(render(decision)))


def alert_annotation(alert: Alert) -> Annotation:
    """Returns the annotation of an alert, where it fired."""
    summary = f"Alert: {clean(alert.rule_name)}. {capitalized(clean(alert.text))}"
    path = f"/alerts/{alert.id}"
    return Annotation(path=path, at=alert.began_at, kind=AnnotationKind.ALERT, text=summary, summary=summary, cause="")


def _annotation(record: Record, at: float, kind: AnnotationKind, path: str, text: str) -> Annotation:
    begin = f"{record.kind.label}: {record.subject}. " if record.subject else f"{record.kind.label}. "
    cause = shared_cause(record)
    return Annotation(
        path=path,
        at=at,
        kind=kind,
        text=begin + text,
        summary=begin + (capitalized(render_summary(record)) if cause else text),
        cause=cause,
    )


class AnnotationLog:
    """Annotations of the run, once each, and the recommendations behind moved targets."""

    def __init__(self) -> None:
        self._annotations: dict[str, Annotation] = {}
        """By path, in the order in which they were received."""
        self._received = 0
        self._recommendations: dict[tuple[str, float], PoolRecommendation] = {}

    @property
    def annotations(self) -> list[Annotation]:
        """Annotations in the order in which they were received, which is that of their numbers."""
        return list(self._annotations.values())

    def add_report(self, report: Report) -> None:
        """Adds the events and recommendations of a report."""
        self.add_events(report.events)
        for recommendation in report.recommendations:
            self._recommendations.setdefault((recommendation.pool, recommendation.at), recommendation)
        while len(self._recommendations) > RETAINED_ANNOTATIONS:
            del self._recommendations[next(iter(self._recommendations))]

    def add_events(self, events: Iterable[Event]) -> None:
        """Adds the annotations of events, from a report or from the history."""
        self._add(annotation_of(event) for event in events)

    def add_decisions(self, decisions: Iterable[Decision]) -> None:
        """Adds the annotations of decisions of the fleet service."""
        self._add(decision_annotation(decision) for decision in decisions)

    def add_alerts(self, alerts: Iterable[Alert]) -> None:
        """Adds the annotations of alerts of the run."""
        self._add(map(alert_annotation, alerts))

    def _add(self, annotations: Iterable[Annotation | None]) -> None:
        for annotation in sorted(filter(None, annotations), key=lambda annotation: annotation.at):
            if annotation.path not in self._annotations:
                self._received += 1
                self._annotations[annotation.path] = replace(annotation, number=self._received)
                self._forget(annotation.kind)

    def _forget(self, kind: AnnotationKind) -> None:
        """Removes the oldest annotations of a kind of which there are many, so that others are not lost for them."""
        paths = [path for path, annotation in self._annotations.items() if annotation.kind is kind]
        for path in paths[:-RETAINED_ANNOTATIONS]:
            del self._annotations[path]

    def recommendation_for(self, event: Event) -> PoolRecommendation | None:
        """Returns the recommendation behind a moved target: of the tick at, or last before, the event."""
        ticks = [at for pool, at in self._recommendations if pool == event.subject and at <= event.at + 1.0]
        return self._recommendations[event.subject, max(ticks)] if ticks else None


def annotation_json(annotation: Annotation) -> list[object]:
    """Returns an annotation as JSON for the charts."""
    return [annotation.number, round(annotation.at, 2), annotation.kind.value, annotation.text, annotation.path]
